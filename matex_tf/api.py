"""The public functions of the package."""

from __future__ import annotations

from typing import Any

from matex_tf import arguments
from matex_tf.sharding import share_arrays
from matex_tf.world import world


def rank() -> int:
    """This process's number among the ranks, from 0; 0 when alone.

    A script that asks for it runs commands (`os.system`, `subprocess`) on each rank that comes to them; one that does
    not has them run once, by rank 0.
    """
    world.note_script_knows_ranks()
    return world.get_world().rank


def size() -> int:
    """The number of ranks that train together; 1 when alone."""
    return world.get_world().size


def local_rank() -> int:
    """This process's number among the ranks of its node, from 0. For commands see `rank`."""
    world.note_script_knows_ranks()
    return world.get_world().local_rank


def local_size() -> int:
    """The number of ranks on this node."""
    return world.get_world().local_size


def is_active() -> bool:
    """Whether this process is one of several ranks that train together."""
    return world.is_active()


def allreduce(tensor_or_list: Any, op: str = "mean") -> Any:
    """The mean, sum, min or max over ranks of a tensor, or of each in a list; of the same shape and dtype.

    Raises ValueError for an unknown `op`, TypeError for a dtype that cannot be reduced, and, when run,
    `tf.errors.FailedPreconditionError` on every rank if ranks disagree on shapes, dtypes or the place in the program.
    """
    from matex_tf import ops

    return ops.allreduce(tensor_or_list, op=op)


def broadcast(tensor: Any, root: int = 0) -> Any:
    """Rank `root`'s value of `tensor`, on every rank; all ranks give a tensor of the same shape and dtype."""
    from matex_tf import ops

    return ops.broadcast(tensor, root=root)


def allgather(tensor: Any) -> Any:
    """The ranks' tensors joined along the first dimension, in the order of ranks; first dimensions may differ."""
    from matex_tf import ops

    return ops.allgather(tensor)


def barrier() -> None:
    """Returns on each rank once all have called it."""
    from matex_tf import ops

    ops.barrier()


def report(*, epoch: int | None = None, **figures: Any) -> None:
    """Tell `matex tune` how well the script does: `matex_tf.report(loss=0.3)`. What Keras' `fit` logs, it sees itself.

    Called several times, as after each `epoch`, the last counts, or the best. Without `matex tune` it does nothing.
    Raises TypeError for a figure that is no number.
    """
    from matex_tf.monitor import trial_log

    if epoch is not None:
        arguments.check_whole_number("report", "epoch", epoch)
    told = {name: arguments.check_number("report", name, value) for name, value in figures.items()}
    if not told:
        raise TypeError("report: expected a figure, such as matex_tf.report(loss=0.3)")
    trial_log.report_figures(told, epoch)


def shard(x: Any, *, own: bool = False) -> Any:
    """This rank's part of `x`: rows of an array (or of each in a tuple or dict), or slices of a dataset's batches.

    What comes back is known as a share: `fit` and training loops do not slice it again. With `own` nothing is cut: `x`
    has this rank's rows already, and the other ranks have others.
    """
    return share_arrays.shard(x, rank=0, size=1) if own else share_arrays.shard(x)
