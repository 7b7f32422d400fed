"""Compiled code beside casts, sums and exp: bits, activations, rows, how it is compiled."""

from __future__ import annotations

import dataclasses
import pkgutil
import re
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact import all_codes, compiled, without_nan_payload

import refkern.compiled
from refkern import elementary
from refkern.arithmetic import Bits, Sigmoid, Silu
from refkern.compiled import activations, bits, casts, sums
from refkern.compiled import elementary as kernels
from refkern.compiled.bits import jit
from refkern.compiled.rows import flat_output, rows_of
from refkern.elementary import EXP, EXP_MODULAR_CPU, Function
from refkern.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FLOAT32, NARROW
from refkern.schedules import Lanes

#: a whole sigmoid as one function, as some backends have it
ROUGH = Function("rough", lambda x: x * np.float32(0.25), "test_compiled:rough")


@jit
def rough(x: Any) -> Any:
    return x * np.float32(0.25)


SIGMOIDS = [
    Sigmoid(),
    Sigmoid("stable"),
    Sigmoid("function", ROUGH),
    Sigmoid("plain", EXP_MODULAR_CPU),
]
SILUS = [
    Silu("quotient"),
    Silu("product"),
    Silu("product", Sigmoid("stable")),
    Silu("quotient", Sigmoid("plain", EXP_MODULAR_CPU)),
    Silu("product", Sigmoid("function", ROUGH)),
]


def described(choice: Any) -> str:
    if isinstance(choice, Silu):
        return f"silu-{choice.form}-{described(choice.sigmoid)}"
    return f"{choice.form}-{choice.function.name}"


# --- bits -------------------------------------------------------------------------------------


def test_bits_of_floats_and_floats_of_bits():
    single = np.random.default_rng(1).integers(0, 1 << 32, 5000, dtype=np.uint32).view(np.float32)
    double = np.random.default_rng(2).integers(0, 1 << 63, 5000, dtype=np.int64).view(np.float64)
    double = np.concatenate([double, -double])

    read32, read64 = jit(lambda x: bits.float32_bits(x)), jit(lambda x: bits.float64_bits(x))
    make32, make64 = jit(lambda x: bits.bits_float32(x)), jit(lambda x: bits.bits_float64(x))
    assert (compiled(read32, np.uint32)(single) == single.view(np.uint32)).all()
    assert (compiled(read64, np.int64)(double) == double.view(np.int64)).all()
    for width in (np.uint32, np.int32, np.uint64, np.int64):
        word = single.view(np.uint32).astype(width)
        got = compiled(make32, np.float32)(word)
        assert (got.view(np.uint32) == single.view(np.uint32)).all()
    # of a wider integer only the low bits are meant
    got = compiled(make32, np.float32)(single.view(np.uint32) + np.int64(7 << 32))
    assert (got.view(np.uint32) == single.view(np.uint32)).all()
    got = compiled(make64, np.float64)(double.view(np.int64))
    assert (got.view(np.int64) == double.view(np.int64)).all()


def test_bits_refuse_other_types():
    with pytest.raises(Exception, match="float32 is needed"):
        jit(lambda x: bits.float32_bits(x))(1.0)
    with pytest.raises(Exception, match="an integer is needed"):
        jit(lambda x: bits.bits_float32(x))(1.0)


# --- activations ------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [*SIGMOIDS, *SILUS], ids=described)
def test_activations_have_the_bits_of_the_reference(choice):
    """Every 16-bit gate by table, and float32 gates by the function."""
    m = Bits()
    reference = m.silu if isinstance(choice, Silu) else m.sigmoid
    function = (activations.silu if isinstance(choice, Silu) else activations.sigmoid)(choice)
    with np.errstate(all="ignore"):
        for fmt in (BFLOAT16, FLOAT16):
            x = m.widen(all_codes(fmt))
            table = activations.table_of(choice, fmt)
            assert not table.flags.writeable
            wrong = without_nan_payload(table) != without_nan_payload(reference(x, choice))
            assert not wrong.any(), x[wrong][:5]
        x = np.random.default_rng(3).integers(0, 1 << 32, 1 << 15, dtype=np.uint32).view(np.float32)
        x = np.concatenate([x, np.linspace(-110, 110, 1 << 15).astype(np.float32)])
        got, want = compiled(function, np.float32)(x), reference(x, choice)
        wrong = without_nan_payload(got) != without_nan_payload(want)
        assert not wrong.any(), x[wrong][:5]


def test_forms_of_silu_differ():
    """Bits tell each choice from the others, so a test of one is not one of another."""
    x = np.linspace(-20, 20, 20_001).astype(np.float32)
    with np.errstate(all="ignore"):
        results = {Bits().silu(x, choice).tobytes() for choice in SILUS}
    assert len(results) == len(SILUS)


