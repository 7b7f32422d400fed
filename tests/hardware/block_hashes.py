"""Hashes of a function's outputs over blocks of 2^23 inputs, as sm90_device.cu defines them.

A function of one argument: block = sign and exponent, index = the float32's bits.  A function of
two: the pair with index i is the two halves of mix(i).  A block's hash is the sum modulo 2^64 of
mix(index << 32 | output bits); mix is splitmix64's finaliser.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np

from refkern.compiled.bits import bits_float32, float32_bits, jit
from refkern.elementary import Function
from refkern.hardware import sm90
from refkern.threads import launch

BLOCKS, BLOCK = 512, 1 << 23

FUNCTIONS: dict[str, Function] = {
    name: getattr(sm90, name.upper())
    for name in (
        "ex2_approx", "ex2_approx_ftz", "rcp_approx", "rcp_approx_ftz", "rsqrt_approx",
        "rsqrt_approx_ftz", "sqrt_approx", "sqrt_approx_ftz", "lg2_approx", "lg2_approx_ftz",
        "expf", "fast_expf", "fast_expf_ftz", "fast_logf", "rsqrtf", "cvt_bf16", "cvt_f16",
        "cvt_e4m3", "cvt_e5m2", "div_full", "div_approx", "fmin", "fmax",
    )
}  # fmt: skip
PAIRS = ("div_full", "div_approx", "fmin", "fmax")

FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
THIRTY, TWENTY_SEVEN, THIRTY_ONE = np.uint64(30), np.uint64(27), np.uint64(31)
HALF = np.uint64(32)


def mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ z >> THIRTY) * FIRST
    z = (z ^ z >> TWENTY_SEVEN) * SECOND
    return z ^ z >> THIRTY_ONE


compiled_mix = jit(mix)


def block_inputs(name: str, block: int) -> list[np.ndarray]:
    index = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.uint64)
    if name not in PAIRS:
        return [index.astype(np.uint32).view(np.float32)]
    pair = mix(index)
    return [half.astype(np.uint32).view(np.float32) for half in (pair, pair >> HALF)]


def hash_outputs(block: int, outputs: np.ndarray) -> int:
    """The hash of a block's outputs, uint32 [2^23]."""
    index = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.uint64)
    return int(mix(index << HALF | outputs.astype(np.uint64)).sum(dtype=np.uint64))


@cache
def _compiled(name: str) -> tuple[Any, Any]:
    """jitted: one output's bits from its index; the hash of a block."""
    function = FUNCTIONS[name].load_compiled()
    float_result = not name.startswith("cvt")

    @jit
    def of_one(index: Any) -> Any:
        result = function(bits_float32(numba.uint32(index)))
        return numba.uint64(float32_bits(result)) if float_result else numba.uint64(result)

    @jit
    def of_two(index: Any) -> Any:
        pair = compiled_mix(index)
        low, high = numba.uint32(pair), numba.uint32(pair >> HALF)
        return numba.uint64(float32_bits(function(bits_float32(low), bits_float32(high))))

    output = of_two if name in PAIRS else of_one

    @jit
    def hash_of(block: Any) -> Any:
        total = np.uint64(0)
        first = np.uint64(block) * np.uint64(BLOCK)
        for k in range(BLOCK):
            index = first + np.uint64(k)
            total += compiled_mix((index << HALF) | output(index))
        return total

    @jit
    def fill(block: Any, out: Any) -> None:
        first = np.uint64(block) * np.uint64(BLOCK)
        for k in range(BLOCK):
            out[k] = numba.uint32(output(first + np.uint64(k)))

    return hash_of, fill


def block_hashes(name: str, blocks: np.ndarray) -> np.ndarray:
    """uint64 of each block, from refkern's compiled function."""
    hash_of, _ = _compiled(name)
    hash_of(0)
    out = np.zeros(len(blocks), np.uint64)

    def work(first: int, stop: int) -> None:
        for i in range(first, stop):
            out[i] = hash_of(int(blocks[i]))

    launch(work, len(blocks), 1e8)
    return out


def outputs_of(name: str, block: int) -> np.ndarray:
    """uint32 [2^23], from refkern's compiled function."""
    out = np.empty(BLOCK, np.uint32)
    _compiled(name)[1](block, out)
    return out
