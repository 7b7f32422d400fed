"""Correct kernels at random: other orders, fused or not, functions off by what a policy allows.

The generator knows nothing of interval arithmetic.  It runs an op's own reference with operations
of its own, each inside the policy's budget, its own error counted: a function value is computed in
float64 (within 2^-50 of the exact one), moved by at most the budget less 2^-20 ULP, and rounded
inward.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refkern import casts
from refkern.arithmetic import Bits, Sigmoid, Silu
from refkern.elementary import RSQRT_TWO_ROUNDINGS, Function, fma
from refkern.formats import FLOAT32, format_of
from refkern.group_dots import EXACT, GROUP, GroupDots
from refkern.policy import Policy
from refkern.schedules import Schedule

SMALLEST_NORMAL = np.float32(2.0**-126)
F32 = np.float32


class Honest(Bits):
    """One correct kernel under a policy; its choices come from the seed."""

    def __init__(self, policy: Policy, seed: int) -> None:
        super().__init__()
        self.policy = policy
        self.random = np.random.default_rng(seed)
        self.flushes = policy.flush and self.flip()
        self.fuses = policy.fuse and self.flip()
        self.form = int(self.random.integers(3))

    def flip(self) -> bool:
        return bool(self.random.integers(2))

    # rounding

    def rounded(self, exact: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """Either neighbour of an inexact value, as the policy allows; exact: float64, for its side.

        ``exact`` may itself be rounded to float64: it must lie on the right side of ``nearest``.
        """
        if self.policy.rounding == "nearest":
            return self.flush(nearest)
        error = exact - nearest
        towards = np.where(error > 0, F32(np.inf), F32(-np.inf))
        other = np.where(
            np.isfinite(nearest) & (error != 0), np.nextafter(nearest, towards), nearest
        )
        take = self.random.integers(0, 2, np.shape(nearest)).astype(bool)
        if self.policy.rounding == "nearest-or-zero":
            take = take & (np.abs(other) < np.abs(nearest))
        return self.flush(np.where(take, other, nearest))

    def flush(self, x: np.ndarray) -> np.ndarray:
        if not self.flushes:
            return x
        return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(F32(0), x), x)

    def widen(self, x: np.ndarray) -> np.ndarray:
        return self.flush(super().widen(x))

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = self.flush(a), self.flush(b)
        nearest = a + b
        virtual = nearest - a
        error = (a - (nearest - virtual)) + (b - virtual)
        return self.rounded(nearest.astype(np.float64) + error, nearest)

    def sub(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.add(a, -b)

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        exact = self.flush(a).astype(np.float64) * self.flush(b).astype(np.float64)
        return self.rounded(exact, exact.astype(F32))

    def div(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = self.flush(a), self.flush(b)
        exact = a.astype(np.float64) / b.astype(np.float64)
        budget = self.policy.rcp if np.size(a) == 1 and a == 1 else self.policy.div
        return self.within(exact, budget) if budget else self.rounded(exact, a / b)

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        target = format_of(dtype)
        nearest = super().cast(x, dtype, **how)
        if target is FLOAT32 or target.scale_only or how.get("saturate"):
            return nearest
        if self.policy.rounding != "nearest":
            nearest = self.either_neighbour(x, nearest)
        if self.flushes:
            wide = casts.widen(nearest)
            small = np.abs(wide) < F32(2.0**target.min_exponent)
            zero = casts.cast(np.copysign(F32(0), wide), target)
            nearest = np.where(small, zero, nearest)
        return nearest

    def either_neighbour(self, x: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        fmt = format_of(nearest.dtype)
        wide = casts.widen(nearest)
        bits = nearest.view(fmt.code_dtype).astype(np.int64)
        magnitude = bits & fmt.magnitude
        outward = np.abs(x) > np.abs(wide)
        moved = np.where(outward, magnitude + 1, magnitude - 1)
        possible = np.isfinite(wide) & (x != wide) & (moved <= fmt.max_finite) & (magnitude > 0)
        take = self.random.integers(0, 2, x.shape).astype(bool) & possible
        if self.policy.rounding == "nearest-or-zero":
            take = take & ~outward
        code = np.where(take, moved | (bits & fmt.sign), bits)
        return code.astype(fmt.code_dtype).view(fmt.dtype)

    # functions

    def within(self, exact: np.ndarray, budget: np.ndarray | float) -> np.ndarray:
        """A float32 at most ``budget`` ULP from the float64 value ``exact``."""
        exact = np.asarray(exact)
        _, exponent = np.frexp(exact)
        ulp = np.ldexp(1.0, np.maximum(exponent - 24, -149))
        extreme = self.random.integers(0, 3, exact.shape)
        share = np.select([extreme == 0, extreme == 1], [-1.0, 1.0], self.random.uniform(-1, 1))
        aim = exact + share * (budget - 2.0**-20) * ulp
        moved = aim.astype(F32)
        # Rounding may have led out of the budget: then the neighbour towards the exact value.
        off = np.abs(moved - exact) > (budget - 2.0**-20) * ulp
        moved = np.where(off, np.nextafter(moved, exact.astype(F32)), moved)
        kept = np.isinf(exact) | (exact == 0) | np.isnan(exact) | ~np.isfinite(moved)
        return self.flush(np.where(kept, exact.astype(F32), moved))

    def exp(self, x: np.ndarray, function: Function) -> np.ndarray:
        x = self.flush(x)
        exact = np.exp(x.astype(np.float64))
        a, b = self.policy.exp
        if a == b == 0:
            return self.flush(exact.astype(F32))
        return np.maximum(self.within(exact, a + b * np.minimum(np.abs(x), 128)), F32(0))

    def rsqrt(self, x: np.ndarray, function: Function) -> np.ndarray:
        x = self.flush(x)
        if function == RSQRT_TWO_ROUNDINGS and (self.policy.rsqrt == 0 or self.flip()):
            return self.div(F32(1), self.sqrt(x))
        exact = 1 / np.sqrt(x.astype(np.float64))
        return self.within(exact, self.policy.rsqrt) if self.policy.rsqrt else exact.astype(F32)

    def sqrt(self, x: np.ndarray) -> np.ndarray:
        exact = np.sqrt(x.astype(np.float64))
        return self.within(exact, self.policy.sqrt) if self.policy.sqrt else np.sqrt(x)

    def sigmoid(self, x: np.ndarray, sigmoid: Sigmoid) -> np.ndarray:
        one = F32(1)
        e = self.exp(-x, sigmoid.function)
        plain = self.div(one, self.add(one, e))
        if sigmoid.form != "stable":
            return plain
        e = self.exp(x, sigmoid.function)
        return np.where(x >= 0, plain, self.div(e, self.add(one, e)))

    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        if self.form == 0:
            return self.div(x, self.add(F32(1), self.exp(-x, silu.sigmoid.function)))
        return self.mul(x, self.sigmoid(x, silu.sigmoid))

    # sums

    def sum(self, terms: np.ndarray, schedule: Schedule) -> np.ndarray:
        return self.tree(terms, None)

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        narrow = a is not b and self.is_narrow(a) and self.is_narrow(b)
        if narrow and self.policy.accumulator_bits and self.flip():
            return self.matrix_unit(a, b)
        return self.tree(self.flush(a), self.flush(b))

    def group_dots(self, x: np.ndarray, w: np.ndarray, dots: GroupDots) -> np.ndarray:
        """Of codes: as the recipe has it, on a matrix unit, or in float32 in some order."""
        kind = int(self.random.integers(3))
        if kind == 0 and self.policy.rounding == "nearest":
            return self.flush(EXACT(x, w))
        a = self.groups(casts.widen(x), GROUP)[:, None]
        b = self.groups(casts.widen(w), GROUP)[None]
        unit = kind == 1 and self.policy.accumulator_bits
        return self.matrix_unit(a, b) if unit else self.tree(a, b)

    def scaled_dots(
        self, x: np.ndarray, x_scale: np.ndarray, w: np.ndarray, w_scale: np.ndarray
    ) -> np.ndarray:
        scales = self.mul(w_scale[None], x_scale[:, None])
        return self.tree(self.group_dots(x, w, EXACT), scales)

    @staticmethod
    def is_narrow(x: np.ndarray) -> bool:
        """Values of a 16-bit or 8-bit format: the low half of every float32 may be anything but
        used by float16 only; both bfloat16 and float16 have at most 11 significant bits."""
        significand, _ = np.frexp(x[np.isfinite(x)].astype(np.float64))
        return bool((np.ldexp(significand, 11) % 1 == 0).all())

    def tree(self, a: np.ndarray, b: np.ndarray | None) -> np.ndarray:
        """Lanes of random lengths, each in order, then combined pairwise or in order, at random.

        The longest way of a term stays within the policy's chain.
        """
        n = a.shape[-1]
        lead = a.shape[:-1] if b is None else np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        if n == 0:
            return np.zeros(lead, F32)
        chain = self.policy.chain_length(n)
        order = self.random.permutation(n) if self.flip() else np.arange(n)
        # Combining L lanes pairwise takes ceil(log2 L) additions; a lane of k terms takes k - 1.
        lanes = int(self.random.integers(1, n + 1))
        while -(-n // lanes) - 1 + (lanes - 1).bit_length() > chain:
            lanes = int(self.random.integers(lanes, n + 1)) if lanes < n else n
            if lanes == n:
                break
        sums = []
        for lane in np.array_split(order, lanes):
            total: np.ndarray | None = None
            for i in lane:
                total = self.accumulate(total, a[..., i], None if b is None else b[..., i])
            if total is not None:
                sums.append(np.broadcast_to(total, lead))
        while len(sums) > 1:
            paired = [self.add(x, y) for x, y in zip(sums[0::2], sums[1::2], strict=False)]
            sums = paired + ([sums[-1]] if len(sums) % 2 else [])
        return np.ascontiguousarray(sums[0])

    def accumulate(
        self, total: np.ndarray | None, a: np.ndarray, b: np.ndarray | None
    ) -> np.ndarray:
        if total is None:
            return self.add(a, np.zeros_like(a)) if b is None else self.mul(a, b)
        if b is None:
            return self.add(total, a)
        if self.fuses and self.policy.rounding == "nearest":
            return self.flush(fma(a, b, total))
        return self.add(total, self.mul(a, b))

    def matrix_unit(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Steps of products that are aligned, cut toward zero and added, then cut again."""
        n = a.shape[-1]
        bits = self.policy.accumulator_bits + int(self.random.integers(3))
        step = self.policy.products
        total = np.zeros(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), np.float64)
        for start in range(0, n, step):
            terms = a[..., start : start + step].astype(np.float64) * b[..., start : start + step]
            terms = np.concatenate([terms, total[..., None]], axis=-1)
            _, exponent = np.frexp(np.abs(terms).max(axis=-1))
            grid = np.ldexp(1.0, exponent - 1 - bits)
            cut = (np.trunc(terms / grid[..., None])).sum(axis=-1) * grid
            _, exponent = np.frexp(cut)
            last = np.ldexp(1.0, exponent - 1 - min(bits, 23))
            total = np.trunc(cut / last) * last
        return total.astype(F32)
