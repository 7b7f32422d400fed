"""The pytest plugin, run by pytester as a user's suite would run it."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.formats import FLOAT32, NARROW, codes, from_codes
from refkern.goldens import frameworks, hdf5
from refkern.goldens.build import build, prepare
from refkern.goldens.explain import explain
from refkern.goldens.results import read_results
from refkern.goldens.selection import find_files, select

pytest_plugins = ["pytester"]
OP = "gated_group_rmsnorm"
FEW = ("groups_of_7", "groups_of_100", "no_gate", "gate_of_fused_projection")

GOOD = """
import refkern
def test_kernel(golden):
    golden.check(refkern.reference.gated_group_rmsnorm(**golden.inputs, **golden.params)["out"])
"""
WRONG = """
import refkern
def test_kernel(golden):
    params = {**golden.params, "eps": 0.0}
    golden.check(refkern.reference.gated_group_rmsnorm(**golden.inputs, **params))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin") / "goldens"
    (folder / OP).mkdir(parents=True)
    for selected in select(FEW, op=OP):
        hdf5.write(build(selected).golden, folder / selected.path)
    return folder


@pytest.fixture
def run(pytester: pytest.Pytester, made: Path) -> Callable[..., pytest.RunResult]:
    # In this process, whose modules pytester puts back afterwards: the sources must not import what
    # cannot be imported twice (numba, torch).
    def run(source: str, *arguments: object) -> pytest.RunResult:
        pytester.makepyfile(source)
        options = ["-p", "no:cacheprovider", "--refkern-goldens", str(made)]
        return pytester.runpytest_inprocess(*options, *map(str, arguments))

    return run


def test_one_test_a_case(run: Callable[..., pytest.RunResult]) -> None:
    result = run(GOOD, "-v")
    result.assert_outcomes(passed=4)
    for case in FEW:
        result.stdout.fnmatch_lines([f"*test_kernel?{OP}/{case}? PASSED*"])
    result.stdout.fnmatch_lines(["refkern: goldens *goldens; policy cuda"])


def test_a_case_by_its_name(run: Callable[..., pytest.RunResult]) -> None:
    run(GOOD, "-k", "groups_of_7").assert_outcomes(passed=1, deselected=3)


@pytest.mark.parametrize(
    ("mark", "number"),
    [
        ('"groups_*"', 2),
        ('"no_gate", "groups_of_7"', 2),
        (f'"{OP}/no_gate"', 1),
        (f'op="{OP}"', 4),
    ],
)
def test_a_mark_selects(run: Callable[..., pytest.RunResult], mark: str, number: int) -> None:
    source = GOOD.replace("def test", f"import pytest\n@pytest.mark.goldens({mark})\ndef test")
    run(source, "--strict-markers").assert_outcomes(passed=number)


def test_no_golden_is_an_error(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    marked = GOOD.replace("def test", 'import pytest\n@pytest.mark.goldens("nix*")\ndef test')
    result = run(marked)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no golden files matching nix?*"])
    pytester.makepyfile(GOOD)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["no golden files: *refkern-goldens is not there; *"])
    (pytester.path / "empty").mkdir()
    result = pytester.runpytest_inprocess("--refkern-goldens", "empty")
    result.assert_outcomes(errors=1)


def test_a_folder_from_the_ini_file(pytester: pytest.Pytester, made: Path) -> None:
    pytester.makepyfile(GOOD)
    pytester.makeini(f"[pytest]\nrefkern_goldens = {made}\nrefkern_policy = ieee")
    pytester.runpytest_inprocess().assert_outcomes(passed=4)


def test_a_damaged_golden_fails_its_own_test(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester, made: Path
) -> None:
    folder = pytester.path / "damaged" / OP
    folder.mkdir(parents=True)
    content = (made / OP / "no_gate.h5").read_bytes()
    (folder / "cut.h5").write_bytes(content[:-999])
    (folder / "whole.h5").write_bytes(content)
    result = run(GOOD, "--refkern-goldens", folder.parent)
    result.assert_outcomes(passed=5, errors=1)
    result.stdout.fnmatch_lines(["*cut.h5: *"])


def test_an_unknown_policy_and_mark_are_errors(run: Callable[..., pytest.RunResult]) -> None:
    result = run(GOOD, "--refkern-policy", "nix", "-k", "groups_of_7")
    result.assert_outcomes(errors=1, deselected=3)
    result.stdout.fnmatch_lines(["policy: 'nix' was given; there are *"])
    marked = GOOD.replace("def test", "import pytest\n@pytest.mark.goldens(rang='bits')\ndef test")
    result = run(marked)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*mark goldens of test_kernel: unknown: rang"])


