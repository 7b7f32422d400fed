"""Block-scaled fp8: amax -> scale -> codes, by the rule of whoever quantises.

A rule is data: `RULES` lists who bounds what, divides or multiplies where, and what becomes of a
NaN.  `quantize` is the one straight line that all of them are; docs/block-scaled-mlp.md has the
table, and for every two rules an input on which they part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import ml_dtypes
import numpy as np

import refkern.powers as powers
from refkern import arguments
from refkern.arithmetic import Bits
from refkern.casts import canonical, widen
from refkern.elementary import Function
from refkern.errors import InvalidInput
from refkern.formats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    codes,
    find_format,
    format_of,
    from_codes,
)

ScaleFormat = Literal["float32", "ue8m0"]
SCALE_FORMATS: tuple[ScaleFormat, ...] = ("float32", "ue8m0")
#: what can be quantised
SOURCES = (BFLOAT16, FLOAT16, FLOAT32)


def factor_or_one(amax: np.ndarray, largest: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """largest / amax; 1 for a group of zeros."""
    return np.where(amax == 0, np.float32(1), largest / amax)


def factor_guarded(amax: np.ndarray, largest: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """largest / amax; 1 for amax 0 and infinity; ``limit`` where the quotient overflows."""
    factor = largest / amax
    factor = np.where(np.isinf(factor), limit, factor)
    return np.where((amax == 0) | np.isinf(amax), np.float32(1), factor)


def factor_guarded_power(amax: np.ndarray, largest: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """As `factor_guarded`, the mantissa cleared: rounded down, so that its reciprocal goes up."""
    return powers.down(factor_guarded(amax, largest, limit))


FACTOR_OR_ONE = Function("factor-or-one", factor_or_one, "refkern.compiled.quantize:factor_or_one")
FACTOR_GUARDED = Function(
    "factor-guarded", factor_guarded, "refkern.compiled.quantize:factor_guarded"
)
FACTOR_GUARDED_POWER = Function(
    "factor-guarded-power", factor_guarded_power, "refkern.compiled.quantize:factor_guarded_power"
)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The arithmetic of one rule in one scale format, in the order in which it happens."""

    #: a NaN is left out of the amax (fmaxf), or makes it NaN (torch.amax)
    nan: Literal["ignored", "kept"] = "ignored"
    #: lower bound of the amax, float32
    amax_floor: float = 0.0
    #: the magnitude that the amax is mapped to
    largest: float = 448.0
    #: scale = amax / largest; amax * RN(1 / largest); 1 / factor; or by a function of the amax
    scale: Literal["quotient", "product", "from-factor"] | Function = "quotient"
    #: a factor of its own, where it is not simply largest / amax
    factor: Function | None = None
    #: lower bound of the scale, float32
    scale_floor: float = 0.0
    #: which power of two the scale becomes; None: it is not rounded
    power_of_two: Function | None = None
    #: a code is the cast of x * RN(1 / scale), x / scale, x * RN(largest / amax), or x times the
    #: power of two that `powers.reciprocal` makes of the scale's exponent field
    apply: Literal["inverse", "quotient", "factor", "exponent"] = "inverse"
    #: to +-largest before the cast: not at all; by fmin and fmax, which make -largest of a NaN; or
    #: so that a NaN stays
    clamp: Literal["none", "drops-nan", "keeps-nan"] = "none"
    #: the cast itself saturates; otherwise 464 and more become NaN
    saturate: bool = True
    #: codes are e4m3fnuz (bias 8, no -0), cast as e4m3fn of twice the value
    fnuz: bool = False


@dataclass(frozen=True, kw_only=True)
class ScaleRule:
    """A named rule; None for a scale format that it does not have."""

    name: str
    #: whose rule it is
    source: str
    float32: Scaling | None
    ue8m0: Scaling | None

    def scaling(self, scale_format: str) -> Scaling:
        """The arithmetic for "float32" or "ue8m0"; InvalidInput where the rule has none."""
        if scale_format not in SCALE_FORMATS:
            allowed = " or ".join(map(repr, SCALE_FORMATS))
            raise InvalidInput("scale_format", repr(scale_format), f"{allowed} is needed")
        found: Scaling | None = getattr(self, scale_format)
        if found is None:
            raise InvalidInput(
                "scale_format", repr(scale_format), f"rule {self.name} has no such scales"
            )
        return found


