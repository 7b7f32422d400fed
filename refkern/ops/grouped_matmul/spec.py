"""The contract of grouped_matmul.  Read this first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from refkern.arguments import as_array, floats, integer
from refkern.errors import InvalidInput
from refkern.formats import BFLOAT16, FLOAT16, FLOAT32, find_format, format_of
from refkern.op import Call, Op

OPERANDS = (BFLOAT16, FLOAT16)
OUTPUTS = (BFLOAT16, FLOAT16, FLOAT32)
#: the id of a group that gets zeros instead of an expert
NO_EXPERT = -1


def check(
    a: Any,
    b: Any,
    a_offsets: Any,
    expert_ids: Any,
    *,
    max_num_tokens_per_expert: int | None = None,
    out_dtype: Any = None,
) -> Call:
    """Rows of a, grouped by expert, times the experts' transposed weights.

    out[a_offsets[z] : a_offsets[z + 1]] = a[the same rows] @ b[expert_ids[z]].T for every group z.

    a: [rows, K] bfloat16 or float16, any strides.
    b: [experts, N, K] in a's dtype, any strides; never copied as a whole.
    a_offsets: [groups + 1] where each group starts and the last one ends: integers of any dtype,
        not decreasing, within 0 .. rows.  The first need not be 0 and the last need not be rows.
    expert_ids: [groups] integers from -1 to experts - 1, in any order, repeated or not.  A group
        with id -1 gets exact zeros.
    max_num_tokens_per_expert: rows of the largest group, or more; None: counted.  The recipe
        `modular` dispatches by it.
    out_dtype: bfloat16, float16 or float32; None is a's dtype.

    Returns [rows, N].  Rows that no group covers are zeros in a fresh result and stay untouched
    in ``out=``.  A row depends on no other row; NaN, infinity and subnormals are inputs like any
    other, and with K = 0 every covered row is +0.

    Raises InvalidInput, before any work, for any other dtype or shape; offsets that decrease,
    are negative or lie beyond the rows; ids that are no expert's; a wrong number of either; and
    a max_num_tokens_per_expert below the rows of some group.
    Semantics: Modular MAX `grouped_matmul` for Apple GPUs; relatives by recipe.
    """
    a = floats("a", a, OPERANDS, axes="rows, K")
    b = floats("b", b, (format_of(a.dtype),), axes="experts, N, K", shape=(None, None, a.shape[1]))
    expert_ids = integers("expert_ids", expert_ids, axes="groups")
    a_offsets = integers("a_offsets", a_offsets, axes="groups + 1")
    if a_offsets.size != expert_ids.size + 1:
        raise InvalidInput(
            "a_offsets",
            f"{a_offsets.size} offsets for {expert_ids.size} expert_ids",
            "one more than there are groups is needed (offsets_from_ends, offsets_from_counts)",
        )
    within("a_offsets", a_offsets, 0, a.shape[0], "rows")
    check_order(a_offsets)
    within("expert_ids", expert_ids, NO_EXPERT, b.shape[0] - 1, "experts")
    call = Call(
        {"a": a, "b": b, "a_offsets": a_offsets, "expert_ids": expert_ids},
        {
            "max_num_tokens_per_expert": max_num_tokens_per_expert,
            "out_dtype": output_name(out_dtype),
        },
    )
    if max_num_tokens_per_expert is None:
        return call
    given = integer("max_num_tokens_per_expert", max_num_tokens_per_expert, at_least=0)
    largest = largest_group(call)
    if given < largest:
        raise InvalidInput(
            "max_num_tokens_per_expert", given, f"a group has {largest} rows: no less is needed"
        )
    return Call(call.inputs, {**call.params, "max_num_tokens_per_expert": given})


def integers(name: str, value: Any, *, axes: str) -> np.ndarray:
    """A vector of integers as it was given; floats and bools are none."""
    array = as_array(name, value)
    if array.size == 0 and isinstance(value, list | tuple):
        array = array.astype(np.int64)
    if array.ndim != 1:
        raise InvalidInput(name, f"shape {array.shape}", f"[{axes}] is needed")
    if array.dtype.kind not in "iu":
        raise InvalidInput(name, f"dtype {array.dtype}", "integers are needed")
    return array


def within(name: str, values: np.ndarray, low: int, high: int, what: str) -> None:
    """Raise InvalidInput for the first value outside low .. high."""
    # As Python's integers: int64 and uint64 have no common type.
    if values.size and (int(values.min()) < low or int(values.max()) > high):
        wrong = next(v for v in values.tolist() if not low <= v <= high)
        raise InvalidInput(name, wrong, f"the {what} allow {low} to {high}")


def check_order(offsets: np.ndarray) -> None:
    """Raise InvalidInput where offsets decrease."""
    for z, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        if stop < start:
            raise InvalidInput(
                "a_offsets", f"{stop} after {start} (group {z})", "offsets must not decrease"
            )


def output_name(dtype: Any) -> str | None:
    if dtype is None:
        return None
    found = find_format(dtype) or find_format(str(dtype).removeprefix("torch."))
    if found is None or found not in OUTPUTS:
        raise InvalidInput(
            "out_dtype", repr(dtype), f"allowed are {', '.join(map(str, OUTPUTS))} and None"
        )
    return found.name


def output(call: Call) -> tuple[tuple[int, ...], np.dtype]:
    name = call.out_dtype
    dtype = call.a.dtype if name is None else format_of(name).dtype
    return (call.a.shape[0], call.b.shape[1]), dtype


def groups(call: Call) -> Iterator[tuple[int, int, int]]:
    """(first row, row behind the last, expert id) of every group, in order."""
    bounds = itertools.pairwise(call.a_offsets.tolist())
    for (start, stop), expert in zip(bounds, call.expert_ids.tolist(), strict=True):
        yield start, stop, expert


def largest_group(call: Call) -> int:
    """Rows of the largest group; groups with id -1 are launched, so they count."""
    return max((stop - start for start, stop, _ in groups(call)), default=0)


def tokens_per_expert(call: Call) -> int:
    """What the original dispatches by: max_num_tokens_per_expert, as given or counted."""
    given = call.max_num_tokens_per_expert
    return largest_group(call) if given is None else given


def take_rows(call: Call, rows: np.ndarray) -> Call:
    """The rows in groups of one row; the count of tokens, and with it the recipe, is kept.

    A row of no group becomes one of id -1: zeros, as in a fresh result.
    """
    ids = np.full(call.a.shape[0], NO_EXPERT)
    for start, stop, expert in groups(call):
        ids[start:stop] = expert
    return Call(
        {
            **call.inputs,
            "a": call.a[rows],
            "a_offsets": np.arange(len(rows) + 1),
            "expert_ids": ids[rows],
        },
        {**call.params, "max_num_tokens_per_expert": max(tokens_per_expert(call), 1)},
    )


def offsets_from_ends(ends: Any) -> tuple[np.ndarray, np.ndarray]:
    """torch's ``offs`` -> (a_offsets, expert_ids).

    ends: [groups] where each group ends; group i takes expert i, the first starts at row 0.
    (`torch._grouped_mm`, `torch.nn.functional.grouped_mm`.)
    """
    ends = integers("ends", ends, axes="groups")
    within("ends", ends, 0, np.iinfo(np.int64).max, "offsets")
    a_offsets = np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])
    check_order(a_offsets)
    return a_offsets, np.arange(ends.size)


def offsets_from_counts(counts: Any) -> tuple[np.ndarray, np.ndarray]:
    """megablocks' and grouped_gemm's ``batch_sizes`` -> (a_offsets, expert_ids).

    counts: [experts] rows of each expert, in the experts' order, from row 0 on.
    """
    counts = integers("counts", counts, axes="experts")
    within("counts", counts, 0, np.iinfo(np.int64).max, "counts")
    ends = list(itertools.accumulate(counts.tolist(), initial=0))
    if ends[-1] > np.iinfo(np.int64).max:
        raise InvalidInput("counts", f"a sum of {ends[-1]}", "64 bits must hold it")
    return np.array(ends, np.int64), np.arange(counts.size)


def groups_from_rows(row_ids: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An expert id for each row -> (order, a_offsets, expert_ids).

    row_ids: [rows] ids from -1 up, in any order (MLX `gather_mm`'s rhs_indices with one row a
        batch), or [tokens, used] (llama.cpp's `mul_mat_id`; ggml calls that shape [used, tokens]),
        whose pairs are numbered token by token.
    order: [rows] the row (or pair) at each place of the grouped operand, rows of one expert in
        their own order.  With pairs, order // used is the token.

        grouped = refkern.grouped_matmul(a[order], b, a_offsets, expert_ids)
        out = np.empty_like(grouped)
        out[order] = grouped
    """
    array = as_array("row_ids", row_ids)
    flat = integers("row_ids", array.reshape(-1) if array.ndim == 2 else row_ids, axes="rows")
    within("row_ids", flat, NO_EXPERT, np.iinfo(np.int64).max, "ids")
    order = np.argsort(flat, kind="stable")
    expert_ids, starts = np.unique(flat[order], return_index=True)
    return order, np.append(starts, flat.size).astype(np.int64), expert_ids.astype(np.int64)


OP = Op(
    name="grouped_matmul",
    summary="rows grouped by expert times the experts' weights (mixture of experts)",
    source="Modular MAX grouped_matmul for Apple GPUs",
    default_recipe="modular",
    stages=("accumulator", "out"),
    check=check,
    output=output,
    axes={
        "a": "rows, K",
        "b": "experts, N, K",
        "a_offsets": "groups + 1",
        "expert_ids": "groups",
        "accumulator": "rows, N",
        "out": "rows, N",
    },
    take_rows=take_rows,
    writes_all=False,
    functions={
        "offsets_from_ends": offsets_from_ends,
        "offsets_from_counts": offsets_from_counts,
        "groups_from_rows": groups_from_rows,
    },
)
