"""`predict`: each rank computes its rows of every batch, and each has the whole answer, in order.

That needs outputs of one row, or of the same number of rows, for each row of the input. Shapes or a trace tell
(`_are_rows`), each step is checked on all ranks alike, and else every rank computes all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.gradients import row_gathering
from matex_tf.runtime import notes
from matex_tf.sharding import fingerprint, iteration, pushdown, row_shares, share_arrays, sliced_dataset
from matex_tf.world import world

NOT_ROWS = "matex_tf: the outputs of predict are not rows of its input"
_gives_rows: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


class OtherRows(Exception):
    """The ranks see different rows in the same step, so that there is no one answer to put together."""


class Answer:
    """How one call of `predict` on `model` is sharded."""

    def __init__(self, model: Any, whole: bool):
        """`gather_outputs`: every rank is to compute all rows."""
        self.model = model
        self.whole = whole
        self.once = self.are_arrays = False
        self.first: tuple[int, int] | None = None
        self.compares = False

    def look_at(self, source: Any, arrays: Any, agree: Callable[[], None]) -> None:
        """Learn whether the data are the same on all ranks. Collective, but for arrays of fewer rows than ranks.

        Args:
            source: what the script gave to `predict`.
            arrays: the structure of arrays that Keras made of it; None of a dataset or generator.
            agree: called where the ranks are to have the same weights.
        """
        import tensorflow as tf

        self.once, self.are_arrays = hasattr(source, "__next__"), arrays is not None
        if arrays is None:
            agree()
            self.whole = self.whole or (hasattr(source, "element_spec") and share_arrays.is_share(source))
            return
        leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(arrays) if leaf is not None]
        few = not leaves or any(leaf.ndim == 0 or len(leaf) < world.get_world().size for leaf in leaves)
        # Of a share ranks may have other numbers of rows. What Keras made of one need not tell that it is one.
        given = [part for part in tf.nest.flatten(source) if isinstance(part, np.ndarray)]
        is_own = any(map(share_arrays.is_share, (*given, *leaves)))
        if is_own or not few:
            agree()
        self.whole = self.whole or is_own or few or fingerprint.are_each_ranks_own(leaves, "the data of predict")

    def distribute_dataset(self, dataset: Any) -> Any:
        """The dataset that Keras is to iterate in place of `dataset`."""
        import tensorflow as tf

        if self.whole or not _are_rows(self.model, dataset.element_spec):
            return iteration.exempt_dataset(dataset)
        # The answer is put together of all ranks' rows, so that their order must be the same.
        options = tf.data.Options()
        options.deterministic = True
        self.compares = True
        return pushdown.push_down_slices(dataset.with_options(options), self.are_arrays, self._keep_first)[0]

    def _keep_first(self, digest: tuple[int, int] | None) -> None:
        self.first = digest

    def end_step(self) -> None:
        """After the first batch: the ranks saw the same one, or `OtherRows` on all of them."""
        if self.compares:
            self.compares = False
            if not fingerprint.is_same_batch(self.first, "the first batch of predict"):
                raise OtherRows


def stand_in(source: Any) -> Any:
    """One row of zeros in place of a share, of arrays or a dataset, of which this rank has no row; None of others.

    For no rows Keras would not call the model.
    """
    import tensorflow as tf

    def make(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            return share_arrays.as_share(np.zeros((1, *part.shape[1:]), part.dtype))
        batch = sliced_dataset.make_zero_batch(part.element_spec)
        return share_arrays.mark_share(tf.data.Dataset.from_tensors(batch))

    parts = source.values() if isinstance(source, dict) else source if type(source) in (list, tuple) else [source]
    is_empty = all(share_arrays.is_share(part) and _count(part) == 0 for part in parts)
    return tf.nest.map_structure(make, source) if is_empty and parts else None


def _count(share: Any) -> int:
    return len(share) if isinstance(share, np.ndarray) else int(share.cardinality())


def gather_outputs(outputs: Any, batch: Any) -> Any:
    """The outputs for all rows of a batch, from those for this rank's rows in `batch`. Collective."""
    import tensorflow as tf

    flat = [tf.convert_to_tensor(part) for part in tf.nest.flatten(outputs)]
    rows = tf.cast(row_shares.count_batch_rows(batch.data), tf.int64)
    counts = tf.stack([rows, *(tf.shape(part, tf.int64)[0] for part in flat)])
    everyone = tf.reshape(ops.allgather(counts, name="the rows of predict"), [world.get_world().size, -1])
    of_input, of_outputs = everyone[:, :1], everyone[:, 1:]
    each = of_outputs // of_input
    fits = tf.reduce_all((of_outputs == each * of_input) & (each == each[:1]))
    with tf.control_dependencies([tf.debugging.Assert(fits, [NOT_ROWS, everyone])]):
        mine = tf.cast(batch.numbers[2], tf.int64)
        flat = [
            row_gathering.gather_rows(part[: tf.shape(part, tf.int64)[0] * mine], "an output of predict", batch.numbers)
            for part in flat
        ]
    return tf.nest.pack_sequence_as(outputs, flat)


def fall_back_to_whole(model: Any, error: Exception) -> bool:
    """Whether `error` says, on all ranks alike, that this `predict` cannot be sharded; it is said and remembered."""
    if isinstance(error, OtherRows):
        notes.print_note(
            "the ranks see different rows in the same step of predict: the order of the data differs between ranks, "
            "for instance by deterministic=False or a generator without a seed. Each rank predicts all its own rows"
        )
        return True
    if NOT_ROWS not in str(error):
        return False
    _gives_rows[model] = False
    return True


def _are_rows(model: Any, spec: Any) -> bool:
    known = _gives_rows.get(model)
    if known is None:
        known = _judge_shapes(model)
        known = _judge_trace(model, spec) if known is None else known
        _gives_rows[model] = known
    if not known:
        notes.print_note(
            "the outputs of predict are not known to be rows that belong to the rows of its input, so every rank "
            "computes all of them. The result is right, predict is no faster"
        )
    return known


def _judge_shapes(model: Any) -> bool | None:
    """What the output shapes of a functional model say; None where they do not tell."""
    step = getattr(type(model), "predict_step", None)
    own = not getattr(step, "__module__", "").startswith(("keras.", "tf_keras."))
    outputs = getattr(model, "outputs", None)
    if own or not outputs:
        return None
    return all(not getattr(part, "sparse", False) and not getattr(part, "ragged", False) and _is_rows(part)
               for part in outputs)  # fmt: skip


def _is_rows(part: Any) -> bool:
    import tensorflow as tf

    shape = getattr(part, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None or len(shape) == 0 or shape[0] is not None:
        return False
    name = tf.as_dtype(part.dtype).name
    return name in ops.DTYPES or name in row_gathering.CAST


def _judge_trace(model: Any, spec: Any) -> bool:
    """What a trace of the model's own predict step says, on a batch of an unknown number of rows."""
    import tensorflow as tf

    def open_rows(part: Any) -> Any:
        if isinstance(part, tf.TensorSpec) and part.shape.rank:
            return tf.TensorSpec([None, *part.shape[1:]], part.dtype)
        return part

    step = vars(model).get("predict_step", model.predict_step)
    traced = tf.function(lambda data: step(data), autograph=False)
    outputs = traced.get_concrete_function(tf.nest.map_structure(open_rows, spec)).structured_outputs
    return all(isinstance(part, tf.Tensor | tf.TensorSpec) and _is_rows(part) for part in tf.nest.flatten(outputs))
