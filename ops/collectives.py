"""The collectives as functions on tensors, eager and in graphs: arguments checked here, computed by the library."""

from __future__ import annotations

import atexit
import functools
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.world import world

from . import overlap
from .library import library, tensorflow_ops
from .order import in_order

OP_TYPES = ("MatexAllreduce", "MatexBroadcast", "MatexAllgather", "MatexBarrier", "MatexReduceGradients")
"""The types of our ops in graphs. In v1 graphs each has its own attribute `turn`, in the order they were made."""

REDUCTIONS = ("mean", "sum", "min", "max")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool")

_turns = itertools.count()


def allreduce(tensor: Any, op: str = "mean", name: str | None = None) -> Any:
    """The mean, sum, minimum or maximum over all ranks of each element, on every rank.

    Args:
        tensor: a tensor or what can be made one, or a list or tuple of them; all ranks give the same shapes and dtypes:
            float16, bfloat16, float32, float64, int32, int64; uint8 too, and bool for "min" (and) and "max" (or).
        op: "mean", "sum", "min" or "max". The mean of integers is cut towards zero, as in `tf.reduce_mean`.
        name: what error messages call it.

    Returns:
        A tensor of the same shape and dtype; for a list or tuple, a list of them.

    Raises:
        TypeError, ValueError: an argument is none of the above.
        tf.errors.FailedPreconditionError: when run, if ranks are at different collectives.

    The gradient of a sum or mean is the sum or mean of the ranks' gradients; that of a minimum or maximum goes to the
    ranks that have it, in equal parts.
    """
    arguments.choice("allreduce", "op", op, REDUCTIONS)
    if isinstance(tensor, (list, tuple)):
        return [allreduce(one, op, name) for one in tensor]
    tensor = _tensor("allreduce", tensor)
    if tensor.dtype.is_bool and op in ("mean", "sum"):
        raise TypeError(f"allreduce: the {op} of bool tensors is not defined; cast to an integer or float type")
    if not world.is_active():
        return _same(tensor)
    import tensorflow as tf

    if op == "mean" and tensor.dtype in (tf.int32, tf.uint8):
        # Their sum over many ranks may not fit.
        return tf.cast(_allreduce(tf.cast(tensor, tf.int64), op, name), tensor.dtype)
    return _allreduce(tensor, op, name)


def broadcast(tensor: Any, root: int = 0, name: str | None = None) -> Any:
    """Rank `root`'s value of a tensor, on every rank; all ranks give the same shape and dtype.

    The gradient goes to rank `root`, summed over all ranks; it is zero on the others.
    """
    size = world.current().size
    root = arguments.whole_number("broadcast", "root, a rank,", root, 0)
    if root >= size:
        raise ValueError(f"broadcast: expected root to be a rank from 0 to {size - 1}; given {root}")
    tensor = _tensor("broadcast", tensor)
    if not world.is_active():
        return _same(tensor)
    return in_order(library().ops.matex_broadcast, x=tensor, root=root, place=name or "", turn=_turn())


def allgather(tensor: Any, name: str | None = None) -> Any:
    """All ranks' rows one below the other, in rank order, on every rank.

    The first dimension may differ between ranks and may be 0; the others and the dtype must be the same. Scalars give a
    vector of one element for each rank. The gradient of a rank's rows is the sum of all ranks' gradients of them.
    """
    tensor = _tensor("allgather", tensor)
    if not world.is_active():
        import tensorflow as tf

        return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else _same(tensor)
    return allgather_rows(tensor, name)[0]


def allgather_rows(tensor: Any, name: str | None = None) -> tuple[Any, Any]:
    """`allgather` of a tensor under several ranks, and how many rows each rank had, int64."""
    gathered = in_order(library().ops.matex_allgather, x=tensor, place=name or "", turn=_turn())
    return gathered.y, gathered.rows


def barrier(name: str | None = None) -> Any:
    """Returns when every rank has called it; in a graph, the operation that does so when it runs."""
    if not world.is_active():
        import tensorflow as tf

        return None if tf.executing_eagerly() else tf.no_op()
    return in_order(library().ops.matex_barrier, place=name or "", turn=_turn())