def test_a_failure_says_what_the_kernel_did(
    run: Callable[..., pytest.RunResult], made: Path
) -> None:
    result = run(WRONG, "-k", "groups_of_7")
    result.assert_outcomes(failed=1, deselected=3)
    obtained = made / OP / "groups_of_7.obtained.h5"
    result.stdout.fnmatch_lines(
        [
            f"case {OP}/groups_of_7, recipe modular-apple, policy cuda",
            "test *::test_kernel*groups_of_7*",
            "20 of 385 elements are outside the interval of modular-apple under cuda; *",
            "first stage that does not follow from the one before: rstd",
            "where: *",
            "what: bit-identical to mutant eps-dropped*",
            "worst elements:",
            "  [[]4, 11] got * (0x????????), expected * (0x????????): 37 ULP, allowed [[]*, *]",
            "heat map of 5 x 77, *",
            f"what the kernel gave: {obtained}",
            f"more: refkern explain *groups_of_7.h5 {obtained}",
        ],
        consecutive=False,
    )
    assert "Traceback" not in result.stdout.str()
    # What it gave is there bit for bit, is no golden, and explains itself.
    assert obtained not in find_files([made])
    golden = hdf5.read(made / OP / "groups_of_7.h5")
    outputs, stages = read_results(obtained, golden)
    assert {*stages, *outputs} == set(ops.load(OP).stages)
    wanted = refkern.reference.gated_group_rmsnorm(
        **golden.inputs, **{**golden.params, "eps": 0.0}, recipe=golden.recipe
    )
    assert np.array_equal(codes(outputs["out"]), codes(wanted["out"]))
    obtained.unlink()


def test_bfloat16_is_kept_as_bits(run: Callable[..., pytest.RunResult], made: Path) -> None:
    source = WRONG.replace('"eps": 0.0', '"group_size": golden.params["group_size"] // 2')
    run(source, "-k", "no_gate").assert_outcomes(failed=1, deselected=3)
    path = made / OP / "no_gate.obtained.h5"
    golden = hdf5.read(made / OP / "no_gate.h5")
    out = read_results(path, golden)[0]["out"]
    assert out.dtype == golden.outputs["out"].dtype == refkern.cast(0.0, "bfloat16").dtype
    path.unlink()


def test_a_read_only_folder(run: Callable[..., pytest.RunResult], made: Path) -> None:
    # The superuser may write anywhere: the plugin is shown a folder that refuses.
    refuse = """
import errno
from refkern.goldens import obtained
real = obtained.replacing
def replacing(path):
    if "goldens" in str(path.parent.parent.name):
        raise OSError(errno.EROFS, "read-only")
    return real(path)
obtained.replacing = replacing
"""
    result = run(refuse + WRONG, "-k", "groups_of_7")
    from refkern.goldens import atomic, obtained

    obtained.replacing = atomic.replacing
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["what the kernel gave: *test_kernel*groups_of_7.obtained.h5"])
    assert not (made / OP / "groups_of_7.obtained.h5").exists()


def test_properties_of_the_junit_report(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    run(GOOD, "-k", "groups_of_7", "--junitxml", pytester.path / "r.xml")
    root = ElementTree.parse(pytester.path / "r.xml").getroot()
    (case,) = root.iter("testcase")
    told = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert told == {"rung": "bits", "max_ulp": "0", "policy": "cuda", "recipe": "modular-apple"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("pass", "golden.check was not called: nothing was compared"),
        (
            "golden.check(golden.inputs['y'][:-1])",
            "*got: shape (4, 77) was given; (5, 77) is needed",
        ),
        (
            "golden.check(golden.inputs['y'].astype('f8'))",
            "*got: dtype float64 was given; float32 is needed",
        ),
        ("golden.check({'gated': golden.inputs['y']})", "*an output named 'out' is needed*"),
        ("golden.check({'outt': golden.inputs['y']})", "*has no stage outt; it has gated, *"),
        ("golden.check(None)", "*got: dtype object was given; *"),
    ],
)
def test_what_is_no_result(run: Callable[..., pytest.RunResult], body: str, says: str) -> None:
    result = run(f"def test_kernel(golden):\n    {body}", "-k", "groups_of_7")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines([says])


