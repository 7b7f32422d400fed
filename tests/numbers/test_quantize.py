"""The fp8 quantiser: golden values, reported faults, every rule by kernel and by reference."""

from __future__ import annotations

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import refkern
from refkern import powers, quantize
from refkern.compiled.bits import jit
from refkern.quantize import RULES, SCALE_FORMATS, check_codes, quantize_fp8_blocks
from refkern.scale_layouts import block_scales, broadcast_blocks, pack, to_ue8m0, unpack

BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
RULES_AND_FORMATS = [
    (name, scale_format)
    for name, rule in RULES.items()
    for scale_format in SCALE_FORMATS
    if getattr(rule, scale_format) is not None
]


def group(*values: float, dtype: type = np.float32) -> np.ndarray:
    """[1, 128]: the values, then zeros."""
    filled = np.zeros((1, 128), np.float32)
    filled[0, : len(values)] = values
    return filled.astype(dtype)


def float32(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def code_bytes(x: np.ndarray, **how: str) -> tuple[list[str], np.ndarray]:
    codes, scales = refkern.quantize_fp8(x, **how)
    return [f"{c:02x}" for c in codes.view(np.uint8)[0]], scales


def raw(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


# ---------------------------------------------------------------------------------- golden values


@pytest.mark.parametrize(
    ("amax", "byte"),
    [
        (0.0, 94), (4.48e-8, 94), (1e-4, 105), (0.875, 118), (1.75, 119), (2.0, 120), (3.5, 120),
        (7.0, 121), (14.0, 122), (224.0, 126), (225.0, 127), (448.0, 127), (450.0, 128),
        (672.0, 128), (65504.0, 135), (3.3895e38, 247), (np.inf, 255),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rule", ["densemlp", "vllm-cuda-033", "vllm-cuda-div"])
def test_ue8m0_byte_of_an_amax(rule: str, amax: float, byte: int) -> None:
    for x in (group(amax), group(-amax)):
        _, scales = refkern.quantize_fp8(x, rule=rule)
        assert scales.dtype == E8M0
        assert scales.view(np.uint8).tolist() == [[byte]]


@pytest.mark.parametrize(
    ("amax", "scale", "inverse"),
    [
        (2.0, 0x3B924925, 0x435FFFFF), (225.0, 0x3F009249, 0x3FFEDCBB),
        (672.0, 0x3FC00000, 0x3F2AAAAB), (65504.0, 0x431236DB, 0x3BE01C04),
        (0.0, 0x2A7B5123, 0x5482629A),
    ],
)  # fmt: skip
def test_float32_scale_of_an_amax(amax: float, scale: int, inverse: int) -> None:
    _, scales = refkern.quantize_fp8(group(amax), scale_format="float32")
    assert scales.view(np.uint32).tolist() == [[scale]]
    assert (np.float32(1) / scales).view(np.uint32).tolist() == [[inverse]]


def test_constants() -> None:
    assert np.float32(1e-10).view(np.uint32) == 0x2EDBE6FF
    assert np.float32(1 / 448).view(np.uint32) == 0x3B124925


def test_codes_of_values_beside_the_format_edges() -> None:
    """Scale 1 (amax 448), so a code is the cast of the value itself."""
    tiny = 2.0**-10
    values = (
        (0.0, "00"), (-0.0, "80"), (tiny, "00"), (np.nextafter(np.float32(tiny), 1), "01"),
        (-tiny, "80"), (2.0**-9, "01"), (7.5 * 2.0**-9, "08"), (2.0**-6, "08"), (448.0, "7e"),
    )  # fmt: skip
    found, _ = code_bytes(group(*(value for value, _ in values)))
    assert found[: len(values)] == [code for _, code in values]
    # mx-floor maps amax 464 to scale 1 as well: what is above 448 saturates.
    found, scales = code_bytes(group(464.0, 463.0, -464.0), rule="mx-floor")
    assert scales.view(np.uint8)[0, 0] == 127
    assert found[:3] == ["7e", "7e", "fe"]


def test_codes_of_a_line() -> None:
    x = np.linspace(-3, 3, 128).astype(np.float32).astype(BF16)[None]
    found, scales = code_bytes(x)
    assert scales.astype(np.float32)[0, 0] == 2.0**-7
    assert found[:4] == ["fc", "fc", "fc", "fb"]
    assert sum(int(c, 16) for c in found) == 22632
    found, scales = code_bytes(x, scale_format="float32")
    assert scales[0, 0] == np.float32(0.0066964286)
    assert found[:4] == ["fe", "fe", "fe", "fd"]
    assert sum(int(c, 16) for c in found) == 22856


def test_ue8m0_byte_of_every_bfloat16_amax() -> None:
    """Against the closed form max(94, Eb - 8 + (m7 > 0x60)) of the semantics, and its relatives:
    how the scale is made never changes the byte of a bfloat16 amax."""
    bits = np.arange(0x7F80, dtype=np.uint16)
    x = bits.view(BF16)[:, None]
    exponent, mantissa = bits.astype(int) >> 7, bits.astype(int) & 127
    want = np.maximum(94, exponent - 8 + (mantissa > 0x60))
    same_rules = ("densemlp", "vllm-cuda-033", "vllm-cuda-div", "vllm-triton-packed")
    for rule in same_rules:
        _, scales = refkern.quantize_fp8(x, rule=rule)
        np.testing.assert_array_equal(scales.view(np.uint8)[:, 0], want, err_msg=rule)
    by_bits = refkern.quantize_fp8(x, rule="sglang-dsv4")[1].view(np.uint8)
    for rule in ("vllm-triton", "sglang-triton", "sglang-cuda"):
        found = refkern.quantize_fp8(x, rule=rule)[1].view(np.uint8)
        np.testing.assert_array_equal(found, by_bits, err_msg=rule)


# --------------------------------------------------------------------------------- powers of two

EXTREMES = np.concatenate(
    [
        (np.arange(256, dtype=np.int64)[:, None] * (1 << 23) + np.arange(-60, 61))
        .clip(0, 0x7F800001)
        .reshape(-1),
        np.random.default_rng(1).integers(0, 0x7F800000, 20_000),
    ]
).astype(np.uint32)


@pytest.mark.parametrize(
    "function",
    [
        powers.UP, powers.UP_FINITE, powers.UP_LOG2, powers.DOWN, powers.RECIPROCAL,
        powers.MX_FLOOR, powers.MX_CEIL,
    ],
    ids=lambda f: f.name,
)  # fmt: skip
def test_powers_of_two_by_numpy_and_numba(function: powers.Function) -> None:
    x = EXTREMES.view(np.float32)
    if function in (powers.MX_FLOOR, powers.MX_CEIL, powers.RECIPROCAL, powers.DOWN):
        x = x[~np.isnan(x)]  # an amax that ignores NaN, and scales, are none
    compiled = function.load_compiled()

    @jit
    def run(x: np.ndarray, out: np.ndarray) -> None:
        for i in range(x.size):
            out[i] = compiled(x[i])

    out = np.empty_like(x)
    run(x, out)
    want = function(x)
    assert want.dtype == np.float32
    np.testing.assert_array_equal(out, want)


def test_power_by_log2_is_that_of_a_correctly_rounded_log2() -> None:
    """exp2(ceil(log2 x)) with mpmath's log2, rounded once to float32."""
    mpmath = pytest.importorskip("mpmath")
    mantissas = (0, 1, 2, 3, 5, 6, 11, 12, 22, 23, 44, 45, 1 << 22, (1 << 23) - 1)
    with mpmath.workprec(120):
        for exponent in range(-149, 128):
            for mantissa in mantissas:
                x = np.float32(np.ldexp(1.0 + mantissa * 2.0**-23, exponent))
                if not np.isfinite(x):
                    continue
                log2 = mpmath.log(mpmath.mpf(float(x)), 2)
                rounded = 0.0
                if log2:
                    quantum = mpmath.mpf(2) ** (int(mpmath.floor(mpmath.log(abs(log2), 2))) - 23)
                    rounded = float(mpmath.nint(log2 / quantum) * quantum)
                want = np.float32(min(2.0 ** int(np.ceil(rounded)), 2.0**127))
                got = powers.up_log2(np.array([x]))[0]
                assert min(got, np.float32(2.0**127)) == want, (exponent, mantissa)


def test_where_log2_hides_a_value_above_a_power_of_two() -> None:
    just_above = np.float32(float32(0x39E00001))  # 448 * 2^-20 and one ULP
    x = group(just_above)
    assert refkern.quantize_fp8(x, rule="sglang-dsv4")[1].view(np.uint8)[0, 0] == 108
    assert refkern.quantize_fp8(x, rule="sglang-triton")[1].view(np.uint8)[0, 0] == 107


# ------------------------------------------------------------------- all rules, and how they differ


def edge_rows(dtype: type) -> np.ndarray:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 300)) * np.exp2(rng.integers(-45, 45, (40, 1)))
    x[0], x[1, ::2], x[1, 1::2] = 0, -0.0, 0
    x[2, 5], x[3, 5], x[4, 6], x[5] = np.nan, np.inf, -np.inf, np.nan
    x[6], x[7], x[8, :3], x[8, 3:] = 3.389e38, 1e-40, 1e-45, 0
    x[9, 7], x[9, 8] = np.nan, np.inf
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(dtype)


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_kernel_has_the_bits_of_the_reference(dtype: type) -> None:
    x = edge_rows(dtype)
    for rule, scale_format in RULES_AND_FORMATS:
        how = {"rule": rule, "scale_format": scale_format}
        codes, scales = refkern.quantize_fp8(x, **how)
        want_codes, want_scales = quantize.reference(x, **how)
        assert codes.dtype == want_codes.dtype
        np.testing.assert_array_equal(raw(codes), raw(want_codes), err_msg=str(how))
        np.testing.assert_array_equal(raw(scales), raw(want_scales), err_msg=str(how))


#: groups on which rules part: name -> the first values of 128
WITNESSES = {
    "zeros": (0.0, -0.0),
    "nan": (3.0, np.nan, -2.0),
    "infinity": (3.0, np.inf, -2.0),
    "tiny": (1e-40, -3e-41),
    "midpoints": (392.0, 43.75, 50.75, -87.5, 101.5, 203.0),
    "one-above": (float32(0x39E00001), 1e-4, 1e-5),
    "nine-above": (float32(0x39E00009), 1e-4, 1e-5),
}
#: rules with the same arithmetic: the literals are equal
SAME = {
    "float32": [
        {"vllm-cuda-033", "sglang-triton", "flashinfer-cutile"},
        {"densemlp", "sglang-dsv4"},
        {"vllm-cuda-div", "vllm-batch-invariant", "sglang-triton-colmajor",
         "flashinfer-cutile-colmajor"},
        {"vllm-weight-block", "deepgemm-python"},
    ],
    "ue8m0": [
        {"vllm-cuda-div", "flashinfer-cutile", "flashinfer-cutile-colmajor",
         "vllm-triton-packed"},
        {"vllm-batch-invariant", "sglang-cuda"},
        {"sglang-triton", "sglang-triton-colmajor"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("scale_format", SCALE_FORMATS)
def test_every_two_rules_differ_or_are_the_same(scale_format: str) -> None:
    x = np.concatenate([group(*values) for values in WITNESSES.values()])
    found = {}
    for name, format_of_rule in RULES_AND_FORMATS:
        if format_of_rule == scale_format:
            codes, scales = refkern.quantize_fp8(x, rule=name, scale_format=scale_format)
            found[name] = (raw(codes).tobytes(), raw(scales).tobytes())
    for a, b in itertools.combinations(found, 2):
        same = any({a, b} <= names for names in SAME[scale_format])
        assert (found[a] == found[b]) == same, (a, b)


def test_same_rules_have_the_same_arithmetic() -> None:
    """Equal literals; vllm-triton-packed lacks the floor of the amax, which cannot be seen: below
    it, both scales are the scale's floor, and above it there is none."""
    for scale_format, sets in SAME.items():
        for names in sets:
            scalings = {n: RULES[n].scaling(scale_format) for n in names}
            if "vllm-triton-packed" in names:
                packed = scalings["vllm-triton-packed"]
                assert packed.amax_floor == 0.0
                floor = np.float32(packed.scale_floor)
                assert np.float32(1e-10) / np.float32(448) < floor
                scalings["vllm-triton-packed"] = replace(packed, amax_floor=1e-10)
            assert len(set(scalings.values())) == 1, names


# -------------------------------------------------------------------------------- reported faults


def test_zero_block_has_zero_codes_and_a_finite_scale() -> None:
    """Fault 13.  Its byte 85 is a rule without a floor of the scale; densemlp's floor makes 94."""
    x = group()
    x[0, 5] = -0.0
    for rule, bits, byte in (
        ("deepgemm-python", 0x346FACAD, 105),
        ("sglang-dsv4", 0x2A7B5123, 85),
        ("densemlp", 0x2A7B5123, 94),
    ):
        found, scales = code_bytes(x, rule=rule)
        assert found == ["80" if i == 5 else "00" for i in range(128)]
        assert scales.view(np.uint8)[0, 0] == byte
        found, scales = code_bytes(x, rule=rule, scale_format="float32")
        assert found == ["80" if i == 5 else "00" for i in range(128)]
        assert scales.view(np.uint32)[0, 0] == bits
    floored = replace(RULES["sglang-dsv4"].ue8m0, amax_floor=1e-12)
    floored_float32 = replace(RULES["sglang-dsv4"].float32, amax_floor=1e-12)
    custom = replace(RULES["sglang-dsv4"], ue8m0=floored, float32=floored_float32)
    assert code_bytes(x, rule=custom)[1].view(np.uint8)[0, 0] == 79
    scales = code_bytes(x, rule=custom, scale_format="float32")[1]
    assert scales.view(np.uint32)[0, 0] == 0x2720D7C5


def test_one_value_in_a_matrix_of_zeros() -> None:
    """Fault 13, the weights."""
    w = np.zeros((384, 128), np.float32)
    w[200, 7] = -2.5
    codes, scales = quantize_fp8_blocks(w, scale_format="float32")
    want = np.zeros((384, 128), np.uint8)
    want[200, 7] = 0xFE
    np.testing.assert_array_equal(codes.view(np.uint8), want)
    assert scales.shape == (3, 1)
    assert np.isfinite(scales).all()
    assert (scales > 0).all()


def test_codes_are_made_with_the_stored_scale() -> None:
    """Fault 15."""
    x = group(3, 1, 0.5, -2)
    found, scales = code_bytes(x)
    assert found[:4] == ["7c", "70", "68", "f8"]
    assert scales.astype(np.float32)[0, 0] == 2.0**-7
    found, scales = code_bytes(x, scale_format="float32")
    assert found[:4] == ["7e", "71", "69", "f9"]
    values = np.array([int(c, 16) for c in found], np.uint8).view(E4M3).astype(np.float32)
    np.testing.assert_allclose(
        values[:4] * scales[0, 0], [3, 0.96428573, 0.48214287, -1.9285715], rtol=2e-6
    )


def test_codes_inconsistent_with_the_stored_scale_are_named() -> None:
    """Fault 15: what a verifier has to say, and the rule that does so on purpose."""
    x = group(3, 1, 0.5, -2)
    right = refkern.quantize_fp8(x)
    assert check_codes(x, *right)
    assert check_codes(x, *right).says == ""
    wrong = np.array([[0x7E, 0x71, 0x69, 0xF9, *([0] * 124)]], np.uint8).view(E4M3)
    found = check_codes(x, wrong, right[1])
    assert not found
    assert "codes inconsistent with the stored scale in 1 of 1 groups" in found.says
    assert "largest |x| / scale is 384, its largest code 448" in found.says
    assert "exact scale" in found.says
    mismatched = refkern.quantize_fp8(x, rule="sglang-cuda-rowmajor-ue8m0")
    np.testing.assert_array_equal(raw(mismatched[0]), raw(wrong))
    assert not check_codes(x, *mismatched)


def test_every_other_rule_is_consistent() -> None:
    x = edge_rows(BF16)[10:, :]
    for rule, scale_format in RULES_AND_FORMATS:
        if rule in ("sglang-cuda-rowmajor-ue8m0", "rocm-fnuz"):
            continue  # on purpose; other codes
        codes, scales = refkern.quantize_fp8(x, rule=rule, scale_format=scale_format)
        found = check_codes(x, codes, scales)
        assert found, f"{rule} {scale_format}: {found.says}"
    # One code further is a contradiction.
    codes, scales = refkern.quantize_fp8(x)
    raw_codes = codes.view(np.uint8).copy()
    raw_codes[3, 7] ^= 1
    found = check_codes(x, raw_codes.view(E4M3), scales)
    assert np.argwhere(~found.consistent).tolist() == [[3, 0]]


def test_nan_and_infinity_by_rule() -> None:
    """Fault 17: a documented policy, wherever in the group the NaN is.

    densemlp leaves the NaN out of the scale and writes the code 0x7f, as the kernel does; the
    fault calls the result of clamping rules ("NaN turned into 448") wrong, and so does nobody who
    has to reproduce them: they are here under their own names.
    """
    for position in (0, 1, 127):
        x = group(1, 1, -3, 2)
        x[0, position] = np.nan
        found, scales = code_bytes(x)
        assert found[position] == "7f"
        assert found.count("7f") == 1
        assert scales.view(np.uint8)[0, 0] == 120
        found, scales = code_bytes(x, rule="vllm-native")
        assert set(found) == {"7f"}
        assert scales.view(np.uint8)[0, 0] == 255
        found, _ = code_bytes(x, rule="vllm-cuda-033")
        assert found[position] == "fe"
    for infinity in (np.inf, -np.inf):
        found, scales = code_bytes(group(1, infinity, -3, 2))
        assert found[:4] == ["00", "7f", "80", "00"]
        assert scales.view(np.uint8)[0, 0] == 255
        found, scales = code_bytes(group(1, infinity, -3, 2), rule="vllm-cuda-033")
        assert found[:4] == ["00", "fe", "80", "00"]  # inf * 0 is NaN, and the clamp makes -448


def test_partial_blocks() -> None:
    """Fault 19."""
    w = np.ones((130, 128), np.float32)
    w[128:] = 4
    codes, scales = quantize_fp8_blocks(w, rule="densemlp", scale_format="float32")
    assert scales.shape == (2, 1)
    np.testing.assert_array_equal(scales[:, 0], np.array([1, 4], np.float32) / np.float32(448))
    assert set(codes.view(np.uint8).reshape(-1)) == {0x7E}
    x = np.full((1, 200), 448, np.float32)
    x[0, :128] = 1
    _, scales = refkern.quantize_fp8(x, scale_format="float32")
    assert scales.view(np.uint32).tolist() == [[0x3B124925, 0x3F800000]]


def test_ragged_and_stacked_blocks() -> None:
    rng = np.random.default_rng(3)
    w = rng.standard_normal((2, 3, 130, 200)).astype(BF16)
    codes, scales = quantize_fp8_blocks(w, rule="densemlp")
    assert codes.shape == w.shape
    assert scales.shape == (2, 3, 2, 2)
    block = w[1, 2, 128:, 128:].reshape(1, -1)
    want_codes, want_scales = refkern.quantize_fp8(block, group=block.size)
    np.testing.assert_array_equal(raw(codes[1, 2, 128:, 128:]).reshape(-1), raw(want_codes)[0])
    assert raw(scales)[1, 2, 1, 1] == raw(want_scales)[0, 0]
    wide = rng.standard_normal((2, 10944)).astype(BF16)
    assert refkern.quantize_fp8(wide)[1].shape == (2, 86)


def test_column_major_scales() -> None:
    """Fault 21."""
    scales = np.array([[1, 2, 4], [8, 16, 32]], np.float32)
    assert pack(scales, "row-major").ravel(order="K").tolist() == [1, 2, 4, 8, 16, 32]
    columns = pack(scales, "column-major")
    assert columns.ravel(order="K").tolist() == [1, 8, 2, 16, 4, 32]
    np.testing.assert_array_equal(unpack(columns, "column-major", groups=3), scales)
    with pytest.raises(refkern.InvalidInput, match="strides"):
        unpack(columns, "row-major", groups=3)
    square = np.array([[1, 2], [4, 8]], np.float32)
    with pytest.raises(refkern.InvalidInput, match="strides"):
        unpack(square, "column-major", groups=2)
    padded = pack(np.arange(6, dtype=np.float32).reshape(3, 2) + 1, "tma-aligned")
    assert padded.strides == (4, 16)
    memory = np.lib.stride_tricks.as_strided(padded, (8,), (4,))
    assert memory.tolist() == [1, 3, 5, 0, 2, 4, 6, 0]  # element (2, 1) at index 6
    np.testing.assert_array_equal(unpack(padded, "tma-aligned", groups=2)[2], [5, 6])


# -------------------------------------------------------------------------------------- layouts


def test_packed_ue8m0() -> None:
    scales = np.ldexp(np.float32(1), np.arange(15).reshape(3, 5) - 7)
    packed = pack(scales, "packed-ue8m0")
    assert packed.dtype == np.int32
    assert packed.shape == (3, 2)
    assert packed.strides == (4, 16)
    # Row 1 has the bytes 125 .. 129; the first group is in the lowest byte.
    assert packed.view(np.uint32)[1].tolist() == [0x807F7E7D, 0x81]
    memory = np.lib.stride_tricks.as_strided(packed, (8,), (4,))
    assert memory[[3, 7]].tolist() == [0, 0]  # the padding row
    back = unpack(packed, "packed-ue8m0", groups=5)
    assert back.dtype == E8M0
    np.testing.assert_array_equal(back.astype(np.float32), scales)


def test_packed_weight_scales() -> None:
    blocks = np.ldexp(np.float32(1), np.arange(6).reshape(2, 3) - 3)
    rows = broadcast_blocks(blocks, 130)
    assert rows.shape == (130, 3)
    packed = pack(rows, "packed-ue8m0")
    np.testing.assert_array_equal(block_scales(packed, rows=130, k=300), blocks)


@pytest.mark.parametrize("bad", [0.75, 3.0, 0.0, -1.0, np.nan, np.inf, 2.0**-128, 1 + 2.0**-23])
def test_scales_that_are_no_powers_of_two_are_refused(bad: float) -> None:
    scales = np.ones((2, 4), np.float32)
    scales[1, 2] = bad
    for convert in (to_ue8m0, lambda s: pack(s, "packed-ue8m0")):
        with pytest.raises(refkern.InvalidInput, match=r"\[1, 2\]"):
            convert(scales)


def test_every_power_of_two_becomes_its_byte() -> None:
    scales = np.ldexp(1.0, np.arange(-127, 128)).astype(np.float32)
    np.testing.assert_array_equal(to_ue8m0(scales).view(np.uint8), np.arange(255))


# -------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("how", "argument"),
    [
        ({"x": np.zeros(3)}, "x"),
        ({"x": np.float32(1)}, "x"),
        ({"group": 0}, "group"),
        ({"group": 1.5}, "group"),
        ({"rule": "densmlp"}, "rule"),
        ({"rule": "deepgemm-device", "scale_format": "float32"}, "scale_format"),
        ({"rule": "trtllm-1x128"}, "scale_format"),
        ({"scale_format": "fp32"}, "scale_format"),
    ],
)
def test_bad_arguments(how: dict, argument: str) -> None:
    with pytest.raises(refkern.InvalidInput) as error:
        refkern.quantize_fp8(**{"x": np.zeros((1, 128), np.float32), **how})
    assert error.value.argument == argument


def test_shapes_and_strides() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((6, 256)).astype(np.float32)
    codes, scales = refkern.quantize_fp8(x)
    for view in (x[::2], x[:, ::2], np.asfortranarray(x), x[::-1]):
        want = refkern.quantize_fp8(view.copy())
        got = refkern.quantize_fp8(view)
        np.testing.assert_array_equal(raw(got[0]), raw(want[0]))
        np.testing.assert_array_equal(raw(got[1]), raw(want[1]))
    stacked = refkern.quantize_fp8(x.reshape(2, 3, 256))
    np.testing.assert_array_equal(raw(stacked[0]).reshape(6, 256), raw(codes))
    np.testing.assert_array_equal(raw(stacked[1]).reshape(6, 2), raw(scales))
    assert refkern.quantize_fp8(np.zeros((0, 128), np.float32))[1].shape == (0, 1)
    assert refkern.quantize_fp8(np.zeros((3, 0), np.float32))[1].shape == (3, 0)
    one = refkern.quantize_fp8(x[0])
    np.testing.assert_array_equal(raw(one[0]), raw(codes[0]))


def test_fnuz_codes_are_half_as_large() -> None:
    """Each e4m3fnuz code's value times its scale is within half a step of x."""
    x = np.random.default_rng(5).standard_normal((4, 128)).astype(np.float32)
    x[0, 0] = -0.0
    codes, scales = refkern.quantize_fp8(x, rule="rocm-fnuz", scale_format="float32")
    assert codes.dtype == ml_dtypes.float8_e4m3fnuz
    assert codes.view(np.uint8)[0, 0] == 0  # there is no -0
    values = codes.astype(np.float32)
    assert np.abs(values).max() == 224
    step = np.maximum(np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 2.0**-7))) - 3), 2.0**-10)
    assert (np.abs(values - x / scales) <= step * 0.5001).all()
    nan = refkern.quantize_fp8(group(1, np.nan), rule="rocm-fnuz")[0].view(np.uint8)
    assert nan[0, 1] == np.float32(-224).astype(ml_dtypes.float8_e4m3fnuz).view(np.uint8)
