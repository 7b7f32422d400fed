"""An op: its contract and the way from a user's arguments to a result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from refkern import arguments
from refkern import policy as policies
from refkern.arithmetic import Bits
from refkern.errors import InvalidInput
from refkern.policy import Policy
from refkern.recipe import Recipe

if TYPE_CHECKING:
    from refkern.intervals import Interval


@dataclass(frozen=True)
class Call:
    """Checked arguments: arrays (an optional one may be None) and parameters.

    Parameters are plain Python values that JSON can hold.  Each is an attribute too: call.eps.
    """

    inputs: Mapping[str, np.ndarray | None]
    params: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.__dict__.update(self.inputs, **self.params)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Op:
    """One op.  Its folder has the same file names as every other op's.

    spec (this object), reference, kernel, recipes, cases, mutants.  Only `spec` is loaded at once.
    """

    name: str
    summary: str
    #: where the semantics comes from
    source: str
    default_recipe: str
    #: stage names, in order; the last is "out"
    stages: tuple[str, ...]
    #: the public arguments -> Call; its signature and docstring are the public function's
    check: Callable[..., Call]
    #: Call -> (shape, dtype) of the output
    output: Callable[[Call], tuple[tuple[int, ...], np.dtype]]
    #: axes of the inputs and stages, as letters or words, for files and messages
    axes: Mapping[str, str]
    #: (call, rows) -> the call that computes only these rows of the output
    take_rows: Callable[[Call, np.ndarray], Call]
    #: whether the kernel writes every element of ``out``
    writes_all: bool = True
    #: further public functions that this op's folder offers as refkern.NAME
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def part(self, name: str) -> ModuleType:
        """A module of the op's folder, loaded when it is first needed."""
        return _part(self.name, name)

    @property
    def recipes(self) -> Mapping[str, Any]:
        """Every recipe by its name."""
        return _recipes(self)

    def recipe(self, name: str | Recipe | None) -> Any:
        """A recipe by name, the default one for None; a `Recipe` comes back as it is."""
        if isinstance(name, Recipe):
            return name
        recipes = self.recipes
        wanted = self.default_recipe if name is None else name
        if wanted not in recipes:
            raise InvalidInput(
                "recipe", repr(name), f"{self.name} has {', '.join(sorted(recipes))}"
            )
        return recipes[wanted]

    def input_names(self) -> tuple[str, ...]:
        """The arrays that the op takes: what its signature has without being keyword-only."""
        parameters = inspect.signature(self.check).parameters.values()
        return tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)

    def param_names(self) -> tuple[str, ...]:
        """The parameters that the op takes: what its signature has as keyword-only."""
        parameters = inspect.signature(self.check).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def run(self, call: Call, recipe: Recipe, out: np.ndarray | None = None) -> np.ndarray:
        """The numba kernel's output for a checked call and a recipe made for it."""
        kernel = self.part("kernel")
        # Parameters become float32, where a huge one is infinity: meant, and no warning.
        with np.errstate(all="ignore"):
            if out is not None and _is_plain(out, call):
                kernel.run(call, recipe, out)
                return out
            shape, dtype = self.output(call)
            result = np.zeros(shape, dtype)
            if out is None:
                kernel.run(call, recipe, result)
                return result
            if not self.writes_all:
                result[...] = out
            kernel.run(call, recipe, result)
            out[...] = result
        return out

    def accept(
        self,
        call: Call,
        recipe: Recipe,
        policy: Policy,
        given: Mapping[str, np.ndarray] | None = None,
        shared: Any = None,
    ) -> dict[str, Interval]:
        """The interval of every stage under a policy, for a checked call.

        given: stages of a candidate, from which what follows is then computed.
        shared: see `refkern.intervals.Intervals`.
        """
        from refkern.intervals import Intervals

        intervals = Intervals(policy, given, shared)
        with np.errstate(all="ignore"):
            self.part("reference").reference(intervals, call, recipe)
        return intervals.stages

    def stages_of(
        self, call: Call, recipe: Recipe, given: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Every stage of the numpy reference, in order, for a checked call."""
        bits = Bits(given)
        with np.errstate(all="ignore"):
            self.part("reference").reference(bits, call, recipe)
        return bits.stages


def _is_plain(out: np.ndarray, call: Call) -> bool:
    """Whether a kernel may write ``out`` itself: contiguous memory that no input shares."""
    inputs = [array for array in call.inputs.values() if array is not None]
    shared = any(np.may_share_memory(out, array) for array in inputs)
    return out.flags.c_contiguous and out.flags.aligned and not shared


@functools.cache
def _part(op: str, name: str) -> ModuleType:
    return import_module(f"refkern.ops.{op}.{name}")


@functools.cache
def _recipes_by_op(name: str) -> Mapping[str, Any]:
    listed = import_module(f"refkern.ops.{name}.recipes").RECIPES
    return MappingProxyType({recipe.name: recipe for recipe in listed})


def _recipes(op: Op) -> Mapping[str, Any]:
    return _recipes_by_op(op.name)


def public_function(op: Op) -> Callable[..., Any]:
    """``refkern.OP``: the kernel behind the op's own signature."""

    def function(*args: Any, recipe: str | None = None, out: Any = None, **kwargs: Any) -> Any:
        call = op.check(*args, **kwargs)
        chosen = op.recipe(recipe).for_call(call)
        shape, dtype = op.output(call)
        target = None if out is None else arguments.output(out, shape=shape, dtype=dtype)
        result = op.run(call, chosen, target)
        if out is not None:
            return out
        foreign = any(map(arguments.is_torch, (*args, *kwargs.values())))
        return arguments.numpy_to_torch(result) if foreign else result

    more = {
        "recipe": f"recipe: a name from refkern.recipe_names({op.name!r}); None is "
        f"{op.default_recipe!r}.",
        "out": "out: where the result goes; an array or tensor of the output's shape and dtype.",
    }
    return _as_public(function, op, more)


def reference_function(op: Op) -> Callable[..., dict[str, np.ndarray]]:
    """``refkern.reference.OP``: every stage by name, in order; the last one is "out"."""

    def function(*args: Any, recipe: str | None = None, **kwargs: Any) -> dict[str, np.ndarray]:
        call = op.check(*args, **kwargs)
        return op.stages_of(call, op.recipe(recipe).for_call(call))

    more = {"recipe": f"recipe: as in refkern.{op.name}.  Returns an ordered dict of the stages."}
    return _as_public(function, op, more)


def accept_function(op: Op) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """``refkern.accept.OP``: the acceptance interval of every output element."""

    def function(
        *args: Any, policy: str = "cuda", recipe: str | None = None, **kwargs: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        call = op.check(*args, **kwargs)
        chosen = op.recipe(recipe).for_call(call)
        return op.accept(call, chosen, policies.load(policy))["out"].bounds()

    more = {
        "policy": "policy: what the backend is allowed; see refkern.policy_names().",
        "recipe": f"recipe: as in refkern.{op.name}.  Returns (lo, hi) in the output's dtype; both "
        "NaN where the output must be NaN, -inf and inf where the policy leaves it open.",
    }
    return _as_public(function, op, more)


def _as_public(function: Callable[..., Any], op: Op, more: Mapping[str, str]) -> Callable[..., Any]:
    """Give ``function`` the op's name, signature and docstring, with the further arguments."""
    signature = inspect.signature(op.check)
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default="cuda" if name == "policy" else None
        )
        for name in more
    ]
    text = inspect.cleandoc(op.check.__doc__ or "")
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = "\n".join([text, "", *more.values()])
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *added],
        return_annotation=inspect.Signature.empty,
    )
    return function
