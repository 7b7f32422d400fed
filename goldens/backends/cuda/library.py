"""The CUDA sources of this folder as a library: compiled by nvcc at first use, loaded by ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from refkern.goldens.backends import Unavailable

HERE = Path(__file__).parent
#: no fast math; what may be contracted is written as an intrinsic
FLAGS = ("-O2", "-std=c++17", "--fmad=false", "-shared", "-Xcompiler=-fPIC", "--threads=0")
COMPILE_SECONDS = 600
#: of cuDeviceGetAttribute
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    #: (9, 0) is Hopper
    capability: tuple[int, int]
    #: the newest CUDA that the driver knows, 13000 for 13.0
    driver: int

    @property
    def architecture(self) -> str:
        """As nvcc names it; Hopper's own instructions are in sm_90a only."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + "a" * (self.capability == (9, 0))

    def __str__(self) -> str:
        driver = f"{self.driver // 1000}.{self.driver % 1000 // 10}"
        return f"{self.name} ({self.architecture}), driver for CUDA {driver}"


def device_index(device: str | None) -> int:
    """None, "cuda", "cuda:1" or "1" -> the device's number.  Raises Unavailable."""
    number = (device or "0").removeprefix("cuda").removeprefix(":") or "0"
    if not number.isdecimal():
        raise Unavailable(f"device {device!r}: cuda or cuda:NUMBER is needed")
    return int(number)


@cache
def find_gpu(index: int) -> Gpu:
    """Raises Unavailable without a driver or without such a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise Unavailable("no NVIDIA driver: libcuda.so.1 is not found") from None
    failed = driver.cuInit(0)
    if failed:
        raise Unavailable(f"cuInit gives error {failed}: no NVIDIA GPU can be used")
    handle, version = ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(handle), index):
        raise Unavailable(f"there is no CUDA device {index}")
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), handle)
    driver.cuDriverGetVersion(ctypes.byref(version))
    capability = []
    for attribute in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR):
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        capability.append(value.value)
    return Gpu(index, name.value.decode(), (capability[0], capability[1]), version.value)


@cache
def toolkit() -> tuple[str, str]:
    """(path of nvcc, its release).  Raises Unavailable."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        raise Unavailable("nvcc is not found")
    ran = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    if ran.returncode or "release " not in ran.stdout:
        raise Unavailable(f"{nvcc} --version fails")
    return nvcc, ran.stdout.split("release ")[1].split(",")[0]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "refkern" / "cuda"


def compiled(architecture: str, folder: Path | None = None) -> Path:
    """The library for an architecture; from the folder, where it is there.  Raises Unavailable."""
    nvcc, release = toolkit()
    sources = sorted([*HERE.glob("*.cu"), *HERE.glob("*.cuh")])
    key = hashlib.sha256(repr((release, architecture, FLAGS)).encode())
    for source in sources:
        key.update(source.name.encode() + b"\0" + source.read_bytes())
    folder = cache_folder() if folder is None else folder
    library = folder / f"refkern-{architecture}-{key.hexdigest()[:16]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        target = Path(temporary) / library.name
        translated = [str(source) for source in sources if source.suffix == ".cu"]
        command = [nvcc, *FLAGS, f"-arch={architecture}", "-o", str(target), *translated]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS
        )
        if ran.returncode:
            raise Unavailable(f"nvcc fails: {' '.join((ran.stdout + ran.stderr).split())[-500:]}")
        # Whoever else compiles it at this moment has the same bytes of code.
        os.replace(target, library)
    return library


@cache
def load(index: int) -> ctypes.CDLL:
    """The library for a GPU, which its calls are then for.  Raises Unavailable."""
    library = ctypes.CDLL(str(compiled(find_gpu(index).architecture)))
    for name in FUNCTIONS:
        getattr(library, name).restype = ctypes.c_char_p
    return library


FUNCTIONS = (
    "refkern_use_device",
    "refkern_gated_group_rmsnorm",
    "refkern_gated_rmsnorm",
    "refkern_grouped_matmul",
    "refkern_block_scaled_mlp",
)


class KernelFailure(RuntimeError):
    """A CUDA error, or a shape that a kernel refuses."""


def call(index: int, name: str, *arguments: object) -> None:
    """Raises KernelFailure with what CUDA says."""
    library = load(index)
    for function, given in (("refkern_use_device", (ctypes.c_int(index),)), (name, arguments)):
        failure = getattr(library, function)(*given)
        if failure is not None:
            raise KernelFailure(failure.decode())
