"""Do the ranks see the same data? Found by comparing, never by guessing."""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf import control, ops, output, sharding, world


def digest(value: Any, seed: int = 0) -> int:
    """A 64-bit hash of the content of an array or eager tensor, strings included."""
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype == object or array.dtype.kind in "SU":
        array = np.frombuffer(repr(array.tolist()).encode(), np.uint8)
    return ops.content_hash(np.ascontiguousarray(array), seed)


def batch_digest(element: Any) -> tuple[int, int]:
    """(rows, hash) of a batch: any structure of eager tensors."""
    import tensorflow as tf

    total = 0
    for part in tf.nest.flatten(element, expand_composites=True):
        if isinstance(part, tf.Tensor):
            total = digest(part, total)
    return int(sharding.batch_rows(element)), total


def compare_batch(mine: tuple[int, int] | None, what: str) -> None:
    """Compare (rows, hash) of this rank's whole batch with the others'. Collective.

    Other rows in the same step are said once, and a batch that is too small for so many ranks; None where this rank saw
    no batch.

    Raises:
        RankError: on every rank, if the numbers of rows differ.
    """
    everyone = control.allgather(mine, f"comparing {what}")
    seen = [(rank, batch) for rank, batch in enumerate(everyone) if batch is not None]
    hosts = world.current().hosts
    for rank, (rows, _) in seen:
        first_rank, (first_rows, _) = seen[0]
        if rows != first_rows:
            raise world.RankError(
                f"the ranks' batches have different numbers of rows ({what}): {first_rows} on rank {first_rank} "
                f"({hosts[first_rank]}), {rows} on rank {rank} ({hosts[rank]}). Every rank must read the same data; to "
                "give each rank data of its own, pass it through matex_tf.shard or matex_tf.readers.DataSet."
            )
    if seen and 0 < seen[0][1][0] < len(everyone):
        output.note(
            f"a batch of {seen[0][1][0]} rows is fewer than the {len(everyone)} ranks ({what}): the ranks without a "
            "row of their own only wait for the others. Larger batches, or fewer ranks, use them better"
        )
    if len({content for _, (_, content) in seen}) > 1:
        output.note(
            f"the ranks see different rows in the same step ({what}): data or their order differ between ranks, for "
            "instance by a shuffle without a seed, random augmentation in a parallel map, deterministic=False or the "
            "order in which files are listed. Each rank computes its slice of its own batch; the results are not "
            "exactly those of the script alone."
        )


def is_same_batch(mine: tuple[int, int] | None, what: str) -> bool:
    """Whether all ranks have the same (rows, hash) of a whole batch. Collective."""
    return len(set(control.allgather(mine, f"comparing {what}"))) == 1


def are_shares(arrays: list[np.ndarray], what: str) -> bool:
    """Whether `arrays` are each rank's own rows and not the same on all ranks. Collective.

    Raises:
        RankError: on every rank, if they could be neither: other dtypes or other shapes of a row.
    """
    marked = any(sharding.is_share(array) for array in arrays)
    mine = (marked, [(array.dtype.str, array.shape, 0 if marked else digest(array)) for array in arrays])
    everyone = control.allgather(mine, f"comparing {what}")
    first = [(dtype, shape[1:]) for dtype, shape, _ in everyone[0][1]]
    hosts = world.current().hosts
    for rank, (_, rows) in enumerate(everyone):
        here = [(dtype, shape[1:]) for dtype, shape, _ in rows]
        if here != first:
            raise world.RankError(
                f"{what} differ between ranks in more than their rows: rank 0 ({hosts[0]}) has "
                f"{_describe(everyone[0][1])}, rank {rank} ({hosts[rank]}) has {_describe(rows)}"
            )
    if any(marked for marked, _ in everyone):
        return True
    if all(theirs == everyone[0] for theirs in everyone):
        return False
    for index, (_, shape, _) in enumerate(everyone[0][1]):
        if len({tuple(rows[index]) for _, rows in everyone}) == 1:
            other = next(i for i in range(len(first)) if len({tuple(rows[i]) for _, rows in everyone}) > 1)
            raise world.RankError(
                f"{what}: array {index + 1} (shape {list(shape)}) is the same on all ranks but array {other + 1} is "
                "not, so they are neither the whole data nor each rank's share. Look for an order that depends on the "
                "process: a set of strings (start with `python -m matex_tf` or `matex run`, or set PYTHONHASHSEED=0), "
                "an unseeded generator, or the order in which files are listed."
            )
    output.note(f"{what} differ between ranks, so each rank's are taken as its own share of the data")
    return True


def _describe(rows: list) -> str:
    return ", ".join(f"{np.dtype(dtype).name}{list(shape)}" for dtype, shape, _ in rows)
