"""Clamped SwiGLU: silu(gate) * up, in the rounding order of whoever computes it.

A variant is data: `VARIANTS` lists where the limit applies, what is rounded on the way and what a
limit of 0 means.  `swiglu_values` is the one straight line that all of them are.  Variants of
sources that use a fast or device exp are here with the correctly rounded one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from refkern import arguments
from refkern.arithmetic import Bits, Sigmoid, Silu
from refkern.casts import canonical, widen
from refkern.elementary import EXP, Function
from refkern.errors import InvalidInput
from refkern.formats import BFLOAT16, FLOAT16, FLOAT32, find_format

ACTIVATIONS = (BFLOAT16, FLOAT16, FLOAT32)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The choices of one clamped SwiGLU, where "rounded" is to the dtype of gate and up.

    silu(g) is g / (1 + exp(-alpha g)), or g * (1 / (1 + exp(-alpha g))).
    """

    name: str
    #: whose it is
    source: str
    #: what a limit does: "before" silu, as min(g, L) and -L <= u <= L; "after": min(silu(g), L);
    #: "none": there is no clamp, and a limit is refused
    clamp: Literal["before", "after", "none"] = "before"
    #: a NaN gate becomes the limit and a NaN up +limit (fminf, FMNMX), or both stay (torch.clamp)
    nan: Literal["dropped", "kept"] = "dropped"
    #: a limit of 0 clamps to 0, or means no limit
    zero_limit: Literal["clamps", "off"] = "clamps"
    #: the limit of the gate, and that of up, rounded first, as where the clamp is in that dtype
    rounds_gate_limit: bool = False
    rounds_up_limit: bool = False
    exp: Function = EXP
    alpha: float = 1.0
    #: None: up as it is; otherwise up + beta.  A beta of 0 belongs to the clamping kernel, where it
    #: turns an up of -0 into +0; without a limit another kernel runs, which adds nothing
    beta: float | None = None
    #: "quotient" g / (1 + e), or "product" g * (1 / (1 + e))
    form: Literal["quotient", "product"] = "quotient"
    #: silu * up; (up * g) / (1 + e); or fma(silu, up, silu), where beta is 1
    join: Literal["silu-up", "up-gate-first", "fused"] = "silu-up"
    #: silu is rounded before the product
    rounds_silu: bool = False
    #: every operation is rounded, as eager torch does
    rounds_each: bool = False
    #: the result stays float32 (it goes straight into a quantiser)
    rounds_result: bool = True

    @property
    def silu(self) -> Silu | None:
        """The plain silu, which a policy lets take any algebraic form; None for another one."""
        if self.alpha != 1 or self.rounds_each or self.join == "up-gate-first":
            return None
        return Silu(self.form, Sigmoid("plain", self.exp))

    def adds_beta(self, limit: float | None) -> bool:
        """Whether up + beta is an operation of its own, with the limit that applies."""
        if self.beta is None or self.join == "fused":
            return False
        return self.beta != 0 or limit is not None

    def limit_for(self, limit: float | None) -> float | None:
        """The limit that applies, None for none; InvalidInput where the variant takes none."""
        if limit is None or (limit == 0 and self.zero_limit == "off"):
            return None
        if self.clamp == "none":
            raise InvalidInput("limit", limit, f"variant {self.name} has no clamp: None is needed")
        return limit


