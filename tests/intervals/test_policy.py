import math

import pytest

import refkern
from refkern import policy

NAMES = ["cuda", "cuda-fast", "cuda-fp8-fast", "ieee", "metal", "metal-fast", "wgsl"]


def test_names() -> None:
    assert refkern.policy_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_says_where_its_numbers_come_from(name: str) -> None:
    loaded = policy.load(name)
    assert loaded.name == name
    assert len(loaded.source) > 40
    assert loaded.summary


def test_chain() -> None:
    cuda, ieee = policy.load("cuda"), policy.load("ieee")
    assert [cuda.chain_length(n) for n in (0, 1, 2, 9, 10, 32, 960, 4096)] == [
        0, 0, 1, 8, 9, 9, 38, 136,
    ]  # fmt: skip
    assert [ieee.chain_length(n) for n in (0, 1, 2, 960)] == [0, 0, 1, 959]


def test_a_users_file_extends() -> None:
    text = '[mine]\nextends = "cuda"\nsummary = "s"\nrsqrt = 1\nchain = "any"\nsource = "own"\n'
    mine = policy.parse(text, policy.built_in(), "mine.toml")["mine"]
    assert (mine.rsqrt, mine.exp, mine.chain) == (1, (2, 0), None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a", "TOML is needed"),
        ("a = 1", "a table per policy"),
        ('[a]\nextends = "nobody"', "extends must be one of"),
        ('[a]\nextends = "ieee"\ncolour = 1', "colour"),
        ("[a]\nrsqrt = 1", "missing are"),
        ('[a]\nextends = "ieee"\nrsqrt = -1', "number >= 0"),
        ('[a]\nextends = "ieee"\nrsqrt = nan', "number >= 0"),
        ('[a]\nextends = "ieee"\nrsqrt = true', "number >= 0"),
        ('[a]\nextends = "ieee"\nexp = 2', "two numbers"),
        ('[a]\nextends = "ieee"\nflush = 1', "a bool"),
        ('[a]\nextends = "ieee"\nrounding = "up"', "roundings are"),
        ('[a]\nextends = "ieee"\nchain = { lanes = 0, extra = 1 }', "lanes, extra"),
        ('[a]\nextends = "ieee"\nchain = "long"', "lanes, extra"),
    ],
)
def test_bad_files(text: str, says: str) -> None:
    with pytest.raises(refkern.InvalidInput, match=says):
        policy.parse(text, policy.built_in(), "mine.toml")


def test_unknown_policy() -> None:
    with pytest.raises(refkern.InvalidInput, match=r"there are .*ieee"):
        policy.load("cude")


def test_unit_roundoff() -> None:
    assert math.log2(policy.load("cuda").unit_roundoff) == -24
    assert math.log2(policy.load("wgsl").unit_roundoff) == -23
