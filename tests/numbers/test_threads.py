"""Launches: every block once, from several Python threads, over forks, errors and interrupts.

What could hang or end the process runs in a process of its own, with a limit on its time.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import refkern
from refkern import InvalidInput, threads

LIMIT_SECONDS = 180
COSTLY = 1e9


def run_python(source: str, **environment: str | None) -> str:
    """The output of a Python process that must end well; None removes a variable."""
    env = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(source)],
        env={name: value for name, value in env.items() if value is not None},
        cwd=tempfile.gettempdir(),  # not the repository: it would come before the installed package
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def limit():
    """Sets the number of threads of a launch, also above the cores; undone afterwards."""
    before = threads.get_num_threads()

    def use(n: int) -> None:
        threads._pool.limit = n

    yield use
    threads._pool.limit = before


# --- blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_every_index_is_taken_once(workers, limit):
    limit(workers)
    for count in (0, 1, 2, 3, 7, 8, 9, 31, 100, 101, 1023, 4097):
        blocks: list[tuple[int, int]] = []
        threads.launch(lambda first, stop, taken=blocks: taken.append((first, stop)), count, COSTLY)
        blocks.sort()
        covered = [i for first, stop in blocks for i in range(first, stop)]
        assert covered == list(range(count))
        assert all(first < stop for first, stop in blocks)
        if workers > 1 and count > 100:
            assert len(blocks) > workers


def test_other_threads_help(limit):
    limit(2)
    both = threading.Barrier(2, timeout=60)  # passes only if two threads are in a block at once
    number = itertools.count()

    def block(first: int, stop: int) -> None:
        if next(number) < 2:
            both.wait()

    threads.launch(block, 8, COSTLY)
    assert both.broken is False


def test_little_work_stays_in_the_calling_thread(limit):
    limit(4)
    seen = []
    threads.launch(lambda *b: seen.append((b, threading.get_ident())), 100, 1.0)
    assert seen == [((0, 100), threading.get_ident())]


def test_a_launch_inside_a_launch(limit):
    limit(4)
    taken = np.zeros((20, 30), np.int64)

    def outer(first: int, stop: int) -> None:
        for row in range(first, stop):

            def inner(a: int, b: int, row: int = row) -> None:
                taken[row, a:b] += 1

            threads.launch(inner, 30, COSTLY)

    threads.launch(outer, 20, COSTLY)
    assert (taken == 1).all()


@pytest.mark.parametrize("where", ["caller", "helper", "both"])
def test_an_error_in_a_block_reaches_the_caller(where, limit):
    limit(2)
    caller = threading.get_ident()
    both = threading.Barrier(2, timeout=60)
    first_blocks = itertools.count()

    def block(first: int, stop: int) -> None:
        if next(first_blocks) < 2:
            both.wait()
            mine = "caller" if threading.get_ident() == caller else "helper"
            if where in (mine, "both"):
                raise ZeroDivisionError(mine)

    with pytest.raises(ZeroDivisionError, match="caller|helper" if where == "both" else where):
        threads.launch(block, 8, COSTLY)
    done = []
    threads.launch(lambda first, stop: done.append(stop - first), 100, COSTLY)
    assert sum(done) == 100


@pytest.mark.parametrize("wrong", [0, -1, 99_999, True, False, 1.5, 1.0, "2", None])
def test_set_num_threads_refuses(wrong):
    before = threads.get_num_threads()
    most = threads.available_threads()
    with pytest.raises(InvalidInput, match=rf"^n: .* was given; .* from 1 to {most}$"):
        refkern.set_num_threads(wrong)
    assert threads.get_num_threads() == before


def test_set_num_threads_takes_integers(limit):
    for n in (1, np.int64(1), threads.available_threads()):
        refkern.set_num_threads(n)
        assert threads.get_num_threads() == n


def test_the_initial_number_of_threads(monkeypatch):
    most = threads.available_threads()
    for given, wanted in (("1", 1), ("99999", most), ("0", 1), ("many", most), ("", most)):
        monkeypatch.setenv("NUMBA_NUM_THREADS", given)
        assert threads._initial() == wanted


# --- several Python threads -------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["workqueue", "omp"])
def test_fault_52_four_threads_call_at_once(layer):
    out = run_python(
        """
        import hashlib, threading
        import ml_dtypes, numpy as np, refkern

        rng = np.random.default_rng(0)
        y, gate = rng.standard_normal((2, 200, 1000)).astype(ml_dtypes.bfloat16)
        weight = np.ones(1000, ml_dtypes.bfloat16)
        call = lambda: refkern.gated_group_rmsnorm(y, gate, weight, group_size=250)
        wanted = refkern.reference.gated_group_rmsnorm(y, gate, weight, group_size=250)["out"]
        digests = [[] for _ in range(4)]

        def work(mine):
            for _ in range(200):
                mine.append(hashlib.sha256(call().view(np.uint16)).digest())

        workers = [threading.Thread(target=work, args=(d,)) for d in digests]
        for w in workers: w.start()
        for w in workers: w.join()
        every = [d for mine in digests for d in mine]
        assert len(every) == 800
        assert set(every) == {hashlib.sha256(wanted.view(np.uint16)).digest()}
        print("equal")
        """,
        NUMBA_THREADING_LAYER=layer,
    )
    assert out == "equal\n"


# --- forks ------------------------------------------------------------------------------------

CALL = """
import multiprocessing, os, signal, sys, threading, time
import ml_dtypes, numpy as np, refkern
from refkern import threads

