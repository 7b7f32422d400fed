"""What holds of the source as a whole: rooms, op folders, forbidden arithmetic, the wheel."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.arithmetic import Bits
from refkern.goldens.build import build
from refkern.goldens.selection import select
from refkern.op import Call

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("refkern", "goldens", "cli")
OP_FOLDERS = sorted(p.parent for p in (ROOT / "refkern" / "ops").glob("*/spec.py"))
OP_FILES = {"__init__", "spec", "reference", "kernel", "recipes", "cases", "mutants"}
#: what a room may not import
FORBIDDEN_IMPORTS = {
    "refkern": ("refkern.goldens", "refkern.cli", "h5py", "click", "rich"),
    "goldens": ("refkern.cli", "click", "rich"),
    "cli": (),
}
#: files whose float arithmetic must be IEEE operations one by one
BIT_EXACT = [
    *(
        ROOT / "refkern" / f"{name}.py"
        for name in ("arithmetic", "casts", "elementary", "schedules")
    ),
    *(folder / f"{name}.py" for folder in OP_FOLDERS for name in ("reference", "recipes")),
]
#: numpy functions whose bits depend on the machine, or that add in an order of their own
# fmt: off
UNPORTABLE = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "power",
    "float_power", "cbrt", "hypot", "logaddexp", "dot", "matmul", "vdot", "inner", "outer",
    "tensordot", "einsum", "convolve", "sum", "mean", "average", "nansum", "nanmean", "cumsum",
    "std", "var", "trapezoid", "linalg", "fft",
}
#: what a reference may take from numpy: shapes and integer indices, never values
SHAPES = {
    "ndarray", "dtype", "newaxis", "concatenate", "repeat", "arange", "flatnonzero", "nonzero",
    "zeros", "empty", "broadcast_to", "broadcast_shapes", "moveaxis", "swapaxes", "expand_dims",
    "stack", "split", "array_split", "int64", "intp", "asarray", "diff", "searchsorted",
    "empty_like", "zeros_like", "float32",
}
SHAPE_METHODS = {
    "append", "copy", "ravel", "repeat", "reshape", "squeeze", "swapaxes", "tolist", "transpose",
}
# fmt: on


#: lines
SCREEN = 60


def python_files(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node: ast.AST) -> list[str]:
    """The parts of a.b.c, outermost first; "" where it starts with something else than a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(parts)]


def unportable(tree: ast.Module) -> list[str]:
    """What in a file is forbidden where bits must be portable, as "line: what"."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            found.append(f"{node.lineno}: the operator @")
        if isinstance(node, ast.Attribute):
            first, *rest = dotted(node)
            if first in ("np", "numpy") and rest and rest[0] in UNPORTABLE:
                found.append(f"{node.lineno}: np.{rest[0]}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, dotted(node.func)[0]
            own = owner in ("m", "np", "self") or isinstance(node.func.value, ast.Call)
            if name in ("sum", "mean", "dot", "cumsum") and not own:
                found.append(f"{node.lineno}: the method {name}")
            if name == "astype":
                target = ast.unparse(node.args[0]) if node.args else ""
                if re.search(r"float16|float8|bfloat|half|ml_dtypes", target):
                    found.append(f"{node.lineno}: astype({target})")
    return found


def beyond_shapes(tree: ast.Module) -> list[str]:
    """What in a reference is neither a method of m nor a shape operation."""
    defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    imported = {
        alias.asname or alias.name
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom)
        for alias in n.names
    }
    builtin = {"range", "len", "zip", "enumerate", "tuple", "list", "int", "slice", "min", "max"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult | ast.Div | ast.Pow):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.Attribute) and dotted(node)[0] == "np":
            name = dotted(node)[1]
            if name not in SHAPES:
                found.append(f"{node.lineno}: np.{name}")
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            if node.func.id not in builtin | defined | imported:
                found.append(f"{node.lineno}: {node.func.id}()")
        elif isinstance(node.func, ast.Attribute):
            owner = dotted(node.func)[0]
            # astype is no shape method: every cast is m's
            if owner not in ("m", "call", "recipe", "np") and node.func.attr not in SHAPE_METHODS:
                found.append(f"{node.lineno}: .{node.func.attr}()")
    return found


def test_imports_point_one_way() -> None:
    wrong = []
    for room in ROOMS:
        for path in python_files(room):
            for name in set(imports(tree_of(path))):
                forbidden = ("goldens", "cli", *FORBIDDEN_IMPORTS[room])
                if any(name == f or name.startswith(f"{f}.") for f in forbidden):
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_the_lints_find_what_they_are_for() -> None:
    bad = """
