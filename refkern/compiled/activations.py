"""sigmoid and silu as compiled scalars, and as tables for 16-bit gates, of 65,536 values."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from refkern.arithmetic import Sigmoid, Silu
from refkern.compiled import casts
from refkern.compiled.bits import jit
from refkern.formats import Format

ONE = np.float32(1)


@cache
def sigmoid(choice: Sigmoid) -> Any:
    """float32 -> float32."""
    function = choice.function.load_compiled()
    if choice.form == "function":
        return function
    if choice.form == "plain":
        return jit(lambda x: ONE / (ONE + function(-x)))

    @jit
    def stable(x: Any) -> Any:
        # One exp, of -|x|; where x is NaN either branch gives NaN.
        e = function(-x if x >= 0 else x)
        return (ONE if x >= 0 else e) / (ONE + e)

    return stable


@cache
def silu(choice: Silu) -> Any:
    """float32 -> float32."""
    if choice.form == "quotient":
        exp = choice.sigmoid.function.load_compiled()
        return jit(lambda x: x / (ONE + exp(-x)))
    own = sigmoid(choice.sigmoid)
    return jit(lambda x: x * own(x))


@cache
def table_of(choice: Sigmoid | Silu, gate: Format) -> np.ndarray:
    """float32 [65536]: sigmoid or silu of every code of a 16-bit format."""
    function = silu(choice) if isinstance(choice, Silu) else sigmoid(choice)
    widen = casts.widen(gate)
    table = np.empty(1 << gate.bits, np.float32)

    @jit
    def fill(table: Any) -> None:
        for code in range(table.size):
            table[code] = function(widen(code))

    fill(table)
    table.flags.writeable = False
    return table
