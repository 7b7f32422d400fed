"""grouped_matmul against torch on this CPU, and against what reading memory costs.

    python tests/exhaustive/bench_grouped_matmul.py [REPETITIONS [cpu]]

Everything in one run, by turns, medians.  With "cpu": CPU seconds of all threads over the number of
threads, which other processes on the machine disturb less (OMP_WAIT_POLICY=PASSIVE, or torch's idle
threads count too).  Shape: gate_up of Qwen3-30B-A3B, 32 of 128 experts,
N = 1536, K = 2048, bfloat16.  Weights are 201 MiB: decode reads them once from memory.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import refkern

EXPERTS, COLUMNS, K = 32, 1536, 2048
#: rows of each group, number of groups, recipe
CASES = (
    ("decode, 8 tokens over 8 experts", 1, 8),
    ("decode, 32 tokens over 32 experts", 1, 32),
    ("decode, 4 tokens for each of 8", 4, 8),
    ("decode, 16 tokens for each of 8", 16, 8),
    ("prefill, 64 tokens for each of 8", 64, 8),
    ("prefill, 256 tokens for each of 4", 256, 4),
)


def seconds(work: Callable[[], object], cpu: bool) -> float:
    clock = time.process_time if cpu else time.perf_counter
    start = clock()
    work()
    return (clock() - start) / (refkern.threads.get_num_threads() if cpu else 1)


def main(repetitions: int, cpu: bool) -> None:
    torch.manual_seed(0)
    weights = (torch.randn(EXPERTS, COLUMNS, K) * 0.02).to(torch.bfloat16)
    threads = refkern.threads.get_num_threads()
    torch.set_num_threads(threads)
    print(
        f"{'CPU' if cpu else 'wall'} time, {threads} threads, "
        f"torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()})"
    )
    # As many bytes as the weights, summed by torch's threads: read bandwidth of this machine now.
    memory = torch.from_numpy(np.ones(weights.numel() // 4, np.int64))
    for name, rows, groups in CASES:
        a = torch.randn(rows * groups, K).to(torch.bfloat16)
        ends = torch.arange(1, groups + 1, dtype=torch.int32) * rows
        part = memory[: groups * COLUMNS * K // 4]
        used, transposed = weights[:groups], weights[:groups].transpose(-2, -1)
        grouping = refkern.offsets_from_ends(ends)
        works = {
            "refkern": lambda a=a, used=used, g=grouping: refkern.grouped_matmul(a, used, *g),
            "torch": lambda a=a, t=transposed, ends=ends: torch._grouped_mm(a, t, ends),
            "read": lambda part=part: part.sum(),
        }
        for work in works.values():
            work()
        times: dict[str, list[float]] = {who: [] for who in works}
        for _ in range(repetitions):
            for who, work in works.items():
                times[who].append(seconds(work, cpu))
        took = {who: statistics.median(values) for who, values in times.items()}
        size, work_done = 2 * used.numel() / 1e9, 2 * rows * used.numel() / 1e9
        print(
            f"{name}: {took['torch'] / took['refkern']:.1f} times torch; "
            f"{took['refkern'] * 1e3:.1f} ms, {size / took['refkern']:.1f} GB/s "
            f"({took['read'] / took['refkern']:.0%} of the read bandwidth "
            f"{size / took['read']:.1f} GB/s), {work_done / took['refkern']:.1f} GFLOP/s; "
            f"torch {took['torch'] * 1e3:.1f} ms, {work_done / took['torch']:.1f} GFLOP/s",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7, "cpu" in sys.argv[2:])