def test_bits_can_be_asked_for(run: Callable[..., pytest.RunResult]) -> None:
    """A last bit that cuda allows in float32: accepted, unless the mark asks for bits."""
    source = """
import numpy as np, pytest, refkern
@pytest.mark.goldens("groups_of_7"{more})
def test_kernel(golden):
    lo, hi = refkern.accept.gated_group_rmsnorm(**golden.inputs, **golden.params, policy="cuda")
    golden.check(lo)
"""
    run(source.replace("{more}", "")).assert_outcomes(passed=1)
    result = run(source.replace("{more}", ", rung='bits'"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*elements are not the bits of modular-apple*"])
    run(source.replace("{more}", ", policy='ieee'")).assert_outcomes(failed=1)


def test_cases_outside_of_a_recipe_s_domain_are_skipped(
    run: Callable[..., pytest.RunResult],
) -> None:
    source = """
import pytest, refkern
@pytest.mark.goldens("groups_*", "no_gate", recipe="modular-vector")
def test_kernel(golden):
    kernel = refkern.reference.gated_group_rmsnorm
    golden.check(kernel(**golden.inputs, **golden.params, recipe=golden.recipe))
"""
    result = run(source, "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*group_size: 7 was given; *multiple of 4*"])
    run(source.replace("modular-vector", "nix"), "-k", "no_gate").assert_outcomes(
        errors=1, deselected=2
    )


def test_inputs_are_copies_with_the_case_s_strides(run: Callable[..., pytest.RunResult]) -> None:
    source = """
import pytest, refkern
@pytest.mark.goldens("gate_of_fused_projection")
def test_kernel(golden):
    gate = golden.inputs["gate"]
    assert gate.strides == (8192 * 2, 2) and gate.shape == (5, 3840)
    gate[...] = 0
    assert golden.inputs["gate"].any()
    golden.check(refkern.reference.gated_group_rmsnorm(**golden.inputs, **golden.params))
"""
    run(source).assert_outcomes(passed=1)


def test_another_plugin_s_golden_is_left_alone(run: Callable[..., pytest.RunResult]) -> None:
    source = """
import pytest
@pytest.fixture
def golden():
    return 42
def test_own(golden):
    assert golden == 42
"""
    run(source).assert_outcomes(passed=1)


def test_with_xdist(pytester: pytest.Pytester, made: Path) -> None:
    pytester.makepyfile(GOOD)
    result = pytester.runpytest_subprocess(
        "-n", "2", "-v", "-p", "no:cacheprovider", "--refkern-goldens", str(made)
    )
    result.assert_outcomes(passed=4)


def test_a_run_without_goldens_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        def test_it():
            loaded = {m.partition(".")[0] for m in sys.modules}
            assert "refkern" in loaded
            assert not loaded & {"h5py", "numba", "click", "rich", "torch"}
            assert "refkern.goldens.verify" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_nothing_is_read_while_tests_are_collected(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    folder = tmp_path / "goldens" / OP
    folder.mkdir(parents=True)
    (folder / "rubbish.h5").write_bytes(b"no HDF5")
    pytester.makepyfile(GOOD)
    result = pytester.runpytest_inprocess(
        "--collect-only", "-q", "--refkern-goldens", str(folder.parent)
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"*test_kernel?{OP}/rubbish?"])


def test_torch_keeps_every_bit() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for fmt in (*NARROW, FLOAT32):
        every = np.arange(1 << min(fmt.bits, 16)).astype(fmt.code_dtype)
        array = from_codes(every, fmt)
        tensor = frameworks.to_torch(array)
        assert tensor.dtype == getattr(torch, fmt.name)
        back = frameworks.to_numpy("x", tensor)
        assert back.dtype == array.dtype
        assert np.array_equal(codes(back), codes(array))
    offsets = frameworks.to_torch(np.array([0, 3, 1 << 31], np.uint32))
    assert offsets.dtype == torch.uint32
    wide = np.zeros((3, 8), np.float32)[:, :5]
    assert frameworks.to_torch(wide).stride() == (8, 1)
    assert frameworks.to_torch(wide, "meta").stride() == (8, 1)
    assert frameworks.to_torch(np.zeros((3, 5), np.float32), "meta").device.type == "meta"


def test_explain_takes_another_recipe(made: Path) -> None:
    """What `verify --recipe R` reports of a failed case is explained against R."""
    from refkern import policy

    golden = hdf5.read(made / OP / "groups_of_7.h5")
    prepared, _ = prepare(golden)
    got = golden.outputs["out"].copy()
    got[0, 0] += 1
    found = explain(prepared, got, {}, policy.load("cuda"), "mamba-ssm")
    assert found.verdict.recipe == "mamba-ssm"
    assert explain(prepared, got, {}, policy.load("cuda")).verdict.recipe == "modular-apple"


def test_the_plugin_is_an_entry_point() -> None:
    code = "from importlib.metadata import entry_points as e; print(*e(group='pytest11').names)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert "refkern" in done.stdout.split()
