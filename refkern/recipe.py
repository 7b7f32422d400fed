"""What every recipe has, whatever its op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named, complete set of choices that fixes every rounding of an op.

    An op's own recipes are a subclass whose further fields are the choices, as values.
    """

    name: str
    #: whose arithmetic this is
    source: str
    #: a row alone gives the same bits as among others
    batch_invariant: bool = True
    #: raises InvalidInput, naming the rule, for a call whose order is unknown
    domain: Callable[[Any], None] | None = field(default=None, compare=False, repr=False)
    #: the recipe of this very call, where shapes or dtypes decide between several
    choose: Callable[[Any], Recipe] | None = field(default=None, compare=False, repr=False)

    def for_call(self, call: Any) -> Any:
        """The recipe with every choice made for ``call``; InvalidInput outside the domain."""
        if self.domain is not None:
            self.domain(call)
        return self if self.choose is None else self.choose(call).for_call(call)
