"""Philox against the published vectors, and words against a scalar of another shape."""

from __future__ import annotations

import numpy as np
import pytest

from refkern.errors import InvalidInput
from refkern.goldens.philox import philox4x32, words

#: kat_vectors of Random123: counter, key, result
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def _uint32(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], np.uint32)


def scalar_word(seed: int, name: str, index: int) -> int:
    """Word ``index`` in plain Python integers, as docs would tell someone to write it."""
    fnv = 0x811C9DC5
    for byte in name.encode():
        fnv = (fnv ^ byte) * 0x01000193 % 2**32
    block, lane = index // 4, index % 4
    c, k = [block % 2**32, block // 2**32, 0, 0], [seed, fnv]
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c[lane]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter: str, key: str, result: str) -> None:
    k0, k1 = (int(k) for k in _uint32(key))
    assert philox4x32(_uint32(counter), (k0, k1)).tolist() == _uint32(result).tolist()


def test_leading_axes_are_independent() -> None:
    counters = np.stack([_uint32(counter) for counter, _, _ in KNOWN])
    one_by_one = [philox4x32(counter, (7, 8)) for counter in counters]
    assert np.array_equal(philox4x32(counters, (7, 8)), np.stack(one_by_one))
    stacked = philox4x32(counters.reshape(1, 3, 4), (7, 8))
    assert stacked.shape == (1, 3, 4)
    assert stacked.dtype == np.uint32
    assert philox4x32(np.zeros((0, 4), np.uint32), (0, 0)).shape == (0, 4)


def test_words_are_the_scalars() -> None:
    got = words(0xFFFFFFFF, "gate", 11)
    assert got.dtype == np.uint32
    assert got.tolist() == [scalar_word(0xFFFFFFFF, "gate", i) for i in range(11)]


def test_these_words_never_change() -> None:
    """Every committed golden hangs on them."""
    assert [f"{word:08x}" for word in words(0, "y", 6)] == [
        "52afd934",
        "21f28eaf",
        "67c6e218",
        "6392aff4",
        "6d422756",
        "46e3822a",
    ]
    assert words(0, "", 1)[0] == philox4x32(np.zeros(4, np.uint32), (0, 0x811C9DC5))[0]


@pytest.mark.parametrize(("name", "fnv1a"), [("a", 0xE40C292C), ("foobar", 0xBF9CF968)])
def test_key_is_the_published_fnv1a(name: str, fnv1a: int) -> None:
    assert words(3, name, 4).tolist() == philox4x32(np.zeros(4, np.uint32), (3, fnv1a)).tolist()


def test_a_name_is_its_utf8_bytes() -> None:
    assert words(1, "größe", 4).tolist() == [scalar_word(1, "größe", i) for i in range(4)]


@pytest.mark.parametrize("start", [0, 1, 3, 4, 65_530, 65_535, 65_536, 65_537])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 65_600])
def test_a_window_is_a_part_of_the_whole(start: int, count: int) -> None:
    whole = words(5, "w", 65_537 + 65_600)
    assert np.array_equal(words(5, "w", count, start), whole[start : start + count])


def test_blocks_beyond_32_bits() -> None:
    start = (2**32 - 1) * 4 + 2
    assert words(9, "x", 6, start).tolist() == [scalar_word(9, "x", start + i) for i in range(6)]
    last = 2**66 - 1
    assert words(9, "x", 1, last)[0] == scalar_word(9, "x", last)


def test_seed_and_name_select_the_stream() -> None:
    streams = {words(s, n, 4).tobytes() for s in (0, 1, 2**32 - 1) for n in ("a", "b", "ab", "ba")}
    assert len(streams) == 12


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, "1", None])
def test_bad_seed(seed: object) -> None:
    with pytest.raises(InvalidInput, match="seed"):
        words(seed, "y", 1)  # type: ignore[arg-type]


def test_bad_window_and_counter() -> None:
    with pytest.raises(InvalidInput, match="count"):
        words(0, "y", -1)
    with pytest.raises(InvalidInput, match="start"):
        words(0, "y", 1, -1)
    with pytest.raises(InvalidInput, match="count"):
        words(0, "y", 2, 2**66 - 1)
    for counter in (np.zeros(4, np.int32), np.zeros(3, np.uint32), np.zeros((), np.uint32)):
        with pytest.raises(InvalidInput, match="counter"):
            philox4x32(counter, (0, 0))
    with pytest.raises(InvalidInput, match="key"):
        philox4x32(np.zeros(4, np.uint32), (0, 2**32))