VARIANTS_IN_ORDER = (
    Variant(name="densemlp", source="vLLM glm5next DenseMlp"),
    Variant(name="vllm-cuda-clamp", source="vLLM activation_kernels.cu silu_and_mul_with_clamp",
            rounds_gate_limit=True, rounds_silu=True, beta=0.0),
    Variant(name="vllm-native-clamp", source="vLLM activation.py, compiled",
            nan="kept", form="product", beta=0.0),
    Variant(name="vllm-native-clamp-eager", source="vLLM activation.py, eager torch",
            nan="kept", form="product", beta=0.0, rounds_gate_limit=True, rounds_up_limit=True,
            rounds_each=True),
    Variant(name="vllm-triton-colmajor", source="vLLM fp8_utils.py, fused, column-major scales",
            rounds_gate_limit=True, rounds_up_limit=True, rounds_silu=True),
    Variant(name="vllm-triton-packed", source="vLLM fp8_utils.py, fused, packed scales",
            beta=0.0),
    Variant(name="vllm-pad-aware", source="vLLM fused_moe/utils.py", zero_limit="off"),
    Variant(name="vllm-batch-invariant", source="vLLM csrc/batch_invariant",
            zero_limit="off", rounds_gate_limit=True, rounds_up_limit=True),
    Variant(name="deepgemm-megamoe", source="DeepGEMM sm100_fp8_fp4_mega_moe.cuh",
            rounds_gate_limit=True, rounds_up_limit=True, rounds_result=False),
    Variant(name="sglang-dsv4", source="SGLang silu_and_mul_masked_post_quant.cuh",
            zero_limit="off", rounds_gate_limit=True, rounds_up_limit=True, rounds_result=False),
    Variant(name="sglang-v2-fused", source="SGLang per_token_group_quant_8bit_v2.cu, fused silu",
            clamp="none", rounds_silu=True),
    Variant(name="step35", source="Step 3.5: transformers step3p7, vLLM SwigluStepAndMul",
            clamp="after", zero_limit="off"),
    Variant(name="gpt-oss", source="vLLM activation_kernels.cu swigluoai",
            alpha=1.702, beta=1.0, join="up-gate-first"),
    Variant(name="gpt-oss-triton-kernels", source="triton_kernels swiglu",
            alpha=1.702, beta=1.0, join="fused"),
    Variant(name="minimax-m3", source="transformers minimax_m3_vl, eager torch",
            nan="kept", alpha=1.702, beta=1.0, form="product", rounds_gate_limit=True,
            rounds_up_limit=True, rounds_each=True),
    Variant(name="deepseek-v4-ref", source="DeepSeek-V4 inference/model.py",
            nan="kept", zero_limit="off"),
    Variant(name="glm53-hf", source="transformers glm5_next, eager torch",
            nan="kept", rounds_gate_limit=True, rounds_up_limit=True, rounds_silu=True),
    Variant(name="flashinfer-swiglu-bias", source="FlashInfer cutlass_fused_moe_kernels.cuh",
            form="product", beta=0.0),
)  # fmt: skip
#: every variant by its name
VARIANTS: Mapping[str, Variant] = MappingProxyType({v.name: v for v in VARIANTS_IN_ORDER})


def variant_named(variant: str | Variant) -> Variant:
    """A variant by name; a `Variant` comes back as it is."""
    if isinstance(variant, Variant):
        return variant
    if variant not in VARIANTS:
        raise InvalidInput("variant", repr(variant), f"there are {', '.join(VARIANTS)}")
    return VARIANTS[variant]


def swiglu_values(
    m: Any, gate: Any, up: Any, limit: float | None, variant: Variant, dtype: np.dtype
) -> Any:
    """gate, up: [..] float32 -> [..] ``dtype``, or float32 where the variant does not round.

    m: an arithmetic, `refkern.arithmetic.Bits` or its relatives.  limit: as `Variant.limit_for`
    gives it.  dtype: what gate and up were before they were widened.
    """

    def rounded(value: Any, when: bool) -> Any:
        return m.widen(m.cast(value, dtype)) if when else value

    each = variant.rounds_each
    lower, larger = (m.fmin, m.fmax) if variant.nan == "dropped" else (m.minimum, m.maximum)
    if limit is not None:
        gate_limit = rounded(m.constant(limit), variant.rounds_gate_limit)
        up_limit = rounded(m.constant(limit), variant.rounds_up_limit)
        gate = lower(gate, gate_limit) if variant.clamp == "before" else gate
        up = larger(lower(up, up_limit), m.negative(up_limit))
    if variant.adds_beta(limit):
        up = rounded(m.add(up, m.constant(variant.beta)), each)

    if variant.silu is None:
        scaled = m.mul(m.constant(variant.alpha), gate) if variant.alpha != 1 else gate
        below = m.add(m.constant(1), m.exp(m.negative(rounded(scaled, each)), variant.exp))
    if variant.join == "up-gate-first":
        value = m.div(m.mul(up, gate), below)
    else:
        if variant.silu is not None:
            silu = m.silu(gate, variant.silu)
        elif variant.form == "quotient":
            silu = m.div(gate, below)
        else:
            silu = m.mul(gate, rounded(m.div(m.constant(1), below), each))
        silu = rounded(silu, each or variant.rounds_silu)
        if limit is not None and variant.clamp == "after":
            silu = lower(silu, gate_limit)
        value = m.fma(silu, up, silu) if variant.join == "fused" else m.mul(silu, up)
    return m.cast(value, dtype) if variant.rounds_result else value


