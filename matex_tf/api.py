"""The public functions of the package."""

from __future__ import annotations

from typing import Any

from matex_tf import arguments, ops
from matex_tf.sharding import shard_arrays
from matex_tf.world import script_knowledge, world


def rank() -> int:
    """The number of this rank, from 0; 0 without a launcher.

    After the first call of `rank` or `local_rank`, each rank executes the commands of the script (`os.system`,
    `subprocess`) itself. Before it, rank 0 executes each command once for all ranks.
    """
    script_knowledge.note_question()
    return world.get_world().rank


def size() -> int:
    """The number of ranks of the run; 1 without a launcher."""
    return world.get_world().size


def local_rank() -> int:
    """The number of this rank among the ranks of its host, from 0. For commands see `rank`."""
    script_knowledge.note_question()
    return world.get_world().local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return world.get_world().local_size


def is_active() -> bool:
    """Whether this process is one of several ranks."""
    return world.is_active()


def allreduce(tensor_or_list: Any, op: str = "mean") -> Any:
    """Reduce a tensor, or each tensor of a list, over all ranks. Collective.

    Args:
        tensor_or_list: tensors of float16, bfloat16, float32, float64, int32 or int64, of any shape; the same shapes
            and dtypes on all ranks.
        op: "mean", "sum", "min" or "max".

    Returns:
        The reduced tensor, or the list of them, with the shapes and dtypes of the argument, on every rank.

    Raises:
        ValueError: `op` is unknown.
        TypeError: the dtype cannot be reduced.
        tf.errors.FailedPreconditionError: when run, on every rank: ranks disagree on shapes, dtypes or the place in the
            program.
    """
    return ops.allreduce(tensor_or_list, op=op)


def broadcast(tensor: Any, root: int = 0) -> Any:
    """Send the tensor of rank `root` to all ranks. Collective.

    Args:
        tensor: of the same shape and dtype on all ranks; dtypes as of `allreduce`.
        root: the number of a rank, the same on all ranks.

    Returns:
        The tensor of rank `root`, on every rank.

    Raises:
        tf.errors.FailedPreconditionError: as `allreduce`.
    """
    return ops.broadcast(tensor, root=root)


def allgather(tensor: Any) -> Any:
    """Concatenate the tensors of all ranks along the first dimension, in the order of ranks. Collective.

    Args:
        tensor: all dimensions but the first are the same on all ranks; a scalar counts as one row.

    Returns:
        The concatenated tensor, on every rank.

    Raises:
        tf.errors.FailedPreconditionError: as `allreduce`.
    """
    return ops.allgather(tensor)


def barrier() -> None:
    """Wait until all ranks have called it. Collective."""
    ops.barrier()


def report(*, epoch: int | None = None, **metrics: Any) -> None:
    """Report metrics to `matex tune`: `matex_tf.report(loss=0.3)`. Without `matex tune` it does nothing.

    `matex tune` reads the logs of Keras' `fit` by itself. Of several calls the last one counts, or the best.

    Args:
        epoch: the number of the epoch, if the metrics belong to one.
        metrics: numbers by name.

    Raises:
        TypeError: a metric is not a number.
    """
    from matex_tf.monitor import trial_log

    if epoch is not None:
        arguments.check_whole_number("report", "epoch", epoch)
    numbers = {name: arguments.check_number("report", name, value) for name, value in metrics.items()}
    if not numbers:
        raise TypeError("report: expected a metric, such as matex_tf.report(loss=0.3)")
    trial_log.note_metrics(numbers, epoch)


def shard(x: Any, *, own: bool = False) -> Any:
    """Make a shard: the rows of `x` that only this rank holds. `fit` and training loops do not slice a shard again.

    Args:
        x: an array, a tuple or dict of arrays with equal numbers of rows, or a batched `tf.data.Dataset`.
        own: `x` already holds only the rows of this rank; nothing is cut.

    Returns:
        This rank's contiguous rows of each array, or a dataset of this rank's slice of each batch.
    """
    # The slice of rank 0 of 1 is all of `x`.
    return shard_arrays.shard(x, rank=0, size=1) if own else shard_arrays.shard(x)
