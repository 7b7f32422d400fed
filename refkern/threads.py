"""Threads of the CPU kernels: refkern's own, not numba's.

numba's own parallel loops cannot be had safely inside somebody's server: its `workqueue` layer
aborts the process when two Python threads launch at once, its `omp` layer kills a forked child,
and the third is not installed by default.  So kernels are compiled without `parallel=True` but
release the GIL, and a launch hands blocks of independent outputs to a thread pool.  Concurrent
launches share the pool; a forked child gets a new one; no numba setting changes anything.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from refkern.errors import InvalidInput

#: below this estimated time one thread is faster than waking a second
SERIAL_BELOW_NANOSECONDS = 60_000
#: blocks per thread, so that one slow core does not hold up the rest
BLOCKS_PER_THREAD = 4


def available_threads() -> int:
    """The most threads a launch may use: the cores this process may run on."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _initial() -> int:
    """NUMBA_NUM_THREADS, which users of numba know, or every available core."""
    with contextlib.suppress(ValueError):
        return max(1, min(int(os.environ.get("NUMBA_NUM_THREADS", "")), available_threads()))
    return available_threads()


class _Pool:
    """The worker threads; made when first needed and forgotten in a forked child."""

    def __init__(self) -> None:
        self.limit = _initial()
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Have a worker run ``work`` at some time, or never if the interpreter is shutting down."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(available_threads(), "refkern")
            with contextlib.suppress(RuntimeError):
                self._executor.submit(work)


class _CompilerAtFork:
    """numba's compiler lock, held over a fork.

    A thread that compiles holds it; a child forked meanwhile would have no such thread, and its
    own first compilation would wait for ever.  So a fork waits until nobody compiles.
    """

    def __init__(self) -> None:
        self._held = threading.local()

    def take(self) -> None:
        module = sys.modules.get("numba.core.compiler_lock")
        lock = getattr(module, "global_compiler_lock", None)  # None where numba is not loaded
        if lock is not None:
            lock.acquire()
        self._held.lock = lock

    def release(self) -> None:
        if self._held.lock is not None:
            self._held.lock.release()


_pool = _Pool()
_compiler = _CompilerAtFork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.reset)
    os.register_at_fork(
        before=_compiler.take,
        after_in_parent=_compiler.release,
        after_in_child=_compiler.release,
    )


def set_num_threads(n: int) -> None:
    """Use at most ``n`` threads in every launch from now on, from 1 to the available cores."""
    most = available_threads()
    try:
        number = 0 if isinstance(n, bool) else operator.index(n)
    except TypeError:
        number = 0
    if not 1 <= number <= most:
        raise InvalidInput("n", repr(n), f"threads are available here from 1 to {most}")
    _pool.limit = number


def get_num_threads() -> int:
    return _pool.limit


def launch(block: Callable[[int, int], None], count: int, nanoseconds_each: float) -> None:
    """Call ``block(first, stop)`` over 0 .. count, in blocks, from as many threads as pay.

    The blocks must write disjoint outputs; the order inside a block is the kernel's own, so the
    number of threads cannot change a bit.  nanoseconds_each: a rough cost of one unit.
    """
    threads = min(_pool.limit, count)
    if threads <= 1 or count * nanoseconds_each < SERIAL_BELOW_NANOSECONDS:
        if count:
            block(0, count)
        return
    size = -(-count // (threads * BLOCKS_PER_THREAD))
    starts = itertools.count(0, size)  # next() on it is atomic: every block is taken once

    def work() -> None:
        while (first := next(starts)) < count:
            block(first, min(first + size, count))

    helpers = [_Helper(work) for _ in range(threads - 1)]
    interrupt = None
    try:
        for helper in helpers:
            _pool.submit(helper)
        work()
    finally:
        # Also when interrupted: nobody may still write into `out` after this returns.
        interrupt = _finish(starts, count, helpers)
    for error in [interrupt, *(helper.error for helper in helpers)]:
        if error is not None:
            raise error


class _Helper:
    """The part of a launch that another thread may take."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        #: held while blocks are computed
        self.busy = threading.Lock()
        self.error: BaseException | None = None

    def __call__(self) -> None:
        with self.busy:
            try:
                self.work()
            except BaseException as error:
                self.error = error


def _finish(
    starts: Iterator[int], count: int, helpers: Sequence[_Helper]
) -> KeyboardInterrupt | None:
    """Leave no block to take, and wait until none is being computed, whatever interrupts.

    A helper that starts later than this finds nothing to do.  Returns an interrupt that came
    meanwhile.
    """
    interrupt = None
    while True:
        try:
            while next(starts) < count:
                pass
            for helper in helpers:
                with helper.busy:
                    pass
        except KeyboardInterrupt as another:
            interrupt = another
        else:
            return interrupt
