"""A deliberately wrong semantics, as a switch in the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refkern.arithmetic import Bits
from refkern.op import Call, Op
from refkern.policy import Policy

if TYPE_CHECKING:
    from refkern.intervals import Interval


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
        wrong, chosen = self._switched(call, recipe)
        bits = Bits() if self.arithmetic is None else self.arithmetic(wrong)
        with np.errstate(all="ignore"):
            op.part("reference").reference(bits, wrong, chosen)
        return bits.stages

    def accept(self, op: Op, call: Call, recipe: Any, policy: Policy) -> Interval | None:
        """What a policy accepts of the wrong kernel; None where its arithmetic is what is wrong."""
        if self.arithmetic is not None:
            return None
        return op.accept(*self._switched(call, recipe), policy)["out"]

    def _switched(self, call: Call, recipe: Any) -> tuple[Call, Any]:
        wrong = call if self.call is None else self.call(call)
        return wrong, recipe if self.recipe is None else self.recipe(recipe)
