"""Dot products of fp8 groups as Hopper's tensor cores sum them: `refkern.group_dots.GroupDots`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from refkern.group_dots import GROUP
from refkern.hardware.sm90.tensor_cores import gemm_chain


@dataclass(frozen=True)
class TensorCoreDots:
    """One instruction chained from +0 over each group of 128, K a multiple of it.

    order: the place in the group that each k index of the chain reads; () is as they come.
    """

    instruction: str
    order: tuple[int, ...] = ()

    def __call__(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """[tokens, K], [rows, K] -> float32 [tokens, rows, groups]."""
        return np.moveaxis(gemm_chain(self.instruction, x, w, **self._how()), 0, -1)

    def load_compiled(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """(x [tokens, K], w [rows, K]) -> float32 [groups, tokens, rows], by the compiled chain."""
        module = import_module("refkern.hardware.sm90.compiled_tensor_cores")
        return partial(module.gemm_chain, self.instruction, **self._how())

    def _how(self) -> dict[str, Any]:
        return {"order": self.order or None, "group": GROUP}


#: DenseMlp's fragments: in each 64 of K, one mma.sync takes the bytes 0 .. 7 of every 16 and the
#: next one the bytes 8 .. 15.  Which of them go into the first HMMA is decided by k % 4.
DENSEMLP_ORDER = tuple(sorted(range(GROUP), key=lambda k: (k // 64, k // 8 % 2, k)))


#: mma.sync.m16n8k32 in DenseMlp's order: two HMMA and an FADD each
DENSEMLP = TensorCoreDots("mma.m16n8k32.e4m3", DENSEMLP_ORDER)
#: DeepGEMM's wgmma: four k32 chained inside the tensor core, 13 fraction bits
WGMMA = TensorCoreDots("wgmma.k32.e4m3")