def _rule(
    name: str, source: str, ue8m0: Mapping[str, Any] | None = None, **choices: Any
) -> ScaleRule:
    """A rule from the choices of its float32 form and what its ue8m0 form does otherwise."""
    plain = Scaling(**choices)
    return ScaleRule(
        name=name,
        source=source,
        float32=plain,
        ue8m0=None if ue8m0 is None else replace(plain, **ue8m0),
    )


def _ue8m0_only(name: str, source: str, **choices: Any) -> ScaleRule:
    return ScaleRule(name=name, source=source, float32=None, ue8m0=Scaling(**choices))


UP, UP_LOG2 = {"power_of_two": powers.UP}, {"power_of_two": powers.UP_LOG2}
#: torch.finfo(float8_e4m3fn).max * 512, the native path's smallest scale is its reciprocal
NATIVE_FLOOR = 1.0 / (448.0 * 512.0)

_VLLM_CUDA = _rule(
    "vllm-cuda-033", "vLLM 0.33.0 CUDA op per_token_group_fp8_quant, its binary",
    amax_floor=1e-10, clamp="drops-nan", ue8m0={"scale_floor": 1e-10, **UP},
)  # fmt: skip
RULES_IN_ORDER = (
    _VLLM_CUDA,
    _rule("densemlp", "vLLM glm5next DenseMlp; its scale body is inferred",
          amax_floor=1e-10, ue8m0={"scale_floor": 1e-10, **UP}),
    _rule("vllm-cuda-div", "vLLM csrc per_token_group_quant.cu before 0.33",
          amax_floor=1e-10, apply="quotient", clamp="drops-nan",
          ue8m0={"scale_floor": 1e-10, **UP_LOG2}),
    _rule("vllm-triton", "vLLM fp8_utils.py, Triton fallback",
          amax_floor=1e-10, scale="product", apply="quotient", clamp="drops-nan", ue8m0=UP_LOG2),
    _rule("vllm-triton-packed", "vLLM fp8_utils.py, fused silu with packed scales",
          scale_floor=1e-10, apply="quotient", clamp="drops-nan", ue8m0=UP_LOG2),
    _rule("vllm-native", "vLLM input_quant_fp8.py in torch",
          nan="kept", scale_floor=NATIVE_FLOOR, apply="quotient", clamp="keeps-nan",
          ue8m0=UP_LOG2),
    _rule("vllm-weight-block", "vLLM utils/deep_gemm.py per_block_cast_to_fp8, in torch",
          nan="kept", amax_floor=1e-4, saturate=False, ue8m0=UP_LOG2),
    _rule("glm-megamoe-1x32", "vLLM glm5next mega_moe.py, in torch, groups of 32",
          nan="kept", amax_floor=1e-30, apply="quotient", saturate=False, ue8m0=UP_LOG2),
    _rule("vllm-batch-invariant", "vLLM csrc/batch_invariant",
          amax_floor=1e-10, apply="quotient", clamp="drops-nan",
          ue8m0={"scale": "product", "apply": "exponent", **UP}),
    _rule("deepgemm-python", "DeepGEMM utils/math.py, in torch",
          nan="kept", amax_floor=1e-4, saturate=False, ue8m0={"power_of_two": powers.UP_FINITE}),
    _ue8m0_only("deepgemm-device", "DeepGEMM common/math.cuh (MegaMoE)",
                scale="product", power_of_two=powers.UP, apply="exponent"),
    _rule("sglang-cuda", "SGLang per_token_group_quant_8bit_v2.cu",
          amax_floor=1e-10, scale="product", apply="factor", clamp="drops-nan",
          ue8m0={"apply": "exponent", **UP}),
    _rule("sglang-cuda-v1", "SGLang per_token_group_quant_8bit.cu",
          amax_floor=1e-10, scale="product", apply="factor",
          ue8m0={"apply": "exponent", **UP}),
    _ue8m0_only("sglang-cuda-rowmajor-ue8m0",
                "SGLang v2, row-major: codes by the exact scale, the rounded one stored",
                amax_floor=1e-10, scale="product", power_of_two=powers.UP, apply="factor",
                clamp="drops-nan"),
    _rule("sglang-triton", "SGLang fp8_kernel.py, row-major (its ue8m0 is column-major only)",
          amax_floor=1e-10, clamp="drops-nan", ue8m0={"apply": "quotient", **UP_LOG2}),
    _rule("sglang-triton-colmajor", "SGLang fp8_kernel.py, column-major",
          amax_floor=1e-10, apply="quotient", clamp="drops-nan", ue8m0=UP_LOG2),
    _rule("sglang-dsv4", "SGLang silu_and_mul_masked_post_quant.cuh",
          amax_floor=1e-10, ue8m0=UP),
    _rule("flashinfer-cutile",
          "FlashInfer cuTile quantiser, row-major (its ue8m0 is column-major only)",
          amax_floor=1e-10, clamp="drops-nan",
          ue8m0={"scale_floor": 1e-10, "apply": "quotient", **UP_LOG2}),
    _rule("flashinfer-cutile-colmajor", "FlashInfer cuTile quantiser, column-major",
          amax_floor=1e-10, apply="quotient", clamp="drops-nan",
          ue8m0={"scale_floor": 1e-10, **UP_LOG2}),
    _rule("trtllm-1x128", "TensorRT-LLM fp8_blockscale_gemm_kernel.cuh",
          factor=FACTOR_OR_ONE, scale="from-factor", apply="factor"),
    _rule("deepseek-v3-ref", "DeepSeek-V3 inference/kernel.py, in Triton", apply="quotient"),
    _rule("deepseek-v32-ref", "tilelang examples/deepseek_v32/inference/kernel.py",
          amax_floor=1e-4, scale="product", apply="quotient", clamp="drops-nan", ue8m0=UP),
    _rule("transformer-engine", "TransformerEngine recipe_common.cuh, epsilon 0",
          factor=FACTOR_GUARDED, scale="from-factor", apply="factor",
          ue8m0={"factor": FACTOR_GUARDED_POWER}),
    _rule("transformers-act", "kernels-community finegrained-fp8, with its later floor",
          scale_floor=1e-12, apply="quotient"),
    _ue8m0_only("mx-floor", "OCP MX: 2^(floor(log2 amax) - 8)", scale=powers.MX_FLOOR),
    _ue8m0_only("mx-ceil-int", "vLLM Kimi K3 primitives, mx_exponent", scale=powers.MX_CEIL),
    _rule("rocm-fnuz", "vLLM on ROCm: vllm-cuda-033 with e4m3fnuz codes up to 224",
          amax_floor=1e-10, largest=224.0, clamp="drops-nan", fnuz=True,
          ue8m0={"scale_floor": 1e-10, **UP}),
)  # fmt: skip
#: every rule by its name
RULES: Mapping[str, ScaleRule] = MappingProxyType({rule.name: rule for rule in RULES_IN_ORDER})