# --- rows -------------------------------------------------------------------------------------


def row_layouts() -> dict[str, np.ndarray]:
    whole = np.arange(6 * 10, dtype=np.float32).reshape(6, 10).astype(ml_dtypes.bfloat16)
    return {
        "contiguous": whole,
        "columns of a wider matrix": whole[:, 2:7],
        "every second row": whole[::2],
        "rows backwards": whole[::-1],
        "columns backwards": whole[:, ::-1],
        "every second column": whole[:, ::2],
        "transposed": whole.T,
        "one row": whole[3:4, 1:9],
        "one column": whole[:, 4:5],
        "one row repeated": np.broadcast_to(whole[2], (4, 10)),
        "no rows": whole[:0],
        "no rows of a view": whole[:0, 2:5],
        "no columns": whole[:, :0],
        "overlapping rows": np.lib.stride_tricks.as_strided(whole, (5, 10), (10, 2)),
        "not aligned": np.frombuffer(b"\0" + whole.tobytes(), ml_dtypes.bfloat16, 60, 1).reshape(
            6, 10
        ),
    }


@pytest.mark.parametrize("layout", row_layouts())
def test_rows_of_any_layout(layout):
    matrix = row_layouts()[layout]
    before = matrix.flags.writeable
    flat, stride = rows_of(matrix)
    assert flat.dtype == np.uint16
    assert flat.ndim == 1
    assert flat.flags.c_contiguous
    assert flat.flags.aligned
    assert not flat.flags.writeable
    assert matrix.flags.writeable == before
    rows, width = matrix.shape
    for row in range(rows):
        got = flat[row * stride : row * stride + width].view(ml_dtypes.bfloat16)
        assert got.tolist() == matrix[row].tolist()
    assert stride >= width
    if width and rows:
        assert (rows - 1) * stride + width <= flat.size  # nothing behind the end is reached
    if layout in ("contiguous", "columns of a wider matrix", "every second row", "one row"):
        assert np.shares_memory(flat, matrix)


def test_flat_output_is_the_memory_of_out():
    out = np.zeros((3, 4), FLOAT8_E4M3FN.dtype)
    flat_output(out)[5] = 0x38
    assert float(out[1, 1]) == 1


# --- how things are compiled ------------------------------------------------------------------


def dispatchers() -> dict[str, Any]:
    """Every compiled function that is a module's own, and one of each kind that is made."""
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(refkern.compiled.__path__):
        loaded = import_module(f"refkern.compiled.{module.name}")
        for name, value in vars(loaded).items():
            if hasattr(value, "py_func") and value.py_func.__module__ == loaded.__name__:
                found[f"{module.name}.{name}"] = value
    for fmt in NARROW[:4]:
        found[f"narrow {fmt}"] = casts.narrow(FLOAT32, fmt)
        found[f"widen {fmt}"] = casts.widen(fmt)
    found["silu"] = activations.silu(SILUS[0])
    found["lanes"] = sums.products(Lanes(vector=4, fused=True)).run
    return found


def test_nothing_is_compiled_fast_parallel_or_cached():
    every = dispatchers()
    assert len(every) > 20
    for name, dispatcher in every.items():
        options = dispatcher.targetoptions
        assert options["nopython"], name
        assert options["nogil"], name
        assert options["error_model"] == "numpy", name
        assert not options.get("fastmath"), name
        assert not options.get("parallel"), name
        assert not options.get("boundscheck"), name
        assert type(dispatcher._cache).__name__ == "NullCache", name


def test_products_and_sums_are_not_contracted():
    """The generated code of an unfused sum has no fma, that of a fused one has (x86 and Arm)."""
    pattern = re.compile(r"\bv?fn?m(add|sub|la)\w*")
    a = np.ones(256, np.float32)
    for fused in (False, True):
        run = sums.products(Lanes(fused=fused)).run
        run(a, a, 256, np.zeros(32, np.float32))
        code = "\n".join(run.inspect_asm().values())
        called = bool(re.search(r"\bfmaf?\b", code))  # where the processor has none
        assert (bool(pattern.search(code)) or called) == fused
    kernels.exp_float64(np.float32(1))  # `exp` asks for its fma itself
    assert not pattern.search("\n".join(kernels.exp_float64.inspect_asm().values()))


def test_a_function_without_numpy_equality_is_data():
    assert dataclasses.replace(EXP) == EXP
    assert EXP != EXP_MODULAR_CPU
    assert EXP.load_compiled() is kernels.exp
    assert elementary.RSQRT.load_compiled() is kernels.rsqrt
