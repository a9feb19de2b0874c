"""Do the ranks see the same data? Found by comparing, never by guessing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import errors, ops
from matex_tf.runtime import notes, objects
from matex_tf.sharding import shard_arrays
from matex_tf.world import world

_OTHER_ROWS = (
    "the ranks see different rows in the same step ({what}): data or their order differ between ranks, for instance by "
    "a shuffle without a seed, random augmentation in a parallel map, deterministic=False or the order in which files "
    "are listed."
)


def digest_value(value: Any, seed: int = 0) -> int:
    """A 64-bit hash of the content of an array or eager tensor, strings included."""
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype == object or array.dtype.kind in "SU":
        array = np.frombuffer(repr(array.tolist()).encode(), np.uint8)
    return ops.hash_content(np.ascontiguousarray(array), seed)


def is_batch_of_all(mine: tuple[int, int] | None, what: str) -> bool:
    """Whether (rows, hash) of this rank's whole batch are those of every rank. Collective. A difference is noted.

    None where this rank has no batch.
    """
    everyone = objects.allgather(mine, f"comparing {what}", rows=0 if mine is None else mine[0])
    if len({batch for batch in everyone if batch is not None}) < 2:
        return True
    notes.print_note(f"{_OTHER_ROWS.format(what=what)} Each rank computes its own batch, whole.")
    return False


def compare_batch(mine: tuple[int, int] | None, what: str) -> None:
    """Compare (rows, hash) of this rank's whole batch with the others'. Collective.

    A difference is noted, and a batch that is too small for so many ranks; None where this rank saw no batch.

    Raises:
        BatchError: on every rank, if the numbers of rows differ.
    """
    everyone = objects.allgather(mine, f"comparing {what}", rows=0 if mine is None else mine[0])
    seen = [(rank, batch) for rank, batch in enumerate(everyone) if batch is not None]
    check_rows([(rank, rows) for rank, (rows, _) in seen], what)
    trainers = world.get_world().trainers
    if seen and 0 < seen[0][1][0] < trainers:
        notes.print_note(
            f"a batch of {seen[0][1][0]} rows is fewer than the {trainers} ranks ({what}): the ranks without a "
            "row of their own only wait for the others. Larger batches, or fewer ranks, use them better"
        )
    if len({content for _, (_, content) in seen}) > 1:
        notes.print_note(
            f"{_OTHER_ROWS.format(what=what)} Each rank computes its slice of its own batch; the results are not "
            "exactly those of the script alone."
        )


def check_rows(counts: Sequence[tuple[int, int]], what: str) -> None:
    """counts: ranks, with the numbers of rows of their whole batches.

    Raises:
        BatchError: these numbers differ.
    """
    hosts = world.get_world().hosts
    for rank, rows in counts:
        first_rank, first_rows = counts[0]
        if rows != first_rows:
            raise errors.BatchError(
                f"the ranks' batches have different numbers of rows ({what}): {first_rows} on rank {first_rank} "
                f"({hosts[first_rank]}), {rows} on rank {rank} ({hosts[rank]}). Every rank must read the same data; to "
                "give each rank data of its own, pass it through matex_tf.shard or matex_tf.readers.DataSet."
            )


def are_shares(arrays: list[np.ndarray], what: str) -> bool:
    """Whether `arrays` are shards: each rank's own rows. Other arrays are equal on all ranks. Collective.

    Raises:
        BatchError: on every rank, if they are neither.
    """
    everyone = _gather_contents(arrays, what)
    marks = [marked for marked, _ in everyone]
    of_rows = [[(dtype, shape[1:]) for dtype, shape, _ in theirs] for _, theirs in everyone]
    alike = of_rows if all(marks) else everyone
    other = next((rank for rank, theirs in enumerate(alike) if theirs != alike[0]), None)
    if other is None:
        return all(marks)
    hosts = world.get_world().hosts
    first, differing = everyone[0], everyone[other]
    found = (
        f"{what} differ between ranks: rank 0 ({hosts[0]}) has {_describe_arrays(*first)}, rank {other} "
        f"({hosts[other]}) has "
        f"{_describe_arrays(*differing, first[1])}."
    )
    if all(marks):
        raise errors.BatchError(f"{found} Shares may differ in their rows only.")
    raise errors.BatchError(
        f"{found} Every rank must have the same data, of which it computes its rows. Look for what is another in each "
        "process: a generator without a seed, the order in which files are listed, a set of strings (start with "
        "`python -m matex_tf` or `matex run`, or set PYTHONHASHSEED=0). Mark rows that are each rank's own: "
        "matex_tf.readers.DataSet reads them so, matex_tf.shard(x) takes this rank's rows of an x that all ranks have, "
        "matex_tf.shard(x, own=True) marks an x that has this rank's rows already."
    )


def are_each_ranks_own(arrays: list[np.ndarray], what: str) -> bool:
    """Whether `arrays` are shards, or differ between ranks, so that no rank can compute another's rows. Collective."""
    everyone = _gather_contents(arrays, what)
    return any(marked for marked, _ in everyone) or any(theirs != everyone[0] for theirs in everyone)


def _gather_contents(arrays: list[np.ndarray], what: str) -> list[tuple[bool, list[Any]]]:
    """For each rank, whether its arrays are shards, and their (dtype, shape, hash). Collective."""
    marked = any(shard_arrays.is_shard(array) for array in arrays)
    mine = (marked, [(array.dtype.str, array.shape, 0 if marked else digest_value(array)) for array in arrays])
    return objects.allgather(mine, f"comparing {what}")


def _describe_arrays(marked: bool, arrays: list[Any], others: list[Any] | None = None) -> str:
    """Arrays in words; of those that look like `others`, another rank's, but are not, it is said."""

    def one(array: tuple[Any, ...], other: tuple[Any, ...] | None) -> str:
        text = f"{np.dtype(array[0]).name}{list(array[1])}"
        return f"{text} of other values" if other and other[:2] == array[:2] and other != array else text

    pairs = itertools.zip_longest(arrays, (others or [])[: len(arrays)])
    return ("a shard, " if marked else "") + ", ".join(one(array, other) for array, other in pairs)