def rule_named(rule: str | ScaleRule) -> ScaleRule:
    """A rule by name; a `ScaleRule` comes back as it is."""
    if isinstance(rule, ScaleRule):
        return rule
    if rule not in RULES:
        raise InvalidInput("rule", repr(rule), f"there are {', '.join(RULES)}")
    return RULES[rule]


def quantize(m: Any, x: Any, scaling: Scaling, source: np.dtype = FLOAT32.dtype) -> tuple[Any, Any]:
    """x [.., group] float32 -> codes [.., group] float8_e4m3fn, scales [..] float32.

    m: an arithmetic, `refkern.arithmetic.Bits` or its relatives.  source: the dtype that x was
    widened from; its largest finite value bounds a factor that overflows (transformer-engine).
    """
    largest = m.constant(scaling.largest)
    larger = m.fmax if scaling.nan == "ignored" else m.maximum
    amax = m.largest_magnitude(x, scaling.nan)
    amax = larger(amax, m.constant(scaling.amax_floor))

    factor: Any = None
    if scaling.factor is not None:
        limit = m.constant(_largest_finite(source))
        factor = m.apply(scaling.factor, amax, largest, limit)
    elif scaling.apply == "factor":
        factor = m.div(largest, amax)

    if isinstance(scaling.scale, Function):
        scale = m.apply(scaling.scale, amax)
    elif scaling.scale == "quotient":
        scale = m.div(amax, largest)
    elif scaling.scale == "product":
        scale = m.mul(amax, m.constant(1 / scaling.largest))
    else:
        scale = m.div(m.constant(1), factor)
    scale = larger(scale, m.constant(scaling.scale_floor))
    if scaling.power_of_two is not None:
        scale = m.apply(scaling.power_of_two, scale)

    if scaling.apply == "quotient":
        value = m.div(x, scale[..., None])
    elif scaling.apply == "inverse":
        value = m.mul(x, m.div(m.constant(1), scale)[..., None])
    elif scaling.apply == "exponent":
        value = m.mul(x, m.apply(powers.RECIPROCAL, scale)[..., None])
    else:
        assert factor is not None
        value = m.mul(x, factor[..., None])

    if scaling.clamp == "drops-nan":
        value = m.fmin(m.fmax(value, m.negative(largest)), largest)
    elif scaling.clamp == "keeps-nan":
        value = m.minimum(m.maximum(value, m.negative(largest)), largest)
    if scaling.fnuz:
        value = m.mul(value, m.constant(2))
    return m.cast(value, FLOAT8_E4M3FN.dtype, saturate=scaling.saturate), scale


