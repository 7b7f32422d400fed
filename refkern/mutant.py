"""A deliberately wrong semantics, as a switch in the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refkern.arithmetic import Bits
from refkern.op import Call, Op


@dataclass(frozen=True)
class Mutant:
    """What a wrong kernel does.  Up to three switches, and the reference itself runs with them.

    call: other arguments than were given.
    recipe: other choices than the recipe's.
    arithmetic: other operations; a subclass of `Bits`.  `Bits.current` says behind which stage
        the reference is, so that one operation can be changed in one place.
    """

    name: str
    #: what the kernel did, to be read behind "the kernel ..."
    says: str
    call: Callable[[Call], Call] | None = None
    recipe: Callable[[Any], Any] | None = None
    arithmetic: Callable[[Call], Bits] | None = None
    #: the report of a user who met it, or the table it comes from
    source: str = ""

    def stages(self, op: Op, call: Call, recipe: Any) -> dict[str, np.ndarray]:
        """Every stage as the wrong kernel computes it."""
        wrong = call if self.call is None else self.call(call)
        chosen = recipe if self.recipe is None else self.recipe(recipe)
        bits = Bits() if self.arithmetic is None else self.arithmetic(wrong)
        with np.errstate(all="ignore"):
            op.part("reference").reference(bits, wrong, chosen)
        return bits.stages
