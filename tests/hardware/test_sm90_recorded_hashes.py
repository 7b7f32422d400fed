"""An H200's own hashes of its outputs over every input, on some blocks of 2^23.

All of them: tests/exhaustive/sm90_device.py --recorded.
"""

from __future__ import annotations

import numpy as np
import pytest
from block_hashes import BLOCKS, FUNCTIONS, block_hashes, block_inputs, hash_outputs
from captures import DATA

from refkern.hardware import sm90

RECORDED = DATA / "h200_block_hashes.npz"
#: subnormals, [1, 2), [-1, -2), [64, 128); for pairs any four
SOME = np.array([0, 127, 383, 133])


@pytest.mark.parametrize("name", ["ex2_approx", "expf", "div_full", "cvt_e4m3"])
def test_some_blocks(name):
    with np.load(RECORDED) as file:
        recorded = file[name]
    assert recorded.shape == (BLOCKS,)
    assert np.array_equal(block_hashes(name, SOME), recorded[SOME])


def test_a_hash_sees_one_bit():
    block = 127
    outputs = sm90.reference.ex2_approx_ftz(*block_inputs("ex2_approx_ftz", block)).view(np.uint32)
    right = hash_outputs(block, outputs)
    assert block_hashes("ex2_approx_ftz", np.array([block]))[0] == right
    outputs[12345] ^= 1
    assert hash_outputs(block, outputs) != right


def test_every_public_function_is_hashed():
    missing = set(sm90.reference.__all__) - set(FUNCTIONS) - {"mma", "gemm_chain"}
    assert not missing