def _largest_finite(source: np.dtype) -> float:
    fmt = format_of(source)
    return float(from_codes(np.array(fmt.max_finite, fmt.code_dtype), fmt))


def quantize_fp8(
    x: Any,
    *,
    group: int = 128,
    rule: str | ScaleRule = "densemlp",
    scale_format: str = "ue8m0",
) -> tuple[Any, Any]:
    """Quantise to fp8 codes with one scale per ``group`` neighbours of the last axis.

    x: [.., K] bfloat16, float16 or float32, any strides; leading axes are rows, experts, anything.
    group: elements that share a scale; the last group of a row may be shorter.
    rule: a name from `RULES`, or a `ScaleRule`.
    scale_format: "ue8m0" (powers of two) or "float32"; a rule may have only one of them.

    Returns codes, [.., K] float8_e4m3fn (float8_e4m3fnuz for rule rocm-fnuz), and scales,
    [.., ceil(K / group)], float8_e8m0fnu or float32.  A value is about code * scale.
    NaN, infinity, -0 and groups of zeros are inputs; what becomes of them is the rule's matter.

    Raises InvalidInput for another dtype, group, rule or scale_format.
    Semantics: the sources named in `RULES`.
    """
    array, group = checked_groups(x, group)
    scaling = rule_named(rule).scaling(scale_format)
    *lead, k = array.shape
    flat = array.reshape(int(np.prod(lead)), k)
    code_bytes, scales = _run(flat, group, scaling)
    return _finish(
        x, code_bytes.reshape(array.shape), scales.reshape(*lead, -(-k // group)),
        scaling, scale_format,
    )  # fmt: skip


def checked_groups(x: Any, group: Any) -> tuple[np.ndarray, int]:
    """x as an array that `quantize_fp8` takes, and the group's size, or InvalidInput."""
    array = arguments.as_array("x", x)
    if find_format(array.dtype) not in SOURCES or array.ndim < 1:
        allowed = f"[.., K] in {', '.join(map(str, SOURCES))} is needed"
        raise InvalidInput("x", f"{array.dtype} {list(array.shape)}", allowed)
    return array, arguments.integer("group", group, at_least=1)


def quantize_fp8_blocks(
    w: Any,
    *,
    block: tuple[int, int] = (128, 128),
    rule: str | ScaleRule = "vllm-weight-block",
    scale_format: str = "ue8m0",
) -> tuple[Any, Any]:
    """Quantise matrices to fp8 codes with one scale per block of rows and columns.

    w: [.., rows, columns] bfloat16, float16 or float32; leading axes are experts.
    block: rows and columns that share a scale; the last blocks may be smaller.  The scale of
        element (r, c) is scales[.., r // block[0], c // block[1]].

    Returns codes like w, and scales [.., ceil(rows / block[0]), ceil(columns / block[1])].
    The rest as in `quantize_fp8`.
    """
    array = arguments.as_array("w", w)
    if find_format(array.dtype) not in SOURCES or array.ndim < 2:
        allowed = f"[.., rows, columns] in {', '.join(map(str, SOURCES))} is needed"
        raise InvalidInput("w", f"{array.dtype} {list(array.shape)}", allowed)
    if not isinstance(block, Sequence) or len(block) != 2:
        raise InvalidInput("block", repr(block), "two integers are needed")
    high, wide = (arguments.integer("block", size, at_least=1) for size in block)
    scaling = rule_named(rule).scaling(scale_format)
    *lead, rows, columns = array.shape
    down, across = -(-rows // high), -(-columns // wide)
    filled = np.zeros((*lead, down * high, across * wide), array.dtype)
    filled[..., :rows, :columns] = array
    # A block is a group once its rows lie behind each other.
    split = filled.reshape(-1, down, high, across, wide)
    blocks = split.transpose(0, 1, 3, 2, 4).reshape(-1, high * wide)
    code_bytes, scales = _run(blocks, high * wide, scaling)
    back = code_bytes.reshape(-1, down, across, high, wide).transpose(0, 1, 3, 2, 4)
    restored = back.reshape(filled.shape)[..., :rows, :columns]
    return _finish(
        w, np.ascontiguousarray(restored), scales.reshape(*lead, down, across),
        scaling, scale_format,
    )  # fmt: skip


def reference(
    x: np.ndarray,
    *,
    group: int = 128,
    rule: str | ScaleRule = "densemlp",
    scale_format: str = "ue8m0",
) -> tuple[np.ndarray, np.ndarray]:
    """`quantize_fp8` by the numpy reference: the same bits."""
    scaling = rule_named(rule).scaling(scale_format)
    m = Bits()
    with np.errstate(all="ignore"):
        found, scales = quantize(m, m.groups(widen(x), group), scaling, x.dtype)
    flat = found.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    plain = codes(canonical(np.ascontiguousarray(flat)))
    return _finish(x, plain, canonical(scales), scaling, scale_format)


def _run(flat: np.ndarray, group: int, scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
    """[rows, K] -> e4m3fn code bytes [rows, K], float32 scales [rows, groups], by the kernel."""
    from refkern.compiled.quantize import quantize_rows

    return quantize_rows(flat, group, scaling)


def _finish(
    given: Any, code_bytes: np.ndarray, scales: np.ndarray, scaling: Scaling, scale_format: str
) -> tuple[Any, Any]:
    """Code bytes and float32 scales in the dtypes and the kind of array that the caller gets."""
    if scaling.fnuz:
        # Twice the value has the same code one bias further; -0 does not exist, NaN is 0x80.
        code_bytes = np.where(code_bytes == 0x80, np.uint8(0), code_bytes)
        nan = (code_bytes & 0x7F) == 0x7F
        coded = np.where(nan, np.uint8(0x80), code_bytes).view(ml_dtypes.float8_e4m3fnuz)
    else:
        coded = from_codes(code_bytes, FLOAT8_E4M3FN)
    made = scales if scale_format == "float32" else scale_bytes(scales)
    if arguments.is_torch(given):
        return arguments.numpy_to_torch(coded), arguments.numpy_to_torch(made)
    return coded, made


def scale_bytes(scales: np.ndarray) -> np.ndarray:
    """float32 powers of two as float8_e8m0fnu, by their exponent field, unchecked.

    As kernels store them: +0 becomes byte 0 (which e8m0 reads as 2^-127, and so does 2^-127
    itself), infinity and NaN byte 255 (which it reads as NaN).
    """
    fields = np.ascontiguousarray(scales).view(np.uint32) >> np.uint32(23)
    return from_codes(fields.astype(np.uint8), FLOAT8_E8M0FNU)


# ------------------------------------------------------------------ are codes and scales of a pair


@dataclass(frozen=True, eq=False)
class Consistency:
    """Which groups' codes are a rounding of x / scale with the scale that is stored."""

    #: bool [.., groups]
    consistent: np.ndarray
    #: "" where every group is
    says: str

    def __bool__(self) -> bool:
        return bool(self.consistent.all())


def check_codes(x: Any, coded: Any, scales: Any, *, group: int = 128) -> Consistency:
    """Whether codes and scales belong together: each code a nearest e4m3 value of x / scale.

    x: [.., K] bfloat16, float16 or float32; coded: [.., K] float8_e4m3fn; scales:
    [.., ceil(K / group)] float32 or float8_e8m0fnu, whatever the rule that made them.

    A reciprocal, a product and a rounded 1/448 may move x / scale by 2^-21 of itself, and a code
    next to a midpoint with it; more is a contradiction.  Beyond 448 the code is +-448 or NaN.
    Groups whose scale is not finite and positive, and elements that are not finite, say nothing.

    Codes made with the exact scale beside a scale that was rounded up afterwards (a fault that has
    been reported of several quantisers) are named as such.
    """
    array, coded = arguments.as_array("x", x), arguments.as_array("coded", coded)
    scale = arguments.as_array("scales", scales)
    group = arguments.integer("group", group, at_least=1)
    if find_format(array.dtype) not in SOURCES:
        raise InvalidInput("x", array.dtype, f"allowed are {', '.join(map(str, SOURCES))}")
    if find_format(coded.dtype) is not FLOAT8_E4M3FN or coded.shape != array.shape:
        given = f"{coded.dtype} {list(coded.shape)}"
        raise InvalidInput("coded", given, f"float8_e4m3fn {list(array.shape)} is needed")
    shape = (*array.shape[:-1], -(-array.shape[-1] // group))
    if find_format(scale.dtype) not in (FLOAT32, FLOAT8_E8M0FNU) or scale.shape != shape:
        given = f"{scale.dtype} {list(scale.shape)}"
        raise InvalidInput("scales", given, f"float32 or float8_e8m0fnu {list(shape)} is needed")
    m = Bits()
    value = m.groups(widen(array), group).astype(np.float64)
    step = widen(np.ascontiguousarray(scale)).astype(np.float64)[..., None]
    made = m.groups(np.ascontiguousarray(coded), group)
    usable = np.isfinite(step) & (step > 0)
    with np.errstate(all="ignore"):
        quotient = np.where(usable & np.isfinite(value), value / np.where(usable, step, 1), 0)
    skip = ~usable | ~np.isfinite(value)
    fits = skip | _is_nearest(quotient, made)
    consistent = fits.all(axis=-1)
    return Consistency(consistent, _explain(consistent, quotient, made, skip))


#: the finite non-negative values of e4m3, and the midpoints between neighbours
_VALUES = widen(from_codes(np.arange(0x7F, dtype=np.uint8), FLOAT8_E4M3FN)).astype(np.float64)
_LOWER = np.concatenate([[0.0], (_VALUES[1:] + _VALUES[:-1]) / 2])
_UPPER = np.concatenate([(_VALUES[1:] + _VALUES[:-1]) / 2, [np.inf]])
_SLACK = 2.0**-21


def _is_nearest(quotient: np.ndarray, made: np.ndarray) -> np.ndarray:
    magnitude = codes(made) & np.uint8(0x7F)
    nan = magnitude == 0x7F
    index = np.where(nan, 0, magnitude)
    size = np.abs(quotient)
    inside = (size >= _LOWER[index] * (1 - _SLACK)) & (size <= _UPPER[index] * (1 + _SLACK))
    same_sign = (index == 0) | ((codes(made) >= 0x80) == (quotient < 0))
    return np.where(nan, size > 464 * (1 - _SLACK), inside & same_sign)


def _explain(
    consistent: np.ndarray, quotient: np.ndarray, made: np.ndarray, skip: np.ndarray
) -> str:
    if consistent.all():
        return ""
    wrong = np.argwhere(~consistent)
    first = tuple(map(int, wrong[0]))
    text = f"codes inconsistent with the stored scale in {len(wrong)} of {consistent.size} groups"
    largest = float(np.abs(quotient[first]).max())
    coded = np.abs(widen(made[first]).astype(np.float64))
    text += (
        f"; group {list(first)}: its largest |x| / scale is {largest:g}, "
        f"its largest code {np.nanmax(coded):g}"
    )
    if largest > 0:
        exact = quotient[first] * (448.0 / largest)
        if (skip[first] | _is_nearest(exact, made[first])).all():
            text += ": made with the exact scale, the stored one was rounded up afterwards"
    return text
