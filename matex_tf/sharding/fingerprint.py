"""Compares the data of ranks by their hashes: batches, and arrays that a script passes to `fit`.

Ranks share a batch only if all of them read the same batch. If a script reads other data on each rank, the sum of the
ranks' gradients is not the gradient of any batch. In all functions `subject` names the data, for messages.
"""

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


def is_batch_of_all(own_batch: tuple[int, int] | None, subject: str) -> bool:
    """Whether all ranks have the same complete batch; prints a note if not. Collective.

    own_batch: (rows, hash) of this rank's batch; None if it has no batch.
    """
    distinct_batches = {(rows, content) for _, rows, content in _gather_batches(own_batch, subject)}
    if len(distinct_batches) < 2:
        return True
    notes.print_note(f"{_OTHER_ROWS.format(what=subject)} Each rank computes its own batch, whole.")
    return False


def compare_batch(own_batch: tuple[int, int] | None, subject: str) -> None:
    """Compare the complete batches of all ranks. Prints a note if their contents differ, or if the batch has fewer rows
    than there are ranks. own_batch: see `is_batch_of_all`. Collective.

    Raises BatchError on every rank if the numbers of rows differ.
    """
    batches = _gather_batches(own_batch, subject)
    check_rows([(rank, rows) for rank, rows, _ in batches], subject)
    trainers = world.get_world().trainers
    if batches and 0 < batches[0][1] < trainers:
        notes.print_note(
            f"a batch of {batches[0][1]} rows is fewer than the {trainers} ranks ({subject}): the ranks without a "
            "row of their own only wait for the others. Larger batches, or fewer ranks, use them better"
        )
    if len({content for _, _, content in batches}) > 1:
        notes.print_note(
            f"{_OTHER_ROWS.format(what=subject)} Each rank computes its slice of its own batch; the results are not "
            "exactly those of the script alone."
        )


def _gather_batches(own_batch: tuple[int, int] | None, subject: str) -> list[tuple[int, int, int]]:
    """(rank, rows, hash) of the batch of each rank that has one. Collective."""
    batches = objects.allgather(own_batch, f"comparing {subject}", rows=0 if own_batch is None else own_batch[0])
    return [(rank, *batch) for rank, batch in enumerate(batches) if batch is not None]


def check_rows(counts: Sequence[tuple[int, int]], subject: str) -> None:
    """Raise BatchError if the ranks' batches differ in their numbers of rows. counts: (rank, number of rows) pairs."""
    hosts = world.get_world().hosts
    for rank, rows in counts:
        first_rank, first_rows = counts[0]
        if rows != first_rows:
            raise errors.BatchError(
                f"the ranks' batches have different numbers of rows ({subject}): {first_rows} on rank {first_rank} "
                f"({hosts[first_rank]}), {rows} on rank {rank} ({hosts[rank]}). Every rank must read the same data; to "
                "give each rank data of its own, pass it through matex_tf.shard or matex_tf.readers.DataSet."
            )


def are_shares(arrays: list[np.ndarray], subject: str) -> bool:
    """Whether `arrays` are shards, each rank's own rows; if not, they are equal on all ranks. Collective.

    Raises BatchError on every rank if they are neither.
    """
    # Shards are compared by the types and shapes of their rows, other arrays by all of their contents.
    contents = _gather_contents(arrays, subject)
    all_shards = all(is_shard for is_shard, _ in contents)
    row_types = [[(dtype, shape[1:]) for dtype, shape, _ in rank_contents] for _, rank_contents in contents]
    compared: Sequence[Any] = row_types if all_shards else contents
    other_rank = next((rank for rank, rank_contents in enumerate(compared) if rank_contents != compared[0]), None)
    if other_rank is None:
        return all_shards
    hosts = world.get_world().hosts
    contents_of_rank_0 = contents[0]
    text = (
        f"{subject} differ between ranks: rank 0 ({hosts[0]}) has {_describe_arrays(*contents_of_rank_0)}, rank "
        f"{other_rank} ({hosts[other_rank]}) has {_describe_arrays(*contents[other_rank], contents_of_rank_0[1])}."
    )
    if all_shards:
        raise errors.BatchError(f"{text} Shares may differ in their rows only.")
    raise errors.BatchError(
        f"{text} Every rank must have the same data, of which it computes its rows. Look for what is another in each "
        "process: a generator without a seed, the order in which files are listed, a set of strings (start with "
        "`python -m matex_tf` or `matex run`, or set PYTHONHASHSEED=0). Mark rows that are each rank's own: "
        "matex_tf.readers.DataSet reads them so, matex_tf.shard(x) takes this rank's rows of an x that all ranks have, "
        "matex_tf.shard(x, own=True) marks an x that has this rank's rows already."
    )


def are_each_ranks_own(arrays: list[np.ndarray], subject: str) -> bool:
    """Whether `arrays` are shards, or differ between ranks, so that no rank can compute another's rows. Collective."""
    contents = _gather_contents(arrays, subject)
    return any(is_shard for is_shard, _ in contents) or any(rank_contents != contents[0] for rank_contents in contents)


def _gather_contents(arrays: list[np.ndarray], subject: str) -> list[tuple[bool, list[Any]]]:
    """For each rank, whether its arrays are shards, and their (dtype, shape, hash). Collective."""
    is_shard = any(shard_arrays.is_shard(array) for array in arrays)
    contents = [(array.dtype.str, array.shape, 0 if is_shard else digest_value(array)) for array in arrays]
    return objects.allgather((is_shard, contents), f"comparing {subject}")


def _describe_arrays(is_shard: bool, contents: list[Any], contents_of_rank_0: list[Any] | None = None) -> str:
    """Arrays as text. If an array differs from rank 0's array only in its values, the text says so."""

    def describe(content: tuple[Any, ...], expected: tuple[Any, ...] | None) -> str:
        text = f"{np.dtype(content[0]).name}{list(content[1])}"
        return f"{text} of other values" if expected and expected[:2] == content[:2] and expected != content else text

    pairs = itertools.zip_longest(contents, (contents_of_rank_0 or [])[: len(contents)])
    return ("a shard, " if is_shard else "") + ", ".join(describe(content, expected) for content, expected in pairs)
