"""refkern.hardware.sm90 against an NVIDIA Hopper GPU: every input of every function.

    python tests/exhaustive/sm90_device.py --out DIR            on a machine with an sm_90 GPU
    python tests/exhaustive/sm90_device.py --cpu                without one: see below
    python tests/exhaustive/sm90_device.py --recorded           without one, against recorded hashes

Builds sm90_device.cu with nvcc.  For each function the device hashes its outputs over all 2^32
inputs (2^32 pairs for a function of two), one hash for each of 512 blocks of 2^23; the same hashes
are computed here from refkern's compiled functions.  Where a block differs its outputs are fetched
and the inputs that differ are counted (in the first 16 such blocks).  Then every tensor-core
instruction runs on random tiles.

DIR gets report.md, report.json and h200_block_hashes.npz: the device's own hashes, which
``--recorded`` (and the test suite, on some blocks) compares later without a device.  ``--cpu`` puts
the numpy versions in the device's place, on a few blocks.

Needs only numpy, numba and ml_dtypes; refkern is taken from the checkout.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "hardware")]

from block_hashes import (  # noqa: E402
    BLOCK,
    BLOCKS,
    FUNCTIONS,
    block_hashes,
    block_inputs,
    hash_outputs,
    outputs_of,
)
from hard_tiles import CATEGORIES, random_tiles  # noqa: E402

from refkern.hardware import sm90  # noqa: E402
from refkern.threads import get_num_threads  # noqa: E402

#: differing blocks of a function whose outputs are fetched and counted; further ones are only named
MOST_FETCHED = 16
RECORDED = HERE.parent / "data" / "h200_block_hashes.npz"


class Device:
    """The compiled CUDA program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "sm90_device"
        target = "-gencode=arch=compute_90a,code=sm_90a"
        source = str(HERE / "sm90_device.cu")
        subprocess.run(["nvcc", "-O2", target, "-o", str(self.program), source], check=True)

    def _run(self, *arguments: object) -> str:
        command = [str(self.program), *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def hashes(self, name: str, blocks: np.ndarray) -> np.ndarray:
        lines = self._run("hashes", name).split("\n")[:BLOCKS]
        return np.array([int(line.split()[1], 16) for line in lines], np.uint64)[blocks]

    def outputs(self, name: str, block: int) -> np.ndarray:
        path = self.folder / "block"
        self._run("dump", name, f"{block:x}", path)
        return np.fromfile(path, np.uint32)

    def mma(self, name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        paths = [self.folder / letter for letter in "ABCD"]
        for path, array in zip(paths, (a, b, c), strict=False):
            np.ascontiguousarray(array).view(np.uint8).tofile(path)
        self._run("mma", name, len(a), *paths)
        return np.fromfile(paths[3], c.dtype).reshape(c.shape)

    def describe(self) -> str:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpu = subprocess.run(query, check=True, capture_output=True, text=True).stdout
        nvcc = subprocess.run(["nvcc", "--version"], check=True, capture_output=True, text=True)
        return f"{gpu.splitlines()[0]}, nvcc {nvcc.stdout.split('release ')[1].split(',')[0]}"


class Numpy:
    """The numpy versions in the device's place."""

    def hashes(self, name: str, blocks: np.ndarray) -> np.ndarray:
        return np.array(
            [hash_outputs(b, self.outputs(name, b)) for b in blocks.tolist()], np.uint64
        )

    def outputs(self, name: str, block: int) -> np.ndarray:
        result = getattr(sm90.reference, name)(*block_inputs(name, block))
        return np.ascontiguousarray(result).view(f"u{result.itemsize}").astype(np.uint32)

    def mma(self, name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return sm90.reference.mma(name, a, b, c)

    def describe(self) -> str:
        return "numpy in the device's place"


class Recorded(Numpy):
    """The hashes that a device has left."""

    def __init__(self) -> None:
        with np.load(RECORDED) as file:
            self.recorded = dict(file)

    def hashes(self, name: str, blocks: np.ndarray) -> np.ndarray:
        return self.recorded[name][blocks]

    def outputs(self, name: str, block: int) -> np.ndarray:
        raise SystemExit(f"{name}: block {block:03x} differs from the recorded hash")

    def describe(self) -> str:
        return f"recorded hashes: {self.recorded['device']}"


def compare_function(device: Device | Numpy, name: str, blocks: np.ndarray) -> dict:
    theirs = device.hashes(name, blocks)
    started = time.perf_counter()
    ours = block_hashes(name, blocks)
    seconds = time.perf_counter() - started
    wrong = blocks[ours != theirs].tolist()
    mismatches, examples = 0, []
    for block in wrong[:MOST_FETCHED]:
        got, want = outputs_of(name, block), device.outputs(name, block)
        at = np.nonzero(got != want)[0]
        mismatches += at.size
        if not examples:
            examples = [
                f"{block * BLOCK + k:08x}: refkern {got[k]:08x}, device {want[k]:08x}"
                for k in at[:5].tolist()
            ]
    threads = get_num_threads()
    return {
        "name": name,
        "compared": len(blocks) * BLOCK,
        "mismatches": mismatches,
        "blocks": len(blocks),
        "differing_blocks": len(wrong),
        "examples": examples,
        "nanoseconds_each_thread": round(seconds * threads / (len(blocks) * BLOCK) * 1e9, 2),
        "hashes": theirs,
    }


def compare_instruction(device: Device | Numpy, name: str, tiles: int, seed: int) -> dict:
    instruction = sm90.INSTRUCTIONS[name]
    random = np.random.default_rng([seed, *name.encode()])
    rows = 64 if name.startswith("wgmma") else 16
    made = [
        random_tiles(random, instruction, instruction.k, category, tiles=tiles, m=rows, n=8)
        for category in CATEGORIES
    ]
    a, b, c = (np.concatenate(parts) for parts in zip(*made, strict=True))
    theirs = device.mma(name, a, b, c)
    sm90.mma(name, a[:1], b[:1], c[:1])
    started = time.perf_counter()
    ours = sm90.mma(name, a, b, c)
    seconds = time.perf_counter() - started
    carrier = f"u{c.itemsize}"
    wrong = ours.view(carrier) != theirs.view(carrier)
    by_category = wrong.reshape(len(CATEGORIES), -1).sum(axis=1).tolist()
    return {
        "name": name,
        "compared": wrong.size,
        "mismatches": int(wrong.sum()),
        "by_category": dict(zip(CATEGORIES, by_category, strict=True)),
        "not_finite": int((~np.isfinite(theirs)).sum()),
        "million_products_per_second": round(wrong.size * instruction.k / seconds / 1e6, 1),
    }


def report_lines(description: str, functions: list[dict], instructions: list[dict]) -> list[str]:
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    lines = [
        f"{date}: {description}",
        "",
        "| function | outputs compared | mismatches | ns per element and thread |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {f['name']} | {f['compared']:,} | {f['mismatches']:,} | "
        f"{f['nanoseconds_each_thread']} |"
        for f in functions
    ]
    lines += [
        "",
        "| instruction | outputs compared | of them not finite | mismatches | M products/s |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {i['name']} | {i['compared']:,} | {i['not_finite']:,} | {i['mismatches']:,} | "
        f"{i['million_products_per_second']} |"
        for i in instructions
    ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="numpy in the device's place")
    parser.add_argument("--recorded", action="store_true", help="hashes of an earlier run")
    parser.add_argument("--out", type=Path, help="folder for the report and the hashes")
    parser.add_argument("--tiles", type=int, help="tiles per instruction and category")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, help="compare every n-th block only")
    parser.add_argument("names", nargs="*", help="functions and instructions; default: all")
    chosen = parser.parse_args()
    step = chosen.blocks or (200 if chosen.cpu else 1)
    tiles = chosen.tiles or (20 if chosen.cpu else 2048)
    blocks = np.arange(0, BLOCKS, step)
    with tempfile.TemporaryDirectory() as folder:
        device: Device | Numpy
        if chosen.cpu:
            device = Numpy()
        elif chosen.recorded:
            device = Recorded()
        else:
            device = Device(Path(folder))
        functions, instructions = [], []
        for name in FUNCTIONS:
            if name in chosen.names or not chosen.names:
                functions.append(compare_function(device, name, blocks))
                found = functions[-1]
                print(name, found["mismatches"], "of", found["compared"], "in",
                      found["differing_blocks"], "blocks", *found["examples"],
                      sep="  ", flush=True)  # fmt: skip
        for name in sm90.INSTRUCTIONS:
            if name in chosen.names or not (chosen.names or chosen.recorded):
                instructions.append(compare_instruction(device, name, tiles, chosen.seed))
                found = instructions[-1]
                print(name, found["mismatches"], "of", found["compared"], found["by_category"],
                      sep="  ", flush=True)  # fmt: skip
        description = device.describe()
    print()
    print("\n".join(report_lines(description, functions, instructions)))
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        hashes = {f["name"]: f.pop("hashes") for f in functions}
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        np.savez(chosen.out / "h200_block_hashes.npz", device=f"{description}, {date}", **hashes)
        lines = report_lines(description, functions, instructions)
        (chosen.out / "report.md").write_text("\n".join(lines) + "\n")
        whole = {"device": description, "functions": functions, "instructions": instructions}
        (chosen.out / "report.json").write_text(json.dumps(whole, indent=1) + "\n")
    return (
        1
        if any(f["mismatches"] or f.get("differing_blocks") for f in functions + instructions)
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
