"""pytest plugin: the fixture `golden` runs a test once per golden case.

    def test_my_kernel(golden):
        golden.check(my_kernel(**golden.inputs, **golden.params))

Loaded in every pytest run of an environment that has refkern, so it imports nothing of it until a
test asks for a golden; nothing is read while tests are collected, and no golden is ever computed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

MARK = "goldens"
#: where `refkern golden` writes if it is not told otherwise
FOLDER = "refkern-goldens"
POLICY = "cuda"


@dataclass(frozen=True)
class Asked:
    """One golden file for one test, or why there is none."""

    path: Path | None
    problem: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("refkern", "golden cases of LLM-inference kernels (refkern)")
    group.addoption(
        "--refkern-goldens",
        action="append",
        metavar="DIR",
        help=f"folder of golden files, or one file; may be repeated (default: {FOLDER})",
    )
    group.addoption(
        "--refkern-policy",
        metavar="P",
        help=f"what kernels are allowed: a policy or FILE.toml[:NAME] (default: {POLICY})",
    )
    parser.addini("refkern_goldens", "folders of golden files, below the root", type="paths")
    parser.addini("refkern_policy", "what kernels are allowed", default=POLICY)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(*globs, op=None, policy=None, recipe=None, rung='accept'): which golden cases "
        "(names or OP/NAME) the fixture `golden` goes through, and how they are judged.",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    if not config.getoption("refkern_goldens"):
        return None
    folders = ", ".join(map(str, _folders(config)))
    return f"refkern: goldens {folders}; policy {_policy(config)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # By a name that only this plugin's `golden` depends on: another plugin's `golden` is not ours.
    if "_refkern_asked" not in metafunc.fixturenames:
        return
    asked = _cases(metafunc.config, metafunc.definition)
    metafunc.parametrize("_refkern_asked", asked, ids=[_identifier(a) for a in asked])


def _folders(config: pytest.Config) -> list[Path]:
    given = config.getoption("refkern_goldens")
    if given:
        return [config.invocation_params.dir / path for path in given]
    return config.getini("refkern_goldens") or [config.rootpath / FOLDER]


def _policy(config: pytest.Config) -> str:
    return config.getoption("refkern_policy") or config.getini("refkern_policy")


def _wanted(node: pytest.Item) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """The globs and options of the nearest mark."""
    mark = node.get_closest_marker(MARK)
    if mark is None:
        return (), {}
    unknown = sorted(set(mark.kwargs) - {"op", "policy", "recipe", "rung"})
    if unknown or mark.kwargs.get("rung", "accept") not in ("bits", "accept"):
        what = f"unknown: {', '.join(unknown)}" if unknown else "rung is 'bits' or 'accept'"
        raise pytest.UsageError(f"mark {MARK} of {node.name}: {what}")
    return mark.args, mark.kwargs


def _cases(config: pytest.Config, node: Any) -> list[Asked]:
    """The files that a test asks for, by their names alone: OP/CASE.h5."""
    globs, options = _wanted(node)
    folders = _folders(config)
    said = ", ".join(map(str, folders))
    missing = [str(folder) for folder in folders if not folder.exists()]
    if missing:
        how = "make them with: refkern golden --out DIR, and say --refkern-goldens DIR"
        return [Asked(None, f"no golden files: {', '.join(missing)} is not there; {how}")]
    found: dict[Path, None] = {}
    for folder in folders:
        inside = sorted(folder.rglob("*.h5")) if folder.is_dir() else [folder]
        found.update(dict.fromkeys(p for p in inside if not p.name.endswith(".obtained.h5")))
    op = options.get("op")
    kept = [p for p in found if (op is None or p.parent.name == op) and _matches(p, globs)]
    if not kept:
        which = f" of op {op!r}" if op else ""
        which += f" matching {', '.join(globs)}" if globs else ""
        return [Asked(None, f"no golden files{which} in {said}")]
    return [Asked(path) for path in kept]


def _matches(path: Path, globs: tuple[str, ...]) -> bool:
    names = (path.stem, f"{path.parent.name}/{path.stem}")
    return not globs or any(fnmatchcase(name, glob) for name in names for glob in globs)


def _identifier(asked: Asked) -> str:
    return "no-goldens" if asked.path is None else f"{asked.path.parent.name}/{asked.path.stem}"


@pytest.fixture
def _refkern_asked() -> Asked:
    """Only a name: `pytest_generate_tests` gives it its values."""
    raise AssertionError("parametrised while tests are collected")


@pytest.fixture
def golden(_refkern_asked: Asked, request: pytest.FixtureRequest, record_property: Any) -> Any:
    """One golden case: .inputs, .params, .as_torch(), .as_jax(), .as_mlx(), .check(got)."""
    if _refkern_asked.path is None:
        pytest.fail(_refkern_asked.problem, pytrace=False)
    from refkern.errors import InvalidInput
    from refkern.goldens.errors import DamagedFile
    from refkern.goldens.pytest_golden import Golden

    def fail(text: str) -> None:
        pytest.fail(text, pytrace=False)

    node = request.node
    _, options = _wanted(node)
    problem = ""
    try:
        made = Golden(
            _refkern_asked.path,
            policy=options.get("policy") or _policy(request.config),
            recipe=options.get("recipe"),
            rung=options.get("rung", "accept"),
            test=node.nodeid,
            fail=fail,
            record=record_property,
            elsewhere=lambda: request.getfixturevalue("tmp_path"),
        )
    except (DamagedFile, InvalidInput) as error:
        problem = str(error)
    if problem:  # outside of the handler, so that the error is shown once
        pytest.fail(problem, pytrace=False)
    if made.outside:
        pytest.skip(made.outside)
    node.stash[_MADE] = made
    return made


_MADE = pytest.StashKey[Any]()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    result = yield
    made = pyfuncitem.stash.get(_MADE, None)
    if made is not None and not made.checked:
        pytest.fail("golden.check was not called: nothing was compared", pytrace=False)
    return result
