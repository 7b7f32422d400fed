"""Loops that apply a compiled special function to every element."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from refkern.compiled.bits import jit
from refkern.elementary import Function
from refkern.hardware.sm90.elementwise import NANOSECONDS_AN_ELEMENT
from refkern.threads import launch


@cache
def loop_over(function: Function, arity: int) -> Any:
    """jitted (argument arrays .., out, first, stop)."""
    compiled = function.load_compiled()

    @jit
    def of_one(x: Any, out: Any, first: int, stop: int) -> None:
        for i in range(first, stop):
            out[i] = compiled(x[i])

    @jit
    def of_two(a: Any, b: Any, out: Any, first: int, stop: int) -> None:
        for i in range(first, stop):
            out[i] = compiled(a[i], b[i])

    return of_one if arity == 1 else of_two


def run(function: Function, arguments: list[np.ndarray], out: np.ndarray) -> None:
    """Fill ``out`` (flat, codes where it is narrower than float32)."""
    loop = loop_over(function, len(arguments))
    launch(lambda first, stop: loop(*arguments, out, first, stop), out.size, NANOSECONDS_AN_ELEMENT)
