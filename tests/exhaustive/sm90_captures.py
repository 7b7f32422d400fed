"""refkern.hardware.sm90 against every capture of an H200, those too that are not in tests/data.

    python tests/exhaustive/sm90_captures.py FOLDER_WITH_THE_CAPTURES

Whole binades output by output (the test suite compares their SHA-256), every captured row sum, and
every FP8 group sum of the DenseMlp kernels.  Prints a table; exit code 1 on any difference.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hardware"))

from captures import DTYPES, mismatches

from refkern.errors import InvalidInput
from refkern.hardware import sm90

#: capture file, array, function, bits of the first of 2^23 inputs
BINADES = (
    ("h200_mufu_ex2", "ex2_p05", "ex2_approx_ftz", 0x3F000000),
    ("h200_mufu_ex2", "ex2_p025", "ex2_approx_ftz", 0x3E800000),
    ("h200_mufu_ex2", "ex2_p1", "ex2_approx_ftz", 0x3F800000),
    ("h200_mufu_ex2", "ex2_m1", "ex2_approx_ftz", 0xBF000000),
    ("h200_mufu_rcp_rsq", "rcp_1", "rcp_approx_ftz", 0x3F800000),
    ("h200_mufu_rcp_rsq", "rsq_1", "rsqrt_approx_ftz", 0x3F800000),
    ("h200_mufu_rcp_rsq", "rsq_2", "rsqrt_approx_ftz", 0x40000000),
    ("h200_mufu_sqrt", "sqrt_1", "sqrt_approx_ftz", 0x3F800000),
    ("h200_mufu_sqrt", "sqrt_2", "sqrt_approx_ftz", 0x40000000),
    ("h200_mufu_sqrt", "lg2_2", "lg2_approx_ftz", 0x40000000),
    ("h200_mufu_sqrt", "lg2_4", "lg2_approx_ftz", 0x40800000),
    ("h200_mufu_lg2", "lg2_1", "lg2_approx_ftz", 0x3F800000),
    ("h200_mufu_lg2", "lg2_05", "lg2_approx_ftz", 0x3F000000),
)


def captured_binade(file: dict[str, np.ndarray], name: str) -> np.ndarray:
    """The outputs, float32 [2^23], of their first and the differences of neighbours."""
    steps = np.concatenate([[0], np.cumsum(file[f"{name}_d"].astype(np.int64))])
    if f"{name}_v0" in file:
        return (int(file[f"{name}_v0"][0]) + steps).astype(np.uint32).view(np.float32)
    fixed = int(file[f"{name}_y0"][0]) + int(file[f"{name}_g"]) * steps  # in units of 2^-50
    return np.ldexp(fixed.astype(np.float64), -50).astype(np.float32)


def dense_mlp_order() -> np.ndarray:
    """The places in 128 of K that DenseMlp's four mma.sync read, in PTX's k order.

    In a step of 64 instruction e takes the bytes 8e .. 8e + 7 of every 16.
    """
    k = np.arange(64)
    return np.concatenate([64 * step + k[k // 8 % 2 == e] for step in (0, 1) for e in (0, 1)])


def main(folder: Path) -> int:
    rows: list[tuple[str, int, int]] = []
    for file_name, name, function, first in BINADES:
        with np.load(folder / f"{file_name}.npz") as file:
            want = captured_binade(dict(file), name)
        x = (np.arange(1 << 23, dtype=np.uint32) + np.uint32(first)).view(np.float32)
        rows.append(
            (f"{function}, {name}", want.size, mismatches(getattr(sm90, function)(x), want))
        )

    compared = wrong = 0
    with np.load(folder / "h200_torch_reduce.npz") as file:
        for name in sorted(n[:-2] for n in file if n.startswith("red") and n.endswith("_x")):
            x = file[f"{name}_x"].view(np.float32)
            try:
                order = sm90.torch_row_order(*x.shape)
            except InvalidInput as error:
                print(f"{name}: {error}")
                continue
            factor = np.float32(sm90.torch_mean_factor(*x.shape))
            got = {"sum": order.replay(x), "mean": order.replay(x) * factor,
                   "sq": order.replay(x, x) * factor}  # fmt: skip
            for what in got:
                if f"{name}_{what}" in file:
                    compared += len(x)
                    wrong += mismatches(got[what], file[f"{name}_{what}"].view(np.float32))
    rows.append(("torch's row sums and means", compared, wrong))

    with np.load(folder / "h200_densemlp_small.npz") as file:
        for weights, activations, sums in (("w13", "xq", "acc13"), ("w2", "aq", "acc2")):
            w, x = (file[n].view(DTYPES["e4m3"]) for n in (weights, activations))
            got = sm90.gemm_chain("mma.m16n8k32.e4m3", x, w, order=dense_mlp_order(), group=128)
            want = file[sums].view(np.float32)
            rows.append((f"DenseMlp {sums}", want.size, mismatches(np.moveaxis(got, 0, -1), want)))

    for name, compared, wrong in rows:
        print(f"{name:40} {compared:>10,} compared {wrong:>8,} mismatches")
    return 1 if any(wrong for _, _, wrong in rows) else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
