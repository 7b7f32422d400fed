"""Which folder becomes which package: goldens and cli are installed inside refkern."""

from setuptools import find_packages, setup

ROOMS = {"refkern.goldens": "goldens", "refkern.cli": "cli"}
inside = [f"{room}.{name}" for room, folder in ROOMS.items() for name in find_packages(folder)]

setup(
    packages=[*find_packages(include=["refkern", "refkern.*"]), *ROOMS, *inside],
    package_dir=ROOMS,
)
