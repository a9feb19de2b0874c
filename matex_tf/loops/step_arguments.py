"""The arguments of a call that a step is: which of them hold rows of the batch."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf import tags
from matex_tf.analysis.placement import ROWS, Placement
from matex_tf.gradients import variables
from matex_tf.resilience import script_loops
from matex_tf.sharding import fingerprint


class Arguments:
    """The leaves of a call's arguments, and which of them hold rows."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        import tensorflow as tf

        self.given = bind_arguments(function, args, kwargs)
        self.leaves = tf.nest.flatten(self.given)
        counts = [_count_rows(leaf) for leaf in self.leaves]
        known = [count for count in counts if count is not None]
        self.rows = max(known, key=known.count) if known else 0
        """How many; -1 in a graph where that shows only when it is run."""
        self.are_rows = [self.rows != 0 and count == self.rows for count in counts]

    def make_key(self) -> Any:
        """What another call has in common that the same trace is for."""
        import tensorflow as tf

        kinds: list[Any] = []
        for leaf, is_rows in zip(self.leaves, self.are_rows):
            if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
                shape = _list_sizes(leaf)
                kinds.append((is_rows, leaf.dtype, shape[1:] if is_rows and shape else shape))
            elif isinstance(leaf, (bool, int, float, str, bytes, type(None))):
                kinds.append((type(leaf), leaf))
            else:
                kinds.append(id(leaf))
        args, kwargs = self.given
        if not kwargs and len(args) == len(self.leaves) and all(map(operator.is_, args, self.leaves)):
            return tuple(kinds), len(args)  # as most steps have them: the text takes longer than all else
        return tuple(kinds), repr(tf.nest.map_structure(lambda leaf: 0, self.given))

    def replace_rows(self, change: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with what `change` makes of those that hold rows."""
        import tensorflow as tf

        leaves = [change(leaf) if is_rows else leaf for leaf, is_rows in zip(self.leaves, self.are_rows)]
        return tf.nest.pack_sequence_as(self.given, leaves)


def bind_arguments(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call in the order of the function's parameters, with those that are left out.

    Raises:
        TypeError: they do not fit.
    """
    signature = tags.get_or_make_tag(function, "signature", lambda: inspect.signature(function.python_function))
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    return given.args, given.kwargs


def _list_sizes(leaf: Any) -> tuple[Any, ...] | None:
    """The shape of a tensor or array as whole numbers."""
    if isinstance(leaf, np.ndarray):
        return leaf.shape
    shape = leaf.shape
    return None if getattr(shape, "rank", 0) is None else tuple(getattr(shape, "as_list", lambda: shape)())


def _count_rows(leaf: Any) -> int | None:
    """The first dimension of an array or tensor, -1 where it is not known yet; None for what holds no rows."""
    import tensorflow as tf

    if isinstance(leaf, np.ndarray):
        return len(leaf) if leaf.ndim > 0 and leaf.dtype != object else None
    if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
        return None
    rows = leaf.shape.as_list()[0]
    return -1 if rows is None else rows


def list_placements(arguments: Arguments) -> list[Placement | None]:
    return [ROWS if is_rows else None for is_rows in arguments.are_rows]


def make_open_spec(leaf: Any) -> Any:
    """What an argument of rows is traced for: any number of them."""
    import tensorflow as tf

    return tf.TensorSpec([None, *(_list_sizes(leaf) or ())[1:]], tf.as_dtype(leaf.dtype))


def compare_arguments(arguments: Arguments, is_first: bool, what: str) -> None:
    """Whether all ranks hold the same rows; at the first call also the same variables. Collective."""
    if is_first:
        script_loops.say_loop()
        if variables.has_agreements_due():
            variables.settle_agreements()
    total = 0
    for leaf, is_rows in zip(arguments.leaves, arguments.are_rows):
        if is_rows:
            total = fingerprint.digest_value(leaf, total)
    fingerprint.compare_batch((arguments.rows, total), what)