def swiglu(
    gate: Any, up: Any, *, limit: float | None = None, variant: str | Variant = "densemlp"
) -> Any:
    """silu(gate) * up with a clamp, in the rounding order of ``variant``.

    gate, up: [..] of one shape and dtype, bfloat16, float16 or float32, any strides.  Of a
        projection that holds both, take them apart with `split_halves`.
    limit: gate is bounded above by it, up on both sides; None is no clamp.  0 is the variant's
        matter (`Variant.zero_limit`); infinity bounds nothing.
    variant: a name from `VARIANTS`, or a `Variant`.

    Returns [..] in the dtype of gate; float32 where the variant does not round its result.

    Raises InvalidInput for other dtypes, shapes that differ, a limit that is negative or NaN or
    that the variant does not take, and an unknown variant.
    Semantics: the sources named in `VARIANTS`.
    """
    chosen = variant_named(variant)
    gate_array, up_array = checked_operands(gate, up)
    applied = chosen.limit_for(checked_limit(limit))
    from refkern.compiled.swiglu import swiglu_rows

    result = swiglu_rows(gate_array, up_array, applied, chosen)
    foreign = arguments.is_torch(gate) or arguments.is_torch(up)
    return arguments.numpy_to_torch(result) if foreign else result


def checked_operands(gate: Any, up: Any) -> tuple[np.ndarray, np.ndarray]:
    """gate and up as arrays of one activation dtype and one shape, or InvalidInput."""
    gate_array, up_array = arguments.as_array("gate", gate), arguments.as_array("up", up)
    fmt = find_format(gate_array.dtype)
    if fmt not in ACTIVATIONS:
        allowed = f"allowed are {', '.join(map(str, ACTIVATIONS))}"
        raise InvalidInput("gate", f"dtype {gate_array.dtype}", allowed)
    if up_array.dtype != gate_array.dtype or up_array.shape != gate_array.shape:
        given = f"{up_array.dtype} {list(up_array.shape)}"
        raise InvalidInput("up", given, f"{fmt} {list(gate_array.shape)} is needed, as gate is")
    return gate_array, up_array


def reference(
    gate: np.ndarray,
    up: np.ndarray,
    *,
    limit: float | None = None,
    variant: str | Variant = "densemlp",
) -> np.ndarray:
    """`swiglu` by the numpy reference: the same bits."""
    chosen = variant_named(variant)
    applied = chosen.limit_for(checked_limit(limit))
    with np.errstate(all="ignore"):
        value = swiglu_values(Bits(), widen(gate), widen(up), applied, chosen, gate.dtype)
    return canonical(np.ascontiguousarray(value))


def checked_limit(limit: Any) -> float | None:
    """A limit as users give it: None, or a number >= 0 (infinity too)."""
    return None if limit is None else arguments.non_negative("limit", limit)


def split_halves(
    x: Any, *, layout: Literal["concatenated", "interleaved"] = "concatenated"
) -> tuple[Any, Any]:
    """gate and up of a projection that holds both, as views.

    x: [.., 2 * n].  "concatenated": gate is the first half (vLLM, DeepSeek, GLM);
    "interleaved": gate is every even column (gpt-oss).
    Raises InvalidInput for an odd width and an unknown layout.
    """
    if not getattr(x, "shape", ()) or x.shape[-1] % 2:
        raise InvalidInput("x", f"shape {getattr(x, 'shape', None)}", "[.., 2 * n] is needed")
    n = x.shape[-1] // 2
    if layout == "concatenated":
        return x[..., :n], x[..., n:]
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    raise InvalidInput("layout", repr(layout), "'concatenated' or 'interleaved' is needed")