rng = np.random.default_rng(0)
y, gate = rng.standard_normal((2, 300, 1000)).astype(ml_dtypes.bfloat16)
weight = np.ones(1000, ml_dtypes.bfloat16)

def call(width=1000):
    return refkern.gated_group_rmsnorm(
        y[:, :width], gate[:, :width], weight[:width], group_size=width // 4
    ).tobytes()

def ends_well(pid, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_computes():
    out = run_python(
        CALL
        + textwrap.dedent("""
        wanted = call()
        assert threads._pool._executor is not None or threads.available_threads() == 1

        # os.fork, with the workers waiting; the child leaves by way of the interpreter's own end
        def others_help():
            threads._pool.limit = 2
            both, number = threading.Barrier(2, timeout=30), iter(range(8))
            def block(first, stop):
                if next(number) < 2: both.wait()
            threads.launch(block, 8, 1e9)
            return not both.broken

        pid = os.fork()
        if pid == 0:
            sys.exit(0 if call() == wanted and others_help() and call() == wanted else 1)
        print(ends_well(pid))

        # a child of a child, forked while another thread of the parent launches all the time
        stop = threading.Event()
        def busy():
            while not stop.is_set(): call()
        other = threading.Thread(target=busy)
        other.start()
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                second = os.fork()
                if second == 0:
                    os._exit(0 if call() == wanted else 1)
                os._exit(0 if ends_well(second) and call() == wanted else 1)
            if not ends_well(pid): print("the child of a busy parent failed")
        stop.set(); other.join()

        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(call, [1000] * 4) == [wanted] * 4)
        print(call() == wanted)
        """)
    )
    assert out == "True\nTrue\nTrue\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_a_thread_compiles_can_compile():
    """numba's compiler lock would stay locked in the child for ever."""
    out = run_python(
        CALL
        + textwrap.dedent("""
        import numba
        from numba.core.compiler_lock import global_compiler_lock
        from refkern.compiled import casts
        from refkern.formats import FLOAT32, FLOAT64, NARROW

        def compile_much():
            for fmt in NARROW[:4]:
                for source in (FLOAT32, FLOAT64):
                    casts.narrow(source, fmt)(source.dtype.type(1))

        other = threading.Thread(target=compile_much)
        other.start()
        while global_compiler_lock._lock.acquire(blocking=False):
            global_compiler_lock._lock.release()  # nobody compiles yet
            time.sleep(0.0005)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if numba.njit(lambda x: x + 1)(1) == 2 and len(call()) else 1)
        print(ends_well(pid, 40))
        other.join()
        # and in the parent too
        print(numba.njit(lambda x: x + 2)(1))
        """)
    )
    assert out == "True\n3\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_loads_no_numba():
    out = run_python(
        """
        import os, sys, refkern
        pid = os.fork()
        if pid == 0: os._exit("numba" in sys.modules)
        print(os.waitpid(pid, 0)[1], "numba" in sys.modules)
        """
    )
    assert out == "0 False\n"


# --- interrupts -------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupts", [1, 3])
def test_an_interrupted_launch_leaves_nobody_writing(interrupts):
    """Also where the user interrupts again while the launch waits for its helper."""
    out = run_python(
        """
        import os, signal, threading, time
        from refkern import threads

        # A shell that starts a job in the background has it ignore the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threads._pool.limit = 2
        caller = threading.get_ident()
        interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
        timers = [threading.Timer(0.2 * (n + 1), interrupt) for n in range(INTERRUPTS)]
        helper_is_busy, writes = threading.Event(), []

        def block(first, stop):
            if threading.get_ident() == caller:
                helper_is_busy.wait()
                for timer in timers: timer.start()
                time.sleep(60)
            helper_is_busy.set()
            while timers[-1].ident is None: time.sleep(0.01)
            for timer in timers: timer.join()
            time.sleep(0.4)
            writes.append(first)

        try:
            threads.launch(block, 64, 1e9)
        except KeyboardInterrupt:
            count = len(writes)
        time.sleep(0.6)
        print(count, len(writes))
        """.replace("INTERRUPTS", str(interrupts))
    )
    before, after = map(int, out.split())
    assert before == after == 1  # the block that was being computed, and no other


# --- no cache ---------------------------------------------------------------------------------


def test_nothing_is_written_beside_the_package_and_no_home_is_needed(tmp_path: Path):
    package = tmp_path / "site" / "refkern"
    shutil.copytree(
        Path(refkern.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    for path in [package, *package.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        out = run_python(
            CALL + "print(refkern.__file__, len(call()), end='')",
            PYTHONPATH=str(package.parent),
            PYTHONDONTWRITEBYTECODE="1",
            HOME=None,
            NUMBA_CACHE_DIR=None,
            XDG_CACHE_HOME=str(tmp_path / "cache"),
        )
        assert out == f"{package / '__init__.py'} {300 * 1000 * 2}"
        after = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
        assert after == before
    finally:
        for path in [package, *package.rglob("*")]:
            path.chmod(0o755)
