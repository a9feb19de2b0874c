"""A call of `fit` of which each step can be made again by fewer ranks (see `elastic`).

Every rank reads whole batches and computes its slice of each, cut when the step is made, so that a slice that is lost
can be dealt anew. Before a step each rank keeps the values that variables have, which costs no copy by itself: what the
step then changes TensorFlow writes to new memory. Metrics are sums over the rows that a rank has computed; after each
step all ranks know the sums of all, so that those of a lost rank go on with the first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.gradients import reduction
from matex_tf.metrics import metrics
from matex_tf.resilience import elastic, model_state, random_state
from matex_tf.sharding import iteration, sliced_dataset, step_weight
from matex_tf.world import membership, world


class Feed:
    """An iterator that gives a training function the batches that are put into it."""

    def __init__(self, spec: Any, most: int):
        """
        Args:
            spec: the element spec of the batches that are put in.
            most: how many batches are put in at once.
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

        def batch(_: Any, numbers: Any, parts: Any) -> sliced_dataset.Batch:
            parts = [tf.ensure_shape(part, kind.shape) for part, kind in zip(parts, kinds)]
            return sliced_dataset.Batch(tf.nest.pack_sequence_as(self._spec, parts, expand_composites=True), numbers)

        # One after another, as the function asks for them: nothing is to be taken ahead.
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_optimization.inject_prefetch = False
        dataset = tf.data.Dataset.range(1).repeat().map(take).take_while(lambda is_there, *_: is_there).map(batch)
        self._dataset = iteration.exempt(dataset.with_options(options))
        self._iterator = iter(self._dataset)

    def put(self, batches: Sequence[sliced_dataset.Batch]) -> Any:
        """The iterator, which gives `batches` next and, where they are some but fewer than a function takes, ends."""
        import tensorflow as tf

        while int(self._queue.size()):
            self._queue.dequeue()  # of a step that failed
        for batch in batches:
            self._parts = [batch.numbers, *tf.nest.flatten(batch.data, expand_composites=True)]
            self._queue.enqueue([True, *self._parts])
        return self.end() if 0 < len(batches) < self._most else self._iterator

    def end(self) -> Any:
        """The iterator, which ends when it has given what was put in."""
        self._queue.enqueue([False, *self._parts])  # any parts will do
        iterator, self._iterator = self._iterator, iter(self._dataset)
        return iterator


def of_some_rows(kind: Any) -> Any:
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


def functions_in(plain: Any) -> list[Any]:
    """The functions of TensorFlow that take an iterator in what Keras calls: it, or in some versions one within it."""
    inside = [cell.cell_contents for cell in getattr(plain, "__closure__", None) or ()]
    return [
        one
        for one in [plain, *inside]
        if hasattr(one, "get_concrete_function") and "iterator" in inspect.signature(one.python_function).parameters
    ]


def undo_of(source: Any) -> Callable[[], None]:
    """What is to be done before a call that goes through the data `source` is made again."""
    before = random_state.states()

    def undo() -> None:
        if hasattr(source, "__next__"):
            raise membership.cannot_go_on("batches that a generator has given do not come again")
        random_state.put_back(before)

    return undo


def function_made_anew(model: Any) -> Any:
    """The training function of a model whose function was made for a world that is no more."""
    model.train_function = None
    model.make_train_function()
    return model.train_function


