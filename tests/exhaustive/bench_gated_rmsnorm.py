"""refkern's gated_rmsnorm beside ONNX Runtime's, alternating in one run, at equal threads.

Prints medians and their ratio.  ONNX Runtime's workers do not spin when idle: they would keep a
core busy in refkern's turns.  That costs it a fifth at (64, 128) and nothing on longer runs.  It
runs bound to preallocated arrays; refkern is called as a user calls it, with ``out=``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import refkern
from refkern.goldens.backends import onnxruntime
from refkern.threads import available_threads

SHAPES = ((1, 7680), (64, 128), (4096, 128), (512, 8192))
#: what is to be reached
WANTED = {(1, 7680): 3.0, (64, 128): 8.0, (4096, 128): 8.0, (512, 8192): 8.0}
RECIPES = ("onnxruntime-cpu", "webgpu-subgroup-rows-vec4")


def alternate(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median seconds of each, taken in turn until ``seconds`` are over."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(runs))]) < 5:
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="per line of the table")
    options = parser.parse_args()
    print(f"{onnxruntime.installed_version()}; refkern {refkern.__version__}")
    print("threads  shape         dtype     onnxruntime  " + "".join(f"{r:>34}" for r in RECIPES))
    for threads in sorted({1, min(2, available_threads())}):
        refkern.set_num_threads(threads)
        for shape in SHAPES:
            for dtype in (np.float32, np.float16):
                print_line(threads, shape, np.dtype(dtype), options.seconds)


def print_line(threads: int, shape: tuple[int, int], dtype: np.dtype, seconds: float) -> None:
    drawn = np.random.default_rng(0)
    x, gate = (drawn.normal(0, s, shape).astype(dtype) for s in (1, 3))
    scale = drawn.normal(0, 1, shape[1]).astype(dtype)
    out = {name: np.empty_like(x) for name in ("onnxruntime", *RECIPES)}
    runs: dict[str, Callable[[], object]] = {
        "onnxruntime": onnxruntime.bound(
            x, scale, gate, out["onnxruntime"], threads=threads, spins=False
        )
    }
    for recipe in RECIPES:
        runs[recipe] = lambda recipe=recipe: refkern.gated_rmsnorm(  # type: ignore[misc]
            x, scale, gate, recipe=recipe, out=out[recipe]
        )
    medians = alternate(runs, seconds)
    assert out["onnxruntime"].tobytes() == out["onnxruntime-cpu"].tobytes(), "other bits"
    peer = medians["onnxruntime"]
    cells = [
        f"{medians[r] * 1e6:12.1f} us, {peer / medians[r]:5.1f} x (want {WANTED[shape]:g})"
        for r in RECIPES
    ]
    print(f"{threads:7}  {shape!s:13} {dtype!s:8} {peer * 1e6:9.1f} us  "
          + "".join(f"{c:>34}" for c in cells), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
