"""Thousands of honest kernels per op and stored policy: none may be rejected.

    python tests/exhaustive/no_false_alarms.py [--op OP] [--kernels 2000]

The kernels (tests/intervals/honest.py) are spread over the op's small quick cases.  Prints a table
and exits 1 if any was rejected.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "intervals"))
from test_no_false_alarms import STORED, run, small_cases

from refkern import ops


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", choices=ops.names())
    parser.add_argument("--kernels", type=int, default=2000)
    arguments = parser.parse_args()
    failed = False
    print(f"{'op':22} {'policy':8} {'kernels':>8} {'rejected':>9} {'seconds':>8}")
    for op in [arguments.op] if arguments.op else ops.names():
        cases = small_cases(op)
        each = -(-arguments.kernels // len(cases))
        for policy in STORED:
            started = time.perf_counter()
            rejected = [text for case in cases for text in run(case, policy, range(each))]
            seconds = time.perf_counter() - started
            total = each * len(cases)
            print(f"{op:22} {policy:8} {total:8} {len(rejected):9} {seconds:8.0f}", flush=True)
            for text in rejected[:3]:
                print(f"    {text}")
            failed = failed or bool(rejected)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