class Training:
    """The steps of one call of fit on `model`, whose batches are those of `stage`."""

    def __init__(self, model: Any, stage: Any):
        self._model = model
        self._stage = stage
        self._begins = True
        self._feed: Feed | None = None
        self._reader: Any = None
        self._read: list[Any] = []
        self._totals: list[tuple[Any, np.ndarray, np.ndarray]] = []
        self._is_in_step = False
        self._changed: list[Any] = []
        elastic.after_loss.append(self.after_loss)

    def close(self) -> None:
        elastic.after_loss.remove(self.after_loss)

    def step(self, batches: list[Any], spec: Any, most: int) -> Any:
        """What the model's training function gives for `batches`, `most` whole ones or fewer, of element spec `spec`.

        That function has the attributes `plain`, what is called, and `generation` (`elastic.generation`), that of the
        world that it was made for.
        """
        import tensorflow as tf

        if self._feed is None:
            self._feed = Feed(spec if self._stage.whole else tf.nest.map_structure(of_some_rows, spec), most)
        if self._begins:
            # Variables that the step makes are there, with their first values, once it is traced.
            elastic.attempt("tracing the step of fit", self._trace)
            self._totals = elastic.attempt("what metrics have counted", self._count)
            self._begins = False
            self._look_at_variables()
        before = self._reader()
        draws = random_state.states() if getattr(self._model, "run_eagerly", False) else None

        def compute() -> tuple[Any, list[Any]]:
            sliced = [self._slice(batch) for batch in batches]
            return self._function()(self._feed.put(sliced)), self._count()

        def undo() -> None:
            if len(self._variables()) > len(before):
                raise membership.cannot_go_on("the step makes variables, which cannot be undone")
            for variable, value in zip(self._read, before):
                variable.assign(value)
            if draws is not None:
                random_state.put_back(draws)
            self._share_metrics()

        self._is_in_step = True
        try:
            logs, self._totals = elastic.attempt("a step of fit", compute, undo)
        finally:
            self._is_in_step = False
        return logs

    def end(self) -> Any:
        """What the function gives where the data are at their end: what it does without them it does."""
        return self._function()(self._feed.end())

    def after_loss(self, became_first: bool) -> None:
        """A rank was lost, at whatever the ranks were then; in a step, it is first undone."""
        if not self._is_in_step:
            self._share_metrics()

    def _share_metrics(self) -> None:
        """What all ranks had counted up to their last step goes on with the first, where nothing changed it since."""
        for at, (variable, own, total) in enumerate(self._totals):
            if np.array_equal(variable.numpy(), own):
                mine = total if world.current().rank == 0 else np.zeros_like(total)
                variable.assign(mine)
                self._totals[at] = (variable, mine, total)

    def begins_epoch(self) -> None:
        """Variables may have been made since."""
        self._begins = True

    def ends_epoch(self) -> None:
        """What metrics have counted is told, and will not go on."""
        self._totals = []

    def _function(self) -> Any:
        """What the training function calls, made anew where it was made for a world that is no more."""
        function = self._model.train_function
        if function.generation != elastic.generation():
            function = function_made_anew(self._model)
        return function.plain

    def _trace(self) -> None:
        for one in functions_in(self._function()):
            concrete = one.get_concrete_function(self._feed.put([]))
            self._changed = list(concrete.graph.variables)

    def _count(self) -> list[tuple[Any, np.ndarray, np.ndarray]]:
        """What is not the same on all ranks but a sum over them: the variables, with this rank's part and the sum."""
        counted = [*metrics.variables_of(self._model), *reduction.accumulators(getattr(self._model, "optimizer", None))]
        counted = list(map(reduction.underlying, counted))
        own = [variable.read_value() for variable in counted]
        return [(one, mine.numpy(), all.numpy()) for one, mine, all in zip(counted, own, metrics.sums(own))]

    def _slice(self, batch: Any) -> sliced_dataset.Batch:
        import tensorflow as tf

        if self._stage.whole:
            return sliced_dataset.Batch(batch, tf.constant(step_weight.whole_values(), tf.float64))
        return sliced_dataset.slice_of(batch)

    def _variables(self) -> list[Any]:
        groups = model_state.groups(self._model).values()
        known = [reduction.underlying(variable) for group in groups for variable in group]
        # Others that the step may change: of layers, of other optimizers, of the script's own.
        seen = {*map(id, known), *map(id, step_weight.own_variables())}
        others = [variable for variable in map(reduction.underlying, self._changed) if id(variable) not in seen]
        return [*known, *(one for one in others if hasattr(one, "assign") and one.dtype.name != "string")]

    def _look_at_variables(self) -> None:
        """Have `_reader` give the values of all variables that there are now."""
        import tensorflow as tf

        found = self._variables()
        if self._reader is None or list(map(id, found)) != list(map(id, self._read)):
            self._read = found
            read = tf.function(lambda: [variable.read_value() for variable in found], autograph=False)
            self._reader = read.get_concrete_function()
