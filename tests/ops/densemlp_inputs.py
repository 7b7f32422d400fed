"""The inputs of the DenseMlp captures that store only outputs: made again, by the same draws.

The legacy generator (`RandomState`) gives the same stream on every machine; sums of uniforms stand
in for a normal distribution, so that no logarithm is involved.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import ml_dtypes
import numpy as np

import refkern

BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)


@dataclass(frozen=True)
class Inputs:
    x: np.ndarray
    w13: np.ndarray
    w13_scale: np.ndarray
    w2: np.ndarray
    w2_scale: np.ndarray

    def arguments(self) -> dict[str, np.ndarray]:
        return dict(vars(self))

    def sha256(self) -> str:
        """The digest that the captures hold of their inputs."""
        digest = hashlib.sha256()
        for array in (self.w13, self.w13_scale, self.w2, self.w2_scale, self.x):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def make(k: int, inter: int, hidden: int, tokens: int, seed: int, *, random_bytes: bool) -> Inputs:
    """random_bytes: every finite e4m3 code equally often as a weight, instead of a bell curve."""
    random = np.random.RandomState(seed)

    def bell(rows: int, columns: int) -> np.ndarray:
        total = np.zeros((rows, columns))
        for _ in range(12):
            total += random.random_sample((rows, columns))
        return total - 6

    def weights(rows: int, columns: int) -> np.ndarray:
        if not random_bytes:
            return refkern.cast(bell(rows, columns) * 90.0, E4M3, saturate=True)
        drawn = np.frombuffer(random.bytes(rows * columns), np.uint8).reshape(rows, columns).copy()
        drawn[(drawn & 127) == 127] ^= 1
        return drawn.view(E4M3)

    def scales(rows: int, columns: int, low: float, high: float) -> np.ndarray:
        drawn = random.random_sample((rows // 128, columns // 128))
        return (low + drawn * (high - low)).astype(np.float32)

    w13 = weights(2 * inter, k)
    bounds = (1e-4, 3e-4) if random_bytes else (2e-4, 6e-4)
    w13_scale = scales(2 * inter, k, *bounds)
    w2 = weights(hidden, inter)
    w2_scale = scales(hidden, inter, 2e-4, 6e-4)
    x = bell(tokens, k) * np.exp2(random.randint(-2, 3, size=(tokens, 1)).astype(np.float64))
    outliers = random.random_sample((tokens, k)) < 0.003
    x = np.where(outliers, x * 30, x).astype(np.float32)
    return Inputs(refkern.cast(x, BF16), w13, w13_scale, w2, w2_scale)


def make_ue8m0(k: int, inter: int, hidden: int, tokens: int, seed: int) -> Inputs:
    """Weight scales that are powers of two; rows 1 to 3 of x have groups of 0, -0, tiny values and
    an amax of 448."""
    made = make(k, inter, hidden, tokens, seed, random_bytes=seed % 2 == 0)

    def power(scales: np.ndarray) -> np.ndarray:
        return np.exp2(np.round(np.log2(scales))).astype(np.float32)

    x = made.x.view(np.uint16).copy()
    if tokens > 3:
        x[1, :128] = 0
        x[2, 128:256] = 0x8000
        x[2, 256:384] = (x[2, 256:384] & 0x8000) | 0x2F80
        x[3, :128] = 0x3F80
        x[3, 5], x[3, 128] = 0x43E0, 0x4060
    return Inputs(x.view(BF16), made.w13, power(made.w13_scale), made.w2, power(made.w2_scale))
