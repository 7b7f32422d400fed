"""Philox4x32-10: the counter-based generator that every input comes from.

A word depends on the seed, the tensor's name and its index alone, so a kernel's own language can
make any part of an input without the rest.  In C: ten rounds of two 32 x 32 -> 64 bit products.
"""

from __future__ import annotations

import operator

import numpy as np

from refkern.errors import InvalidInput

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
#: what the key grows by from round to round (golden ratio, sqrt(3) - 1)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
#: words made at a time: their temporaries stay in a core's cache
_WORDS_AT_ONCE = 1 << 16


def philox4x32(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).

    counter: [.., 4] uint32; key: two integers of 32 bits.  Returns [.., 4] uint32.
    """
    if counter.dtype != np.uint32 or counter.shape[-1:] != (4,):
        given = f"{counter.dtype} {list(counter.shape)}"
        raise InvalidInput("counter", given, "allowed is uint32 with a last axis of 4")
    key = (_in_range("key[0]", key[0], _LOW), _in_range("key[1]", key[1], _LOW))
    # 32-bit values in 64-bit words: a product keeps both of its halves
    c0, c1, c2, c3 = (counter[..., lane].astype(np.uint64) for lane in range(4))
    low, half = np.uint64(_LOW), np.uint64(32)
    for turn in range(_ROUNDS):
        k0, k1 = (np.uint64((k + turn * s) & _LOW) for k, s in zip(key, _KEY_STEPS, strict=True))
        p0 = c0 * np.uint64(_MULTIPLIERS[0])
        p1 = c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def words(seed: int, name: str, count: int, start: int = 0) -> np.ndarray:
    """The words ``start`` to ``start + count`` of the tensor ``name``: [count] uint32.

    Word i is lane i % 4 of block i // 4.  A block is philox4x32 with
    counter = (block's low 32 bits, block's high 32 bits, 0, 0) and
    key = (seed, 32-bit FNV-1a of the name's UTF-8 bytes);
    FNV-1a: h = 2166136261, then for each byte h = ((h xor byte) * 16777619) mod 2^32.

    Raises `InvalidInput` for a seed outside 32 bits, or words outside 0 .. 2^66.
    """
    key = (_in_range("seed", seed, _LOW), _fnv1a(name))
    start = _in_range("start", start, (1 << 66) - 1)
    count = _in_range("count", count, (1 << 66) - start)
    result = np.empty(count, np.uint32)
    done = 0
    while done < count:
        block, lane = divmod(start + done, 4)
        wanted = min(count - done, _WORDS_AT_ONCE)
        made = _blocks(block, (lane + wanted + 3) // 4, key)
        result[done : done + wanted] = made.reshape(-1)[lane : lane + wanted]
        done += wanted
    return result


def _blocks(first: int, count: int, key: tuple[int, int]) -> np.ndarray:
    index = np.uint64(first) + np.arange(count, dtype=np.uint64)
    counter = np.zeros((count, 4), np.uint32)
    counter[:, 0] = index & np.uint64(_LOW)
    counter[:, 1] = index >> np.uint64(32)
    return philox4x32(counter, key)


def _fnv1a(name: str) -> int:
    value = 2166136261
    for byte in name.encode():
        value = ((value ^ byte) * 16777619) & _LOW
    return value


def _in_range(argument: str, given: int, largest: int) -> int:
    try:
        value = operator.index(given)
    except TypeError:
        value = -1
    if not 0 <= value <= largest:
        raise InvalidInput(argument, repr(given), f"allowed are integers from 0 to {largest}")
    return value