def reduce_gradients(
    tensors: Sequence[Any],
    names: Sequence[str],
    weight: Any,
    place: str = "",
    checked: bool = False,
    variables: Sequence[int] = (),
) -> list[Any]:
    """All gradients of one update: for each, the sum over ranks of that rank's weight times its tensor.

    Args:
        tensors: float16, bfloat16, float32 or float64, mixed at will, of any shapes; the same on all ranks.
        names: what each is the gradient of; part of what ranks agree on, and shown where they differ.
        weight: this rank's weight, a float64 scalar. A weight of 0 stands for zeros, whatever the tensors hold. Or a
            vector of that and the rows of the global batch, on which the ranks must then agree.
        place: where in the program the update is, for messages.
        checked: whether gradients that are no finite numbers are an error, on every rank, that names whose they are.
        variables: this process's number of the variable that each is the gradient of, 0 where it is of none; by these
            `MATEX_COMPRESSION` keeps what it leaves out. What is of no variable is not compressed.

    Returns:
        Tensors of the same shapes and dtypes, bit for bit the same on every rank.

    Raises:
        tf.errors.FailedPreconditionError: when run, on every rank, if ranks differ in number, order, names, shapes or
            dtypes (the text names the first that differs) or are at different collectives.
    """
    import tensorflow as tf

    if not isinstance(tensors, (list, tuple)) or not isinstance(names, (list, tuple)):
        raise TypeError(
            "reduce_gradients: expected a list of tensors and one of names; "
            f"given {arguments.given(tensors)} and {arguments.given(names)}"
        )
    tensors = [_converted("reduce_gradients", tensor) for tensor in tensors]
    if len(names) != len(tensors):
        raise ValueError(f"reduce_gradients: expected {len(tensors)} names, one for each tensor, not {len(names)}")
    for tensor, name in zip(tensors, names):
        if tensor.dtype not in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
            raise TypeError(f"reduce_gradients: expected floating-point tensors, but {name!r} is {tensor.dtype.name}")
    weight = _converted("reduce_gradients", weight, tf.float64)
    if not any(weight.shape.is_compatible_with(shape) for shape in ([], [2])):
        raise ValueError(f"reduce_gradients: expected a scalar weight, or weight and rows; given shape {weight.shape}")
    if overlap.is_chosen(tensors):
        return overlap.reduce_gradients(tensors, names, weight, place, checked, variables)
    if not world.is_active():
        factor = weight if weight.shape.rank == 0 else weight[0]
        return [tf.where(factor == 0, tf.zeros_like(one), one * tf.cast(factor, one.dtype)) for one in tensors]
    return reduce_inline(tensors, names, weight, place, checked, variables)


def reduce_inline(
    tensors: Sequence[Any],
    names: Sequence[str],
    weight: Any,
    place: str,
    checked: bool = False,
    variables: Sequence[int] = (),
) -> list[Any]:
    """`reduce_gradients` under several ranks as one op, in the thread that reaches it."""
    return list(
        in_order(
            library().ops.matex_reduce_gradients,
            gradients=tensors,
            weight=weight,
            names=list(names),
            variables=list(variables),
            place=place,
            checked=checked,
            turn=_turn(),
        )
    )


def pass_turn(other_branch: Any, turn: int) -> Any:
    """In a v1 graph, the operation that takes the turn of one of our ops in a branch, where the other one is taken.

    Args:
        other_branch: a bool tensor that is there only if the other branch is taken.
        turn: the attribute `turn` of the op whose turn it is.
    """
    return library().ops.matex_pass_turn(other_branch=other_branch, turn=turn)


def let_go(resource: Any) -> None:
    """Leave the end of an iterator's resource, an eager tensor about to be dropped, to a thread outside of Python."""
    import tensorflow as tf

    if not sys.is_finalizing():
        _wait_for_let_go_at_exit()
        with tf.init_scope():  # the garbage collector may call while a graph is being made
            library().ops.matex_let_go(resource)


@functools.cache
def _wait_for_let_go_at_exit() -> None:
    wait = tensorflow_ops().c.matex_wait_for_let_go
    wait.restype, wait.argtypes = None, []
    atexit.register(wait)


def _allreduce(tensor: Any, op: str, name: str | None) -> Any:
    return in_order(library().ops.matex_allreduce, x=tensor, reduction=op, place=name or "", turn=_turn())


def _tensor(function: str, value: Any) -> Any:
    import tensorflow as tf

    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"{function}: expected a dense tensor, not a {type(value).__name__}")
    tensor = _converted(function, value)
    if tensor.dtype.name not in DTYPES:
        raise TypeError(f"{function}: expected a tensor of {', '.join(DTYPES)}, not of {tensor.dtype.name}")
    return tensor


def _converted(function: str, value: Any, dtype: Any = None) -> Any:
    import tensorflow as tf

    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{function}: expected an array without a mask, which would be lost; fill it: x.filled(...)")
    try:
        return tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"{function}: expected a tensor or what can be made one; given {arguments.given(value)}: {error}"
        ) from error


def _same(tensor: Any) -> Any:
    import tensorflow as tf

    return tf.identity(tensor)


def _turn() -> int:
    """The next turn for an op in a v1 graph; elsewhere ops run in the order in which they were made, and have none."""
    import tensorflow as tf
    from tensorflow.python.framework import ops

    return -1 if tf.executing_eagerly() or ops.inside_function() else next(_turns)
