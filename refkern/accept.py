"""``refkern.accept.OP``: the interval in which every correct implementation's output lies.

Beside the ops, `quantize_fp8` and `swiglu`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refkern import ops
from refkern import policy as policies
from refkern.casts import canonical
from refkern.errors import InvalidInput
from refkern.op import accept_function
from refkern.quantize import ScaleRule, checked_groups, quantize, rule_named
from refkern.swiglu_variants import (
    Variant,
    checked_limit,
    checked_operands,
    swiglu_values,
    variant_named,
)

#: lo and hi of every element
Bounds = tuple[np.ndarray, np.ndarray]


def quantize_fp8(
    x: Any,
    *,
    group: int = 128,
    rule: str | ScaleRule = "densemlp",
    scale_format: str = "ue8m0",
    policy: str = "cuda",
) -> tuple[Bounds, Bounds]:
    """The bounds of the codes and of the scales of `refkern.quantize.quantize_fp8`.

    x, group, rule, scale_format: as there; policy: what the backend is allowed.

    Returns (lo, hi) of the codes, [.., K] float8_e4m3fn, and (lo, hi) of the scales,
    [.., ceil(K / group)] float32 in either format.  A scale that may be either of two powers of two
    widens its codes; a NaN bound is a NaN for certain; where the policy leaves a scale open it is
    -inf and inf, and its codes are -448 and 448.

    Raises InvalidInput as there, and for rule rocm-fnuz, whose codes are of another format.
    """
    from refkern.intervals import Intervals

    array, group = checked_groups(x, group)
    chosen = rule_named(rule)
    scaling = chosen.scaling(scale_format)
    if scaling.fnuz:
        raise InvalidInput("rule", repr(chosen.name), "a rule with float8_e4m3fn codes is needed")
    m = Intervals(policies.load(policy))
    with np.errstate(all="ignore"):
        codes, scales = quantize(m, m.groups(m.widen(array), group), scaling, array.dtype)
        lo, hi = m.ungroup(codes, array.shape[-1]).bounds()
    return (lo, hi), scales.bounds()


def swiglu(
    gate: Any,
    up: Any,
    *,
    limit: float | None = None,
    variant: str | Variant = "densemlp",
    policy: str = "cuda",
) -> Bounds:
    """The bounds of `refkern.swiglu_variants.swiglu`.

    gate, up, limit, variant: as there; policy: what the backend is allowed.
    Returns lo and hi, [..] in the result's dtype; both NaN where it must be NaN, -inf and inf where
    the policy leaves it open.  Raises InvalidInput as there.
    """
    from refkern.intervals import Intervals

    chosen = variant_named(variant)
    gate_array, up_array = checked_operands(gate, up)
    applied = chosen.limit_for(checked_limit(limit))
    m = Intervals(policies.load(policy))
    with np.errstate(all="ignore"):
        gate_values, up_values = m.widen(gate_array), m.widen(up_array)
        dtype = gate_array.dtype
        lo, hi = swiglu_values(m, gate_values, up_values, applied, chosen, dtype).bounds()
    return canonical(lo), canonical(hi)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in ops.names():
        raise AttributeError(f"refkern.accept has {', '.join(__dir__())}, not {name!r}")
    found = accept_function(ops.load(name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*ops.names(), "quantize_fp8", "swiglu"]
