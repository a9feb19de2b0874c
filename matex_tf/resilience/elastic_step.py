"""A call of `fit` of which each step can be made again by fewer ranks (see `elastic`).

`Training.run_step` makes one; `Feed` gives the training function its batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.resilience import elastic, random_state, state
from matex_tf.sharding import iteration, sliced_dataset, step_weight
from matex_tf.world import membership


class Feed:
    """An iterator that gives a training function the batches that are put into it."""

    def __init__(self, spec: Any, most: int, make: Callable[[Any, Any], Any] = sliced_dataset.Batch):
        """
        Args:
            spec: the element spec of the batches that are put in.
            most: how many batches are put in at once.
            make: makes what is given of a batch and its numbers.
        """
        import tensorflow as tf

        self._spec = spec
        self._most = most
        self._parts: list[Any] = []
        kinds = tf.nest.flatten(self._spec, expand_composites=True)
        self._queue = tf.queue.FIFOQueue(most + 1, [tf.bool, tf.float64, *(kind.dtype for kind in kinds)])

        def take(_: Any) -> Any:
            is_there, numbers, *parts = self._queue.dequeue()
            return tf.ensure_shape(is_there, []), tf.ensure_shape(numbers, [4]), tuple(parts)

        def batch(_: Any, numbers: Any, parts: Any) -> Any:
            parts = [tf.ensure_shape(part, kind.shape) for part, kind in zip(parts, kinds)]
            return make(tf.nest.pack_sequence_as(self._spec, parts, expand_composites=True), numbers)

        # One after another, as the function asks for them: nothing is to be taken ahead.
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_optimization.inject_prefetch = False
        dataset = tf.data.Dataset.range(1).repeat().map(take).take_while(lambda is_there, *_: is_there).map(batch)
        self._dataset = iteration.exempt_dataset(dataset.with_options(options))
        self._iterator = iter(self._dataset)

    def put_batches(self, batches: Sequence[sliced_dataset.Batch]) -> Any:
        """The iterator, which gives `batches` next and, where they are some but fewer than a function takes, ends."""
        import tensorflow as tf

        while int(self._queue.size()):
            self._queue.dequeue()  # of a step that failed
        for batch in batches:
            self._parts = [batch.numbers, *tf.nest.flatten(batch.data, expand_composites=True)]
            self._queue.enqueue([True, *self._parts])
        return self.put_end() if 0 < len(batches) < self._most else self._iterator

    def put_end(self) -> Any:
        """The iterator, which ends when it has given what was put in."""
        self._queue.enqueue([False, *self._parts])  # any parts will do
        iterator, self._iterator = self._iterator, iter(self._dataset)
        return iterator


def open_rows(kind: Any) -> Any:
    """The spec of any number of rows of a component with the spec `kind`."""
    import tensorflow as tf

    if getattr(getattr(kind, "shape", None), "rank", None):
        shape = tf.TensorShape([None, *kind.shape[1:]])
        if isinstance(kind, tf.TensorSpec):
            return tf.TensorSpec(shape, kind.dtype)
        if isinstance(kind, tf.RaggedTensorSpec):
            return tf.RaggedTensorSpec(shape, kind.dtype, kind.ragged_rank, kind.row_splits_dtype)
        if isinstance(kind, tf.SparseTensorSpec):
            return tf.SparseTensorSpec(shape, kind.dtype)
    return kind


def list_functions(plain: Any) -> list[Any]:
    """The functions of TensorFlow that take an iterator in what Keras calls: it, or in some versions one within it."""
    inside = [cell.cell_contents for cell in getattr(plain, "__closure__", None) or ()]
    return [
        one
        for one in [plain, *inside]
        if hasattr(one, "get_concrete_function") and "iterator" in inspect.signature(one.python_function).parameters
    ]


def make_undo(source: Any) -> Callable[[], None]:
    """What is to be done before a call that goes through the data `source` is made again."""
    before = random_state.copy_states()

    def undo() -> None:
        if hasattr(source, "__next__"):
            raise membership.make_loss_error("batches that a generator has given do not come again")
        random_state.restore_states(before)

    return undo


def remake_function(model: Any) -> Any:
    """The training function of a model whose function was made for a world that is no more."""
    model.train_function = None
    model.make_train_function()
    return model.train_function


class Training:
    """The steps of one call of fit on `model`, whose batches are those of `stage`.

    Every rank reads whole batches and computes its slice of each, cut when the step is made, so that a slice that is
    lost can be dealt anew. Before a step each rank keeps the values that variables have, which costs no copy by itself:
    what the step then changes TensorFlow writes to new memory. Metrics are sums over the rows that a rank has computed;
    after each step all ranks know the sums of all, so that those of a lost rank go on with the first.
    """

    def __init__(self, model: Any, stage: Any):
        self._model = model
        self._stage = stage
        self._begins = True
        self._feed: Feed | None = None
        self._state = state.State(model)
        self._is_in_step = False
        elastic.after_loss.append(self.handle_loss)

    def close_training(self) -> None:
        elastic.after_loss.remove(self.handle_loss)

    def run_step(self, batches: list[Any], spec: Any, most: int) -> Any:
        """What the model's training function gives for `batches`, `most` whole ones or fewer, of element spec `spec`.

        That function has the attributes `plain`, what is called, and `count_losses` (`elastic.count_losses`), that of
        the world that it was made for.
        """
        import tensorflow as tf

        if self._feed is None:
            self._feed = Feed(spec if self._stage.whole else tf.nest.map_structure(open_rows, spec), most)
        feed = self._feed
        if self._begins:
            # Variables that the step makes are there, with their first values, once it is traced.
            changed = elastic.attempt_work("tracing the step of fit", lambda: self._trace_step(feed))
            self._state.counted = elastic.attempt_work("what metrics have counted", self._state.count_sums)
            self._begins = False
            self._state.find_variables(changed)
        draws = random_state.copy_states() if getattr(self._model, "run_eagerly", False) else None

        def compute() -> tuple[Any, list[Any]]:
            self._state.save()
            sliced = [self._slice_batch(batch) for batch in batches]
            logs = self._find_function()(feed.put_batches(sliced))
            return logs, self._state.count_sums()

        def undo() -> None:
            if self._state.has_grown():
                raise membership.make_loss_error("the step makes variables, which cannot be undone")
            self._state.restore()
            if draws is not None:
                random_state.restore_states(draws)
            self._state.sync()

        self._is_in_step = True
        try:
            logs, self._state.counted = elastic.attempt_work("a step of fit", compute, undo)
        finally:
            self._is_in_step = False
        return logs

    def run_end(self) -> Any:
        """What the function gives where the data are at their end: what it does without them it does."""
        assert self._feed is not None  # of the steps before
        return self._find_function()(self._feed.put_end())

    def handle_loss(self, became_first: bool) -> None:
        """A rank was lost, at whatever the ranks were then; in a step, it is first undone."""
        if not self._is_in_step:
            self._state.sync()

    def begin_epoch(self) -> None:
        """Variables may have been made since."""
        self._begins = True

    def end_epoch(self) -> None:
        """What metrics have counted is told, and will not go on."""
        self._state.counted = []

    def _find_function(self) -> Any:
        """What the training function calls, made anew where it was made for a world that is no more."""
        function = self._model.train_function
        if function.generation != elastic.count_losses():
            function = remake_function(self._model)
        return function.plain

    def _trace_step(self, feed: Feed) -> list[Any]:
        """The variables that the step uses."""
        traced = [one.get_concrete_function(feed.put_batches([])) for one in list_functions(self._find_function())]
        return list(traced[-1].graph.variables) if traced else []

    def _slice_batch(self, batch: Any) -> sliced_dataset.Batch:
        import tensorflow as tf

        if self._stage.whole:
            return sliced_dataset.Batch(batch, tf.constant(step_weight.list_whole_values(), tf.float64))
        return sliced_dataset.make_slice(batch)
