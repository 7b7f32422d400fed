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
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

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

    def submit(self, work: Callable[[], None]) -> Future[None] | None:
        """Run ``work`` in a worker; None if the interpreter is shutting down."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(available_threads(), "refkern")
            with contextlib.suppress(RuntimeError):
                return self._executor.submit(work)
        return None


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.reset)


def set_num_threads(n: int) -> None:
    """Use at most ``n`` threads in every launch from now on, from 1 to the available cores."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= available_threads():
        raise InvalidInput("threads", repr(n), f"1 to {available_threads()} are available here")
    _pool.limit = n


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

    helpers = [_pool.submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        # Also when interrupted: nobody may still write into `out` after this returns.
        next_after_end = count
        while next(starts) < next_after_end:
            pass
        results = [h for h in helpers if h is not None and not h.cancel()]
        for helper in results:
            with contextlib.suppress(BaseException):
                helper.exception()
    for helper in results:
        helper.result()