a @ b
np.exp(a)
np.dot(a, b)
a.sum()
a.astype(np.float16)
a.astype("bfloat16")
np.einsum("i,i", a, b)
np.mean(a)
np.log(a)
np.tanh(a)
"""
    assert len(unportable(ast.parse(bad))) == 10
    assert beyond_shapes(ast.parse("np.sqrt(a)\na / b\na.clip(0)\nabs(a)")) != []
    assert len(beyond_shapes(ast.parse("np.sqrt(a)\na / b\na.clip(0)\nabs(a)"))) == 4
    assert unportable(ast.parse("m.sum(a, s)\nm.dot(a, b, s)\na.astype(np.float64)")) == []


@pytest.mark.parametrize("path", BIT_EXACT, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_no_arithmetic_whose_bits_depend_on_the_machine(path: Path) -> None:
    assert unportable(tree_of(path)) == []


@pytest.mark.parametrize("folder", OP_FOLDERS, ids=lambda p: p.name)
def test_an_op_is_a_folder_with_the_same_files(folder: Path) -> None:
    assert {p.stem for p in folder.glob("*.py")} == OP_FILES
    assert [p.name for p in folder.iterdir() if p.suffix != ".py" and p.name != "__pycache__"] == []


@pytest.mark.parametrize("folder", OP_FOLDERS, ids=lambda p: p.name)
def test_a_reference_is_short_and_made_of_calls_on_m(folder: Path) -> None:
    tree = tree_of(folder / "reference.py")
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert "reference" in [function.name for function in functions]
    for function in functions:
        assert function.end_lineno is not None
        assert function.end_lineno - function.lineno < SCREEN, function.name
    assert beyond_shapes(tree) == []


def test_every_op_folder_is_found() -> None:
    assert [folder.name for folder in OP_FOLDERS] == refkern.op_names()


def test_nothing_is_compiled_with_other_arithmetic_or_cached() -> None:
    wrong = []
    for path in python_files("refkern"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.keyword):
                on = not (isinstance(node.value, ast.Constant) and node.value.value is False)
                if node.arg in ("fastmath", "parallel", "cache") and on:
                    wrong.append(f"{path.name}:{node.value.lineno} {node.arg}")
            if isinstance(node, ast.Attribute) and node.attr == "prange":
                wrong.append(f"{path.name}:{node.lineno} prange")
    assert wrong == []


class Guarded(np.ndarray):
    """An array that refuses arithmetic; shapes and indices work."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **more: object
    ) -> object:
        if ufunc is np.negative and method == "__call__":  # exact
            return ufunc(*map(plain, inputs)).view(Guarded)
        raise AssertionError(f"a reference calls numpy's {ufunc.__name__} instead of m's")


def plain(value: object) -> object:
    return value.view(np.ndarray) if isinstance(value, Guarded) else value


class GuardedBits(Bits):
    """`Bits` whose results refuse arithmetic outside its own methods."""

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found

        def guarded(*args: object, **more: object) -> object:
            result = found(*map(plain, args), **{k: plain(v) for k, v in more.items()})
            wrap = isinstance(result, np.ndarray | np.float32)
            return np.asarray(result).view(Guarded) if wrap else result

        return guarded


@pytest.mark.parametrize("name", ops.names())
def test_a_reference_computes_with_m_alone(name: str) -> None:
    """Every recipe of the op, on the smallest of its quick cases."""
    op = ops.load(name)
    prepared = min((build(s) for s in select(op=name)), key=lambda p: p.golden.outputs["out"].size)
    call = prepared.call
    guarded = {n: None if a is None else a.view(Guarded) for n, a in call.inputs.items()}
    ran = 0
    for recipe in op.recipes.values():
        try:
            chosen = recipe.for_call(call)
        except refkern.InvalidInput:
            continue
        bits = GuardedBits()
        with np.errstate(all="ignore"):
            op.part("reference").reference(bits, Call(guarded, call.params), chosen)
        assert tuple(bits.stages) == op.stages
        ran += 1
    assert ran > 0


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_and_list_load_nothing_heavy() -> None:
    code = """
import sys, json
import refkern
refkern.op_names(); [refkern.recipe_names(op) for op in refkern.op_names()]
imported = sorted(sys.modules)
from refkern.cli.main import main
for what in ("ops", "recipes", "cases", "mutants"):
    try:
        main(["list", what])
    except SystemExit as end:
        assert end.code == 0
print("\\n" + json.dumps([imported, sorted(sys.modules)]))
"""
    imported, listed = json.loads(python(code).splitlines()[-1])
    heavy = {"numba", "h5py", "torch", "onnxruntime", "mlx", "scipy"}
    assert "refkern.verdict" in imported
    assert heavy & set(imported) == set()
    assert {"click", "rich"} & set(imported) == set()
    assert heavy & set(listed) == set()


def test_ruff() -> None:
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", str(ROOT)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_types(tmp_path: Path) -> None:
    """mypy sees the rooms as they are installed: one package."""
    package = tmp_path / "refkern"
    package.mkdir()
    for path in (ROOT / "refkern").iterdir():
        if path.name not in ("goldens", "cli", "__pycache__"):
            (package / path.name).symlink_to(path)
    for room in ("goldens", "cli"):
        (package / room).symlink_to(ROOT / room)
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *config, "-p", "refkern"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"no issues found in (\d+) source files", done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what it is made of."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=skip)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps",
            "--no-index", "--wheel-dir", str(folder), str(source),
        ],
        check=True,
    )  # fmt: skip
    (made,) = folder.glob("*.whl")
    return made


def test_a_wheel_holds_one_package_without_fixtures(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"refkern"}
    assert [n for n in names if n.endswith((".h5", ".npz", "manifest.json"))] == []
    expected = set()
    for room in ROOMS:
        base = ROOT / "refkern" if room == "refkern" else ROOT
        expected |= {f"refkern/{path.relative_to(base).as_posix()}" for path in python_files(room)}
    assert expected <= set(names)
    data = [p.name for p in (ROOT / "refkern").iterdir() if p.suffix == ".toml"]
    assert {f"refkern/{name}" for name in [*data, "py.typed"]} <= set(names)


def test_a_wheel_runs_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
            "--target", str(target), str(wheel),
        ],
        check=True,
    )  # fmt: skip
    assert sorted(p.name for p in target.iterdir() if not p.name.endswith(".dist-info")) == [
        "bin",
        "refkern",
    ]
    code = (
        "import refkern, sys; from refkern.cli.main import main; "
        "print(refkern.__file__); main(['list'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, header, *rows = done.stdout.splitlines()
    assert Path(where).is_relative_to(target)
    assert header.startswith("op ")
    assert [row.split()[0] for row in rows] == refkern.op_names()
