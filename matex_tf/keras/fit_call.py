"""One call of Keras' `fit`, `evaluate` or `predict`: how its data is shared out and what the ranks agree on."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from matex_tf import ops, settings
from matex_tf.gradients import overlap_trial, reduce, variables
from matex_tf.keras import predict_call
from matex_tf.loops import explain, open_shapes, traces
from matex_tf.metrics import metrics
from matex_tf.observe import bottlenecks
from matex_tf.resilience import elastic, elastic_step, fit_state
from matex_tf.runtime import notes, objects
from matex_tf.sharding import fingerprint, pushdown, row_shares, sliced_dataset, step_weight
from matex_tf.world import world

_state = threading.local()


def current() -> Run | None:
    """The innermost call that is under way in this thread."""
    stack = getattr(_state, "stack", None)
    return stack[-1] if stack else None


def current_fit() -> Run | None:
    """The innermost call that is under way in this thread, if it is one of `fit`."""
    run = current()
    return run if run is not None and run.kind == "fit" else None


@contextlib.contextmanager
def run(kind: str, model: Any) -> Iterator[Run]:
    """Around a call of `kind` "fit", "evaluate" or "predict" on `model`."""
    stack = _state.__dict__.setdefault("stack", [])
    this = Run(kind, model)
    # The call may stand within a step of a loop of the script's own, which goes on with its slice.
    before = step_weight.current_values() if not stack else None
    stack.append(this)
    if kind != "predict":
        metrics.count_apart(metrics.variables_of(model))
    try:
        if kind == "fit" and len(stack) == 1:
            this.kept = fit_state.next_fit(model)
        yield this
        if len(stack) == 1:
            this.finish()
    finally:
        stack.pop()
        if this.kept is not None:
            this.kept.close()
        if this.elastic is not None:
            this.elastic.close()
        if not stack:
            step_weight.go_back_to(before)


def _has_fixed_batch(model: Any) -> bool:
    inputs = getattr(model, "inputs", None) or []
    fixed = any(tensor.shape is not None and len(tensor.shape) and tensor.shape[0] is not None for tensor in inputs)
    return fixed or any(
        getattr(layer, "stateful", False) is True and hasattr(layer, "reset_states")
        for layer in getattr(model, "layers", [])
    )


def _leaves(inputs: Any) -> list[Any]:
    import tensorflow as tf

    return [leaf for leaf in tf.nest.flatten(inputs) if leaf is not None]


class Stage:
    """One source of data within a call: the one that trains, or one that validates."""

    def __init__(self, call: Run, trains: bool):
        self.call = call
        self.trains = trains
        self.weak = trains and settings.current().scaling == "weak"
        self.counts: list[int] | None = None
        self.inputs: Any = None
        self.batch_size = 0
        self.own_batches: list[int] | None = None
        self.shuffle = False
        self.epochs = 1  # that one iteration of arrays goes through: all of them under Keras 2
        self.first: tuple[int, int] | None = None
        self.dealt = row_shares.Dealt()
        self.numbered: Any = None
        self.whole = False
        self.why_whole = ""
        self.gives_whole_batches = False  # of which the step takes its slice
        self.rows_of_batch: int | None = None  # of arrays
        self.pending: tuple[Any, Any] | None = None  # the whole batches, and what is iterated, until it is decided
        self.element_spec: Any = None  # of what the step is given, where that is not what is iterated
        self.whole_pipeline: str | None = None  # why every rank runs the whole pipeline, where that may be much work

    @property
    def name(self) -> str:
        return "the training data of fit" if self.trains else "the data of evaluate"

    @property
    def is_dealt(self) -> bool:
        """Whether which rows meet in a step depends on the number of ranks."""
        shares = (self.counts, self.own_batches, self.numbered)
        return self.weak or any(part is not None for part in shares)

    @property
    def compares(self) -> bool:
        """Whether ranks are to see the same batches."""
        shared = self.counts is None and self.own_batches is None and self.numbered is None
        return shared and not self.weak and not self.whole

    def look_at(self, inputs: Any, batch_size: int | None, steps_per_epoch: int | None, shuffle: Any) -> None:
        """Learn whether `inputs` (a structure of arrays) are the same on all ranks or each rank's share."""
        arrays = [leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf) for leaf in _leaves(inputs)]
        if not arrays or not fingerprint.are_shares(arrays, self.name):
            return
        elastic.refuse(f"{self.name}, each rank's own share,")
        rows = {len(array) for array in arrays}
        if len(rows) != 1:
            raise world.RankError(f"{self.name}: this rank's arrays have different numbers of rows: {sorted(rows)}")
        self.counts = objects.allgather(rows.pop(), f"counting the rows of {self.name}")
        total = sum(self.counts)
        if not batch_size:
            batch_size = -(-total // steps_per_epoch) if steps_per_epoch else 32
        self.batch_size = batch_size * world.current().size if self.weak else batch_size
        self.inputs, self.shuffle = inputs, bool(shuffle)
        if self.trains:
            self._learn_dealt(arrays)

    def _learn_dealt(self, arrays: list[np.ndarray]) -> None:
        """Learn how a reader dealt the rows, and that this call of fit takes them so."""
        for dealt in map(row_shares.dealt, arrays):
            self.dealt = row_shares.Dealt(*(mine if mine is not None else its for mine, its in zip(self.dealt, dealt)))
        mine = (self.dealt, self.batch_size)
        everyone = objects.allgather(mine, f"how the rows of {self.name} were dealt")
        dealt = everyone[0][0]
        if any(theirs != everyone[0] for theirs in everyone) or dealt.batch_size not in (None, self.batch_size):
            raise world.RankError(
                f'{self.name}: its rows were dealt for batches of {dealt.batch_size} (distribution="batch"), the batch '
                f"size of this call is {self.batch_size}; give both the same, on all ranks"
            )
        if dealt.batch_size is not None and self.shuffle:
            notes.note(
                'the rows were dealt in batches (distribution="batch") for the loss curve of the sequential run, but '
                "fit shuffles them (its default); with shuffle=False each step has the sequential run's rows"
            )

    def look_at_source(self, source: Any) -> None:
        """Learn how many batches each rank has, where `source` is a dataset over this rank's own share."""
        if not hasattr(source, "element_spec") or not row_shares.is_share(source) or hasattr(source, "_matex_whole"):
            return
        elastic.refuse(f"{self.name}, each rank's own share,")
        self.numbered = getattr(source, "_matex_numbered", None)
        if self.numbered is not None:
            return
        number = int(source.cardinality())
        self.own_batches = objects.allgather(number, f"counting the batches of {self.name}")
        if -2 in self.own_batches:
            raise world.RankError(
                f"{self.name} is a tf.data.Dataset over each rank's share whose number of batches is not known (a step "
                "such as filter hides it), so that ranks could end at different steps. Tell it with "
                "`dataset.apply(tf.data.experimental.assert_cardinality(n))`, or pass the share's arrays to fit."
            )

    def batch_of_arrays(self, batch_size: int | None) -> int | None:
        """The batch size with which Keras is to batch arrays."""
        self.rows_of_batch = batch_size or 32
        return (batch_size or 32) * world.current().size if self.weak else batch_size

    def distribute(self, dataset: Any, are_arrays: bool) -> Any:
        """The dataset that Keras is to iterate in place of `dataset`: elements are `sliced_dataset.Batch`."""
        mine = self._own(dataset, are_arrays)
        if mine is not None:
            self.pending = None, mine
            return mine
        dataset = getattr(dataset, "_matex_whole", dataset)
        if self.trains and elastic.is_on():
            import tensorflow as tf

            self.gives_whole_batches = True
            mine = sliced_dataset.exempt(dataset.prefetch(tf.data.AUTOTUNE))
        else:
            mine, self.whole_pipeline = pushdown.slices(dataset, are_arrays, self._keep_first)
        self.pending = dataset, mine
        return mine

    def _own(self, dataset: Any, are_arrays: bool) -> Any:
        """The dataset of this rank's own rows, where each rank has its share of the data; else None."""
        if self.counts is not None:
            if self.dealt.reshuffle is not None and self.epochs > 1:
                notes.note(
                    'reshuffle="epoch" exchanges no rows between the epochs of fit on arrays under Keras 2, which '
                    "iterates them once for all epochs; as_dataset deals the rows anew in each"
                )
            return sliced_dataset.shares(
                self.inputs, self.counts, self.batch_size, self.shuffle, self.dealt, epochs=self.epochs
            )
        if self.numbered is not None:
            return self.numbered
        if self.weak and not are_arrays and self.own_batches is None:
            return sliced_dataset.grouped(dataset)
        if self.own_batches is not None:
            return sliced_dataset.own_batches(dataset, self._most_batches())
        return None

    def decide(self, function: Any) -> bool:
        """See whether ranks can share the step that `function` makes; else every rank computes whole batches.

        Collective. It is traced for the batches that it will be given, if it is not yet; nobody has iterated them.

        Returns:
            Whether it can be called; else it is to be made anew: its trace has failed, or was for slices.
        """
        import tensorflow as tf

        if self.pending is None:
            return True
        (whole, mine), self.pending = self.pending, None
        spec = self.element_spec or mine.element_spec
        if self.gives_whole_batches:
            spec = sliced_dataset.Batch(
                tf.nest.map_structure(elastic_step.of_some_rows, mine.element_spec), tf.TensorSpec([4], tf.float64)
            )
        kind = "train" if self.trains else "test"
        is_fixed = whole is not None and _has_fixed_rows(whole.element_spec)
        why = why_whole(self.call.model, kind, function, spec, is_fixed)
        reasons = [one for one in objects.allgather(why, f"whether ranks can share {self.name}") if one]
        if not reasons:
            if self.trains:
                explain.say_shared(f"the step of fit on '{self.call.model.name}'")
            return True
        if whole is None:
            explain.say_inexact(reasons[0])
            return why != traces.NAMED
        self.whole = True
        if self.calls_shared_model() and not self.gives_whole_batches:
            # Said once the step was traced, and so what of it is shared; in eager code that shows later.
            self.why_whole = "" if reasons[0] == EAGER else reasons[0]
        else:
            explain.say_whole(reasons[0], "a training step" if self.trains else "a step of evaluate")
        if not self.gives_whole_batches:
            sliced_dataset.iterate_instead(mine, sliced_dataset.whole(whole))
        return function in _made_for_whole or why != traces.NAMED and not self.trains

    def calls_shared_model(self) -> bool:
        """Whether every rank computes the step whole, but for the calls of the model in it."""
        return self.trains and self.whole

    def _most_batches(self) -> int | None:
        """The number of batches of the rank that has most; None where they do not end."""
        assert self.own_batches is not None
        return None if min(self.own_batches) < 0 else max(self.own_batches)

    def _keep_first(self, digest: tuple[int, int] | None) -> None:
        self.first = digest

    def batches(self, number: int | None, are_arrays: bool) -> int | None:
        """How many steps an epoch has where Keras counted `number` batches on this rank."""
        if self.counts is not None:
            return -(-sum(self.counts) // self.batch_size)
        if self.numbered is not None:
            return int(self.numbered.cardinality())
        if self.own_batches is not None:
            return self._most_batches()
        if self.weak and not are_arrays and number is not None:
            return -(-number // world.current().size)
        return number


EAGER = "it is not traced (run_eagerly=True)"
_known: weakref.WeakKeyDictionary[Any, dict[Any, str]] = weakref.WeakKeyDictionary()
_made_for_whole: weakref.WeakSet = weakref.WeakSet()
"""Functions that were made once a step was known to be computed whole."""


def note_made_for_whole(function: Any) -> None:
    _made_for_whole.add(function)


def note_traced(model: Any, kind: str, data: Any, reason: Any) -> None:
    """The step of `model` for `kind` was traced for batches such as `data`; `reason`: why it cannot be sharded."""
    _known.setdefault(model, {})[kind, _shapes(data)] = "" if reason is None else str(reason)


def why_whole(model: Any, kind: str, function: Any, spec: Any, is_fixed: bool = False) -> str:
    """Why the step of `model` cannot compute a part of a batch; empty where it is proved that it can.

    Args:
        kind: "train" or "test".
        function: what Keras calls with an iterator.
        spec: the element spec of that iterator, a `Batch`.
        is_fixed: alone the number of rows of a batch is known when the step is traced.
    """
    from tensorflow.python.data.ops import iterator_ops

    functions = elastic_step.functions_in(function)
    if not functions:
        return EAGER
    known = _known.setdefault(model, {})
    try:
        with open_shapes.watched(is_fixed):
            overlap_trial.traced(functions[0], (iterator_ops.IteratorSpec(spec),), {})
    except Exception:  # of the script's code, any: where it is a fault, its real step raises it, too
        return traces.NAMED
    return known.get((kind, _shapes(spec.data)), "it is none of Keras' training steps")


def _has_fixed_rows(spec: Any) -> bool:
    import tensorflow as tf

    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(spec)]
    return any(shape is not None and shape.rank and shape.as_list()[0] is not None for shape in shapes)


def _shapes(data: Any) -> Any:
    import tensorflow as tf

    parts = tf.nest.flatten(data, expand_composites=True)
    return tuple((part.dtype, str(part.shape)) for part in parts if hasattr(part, "shape"))


class Run:
    """The state of one call."""

    def __init__(self, kind: str, model: Any):
        self.kind = kind
        self.model = model
        self.training: Stage | None = None
        self.stage: Stage | None = None  # the last one
        self.stages = 0
        self.step = 0
        self.rows = 0
        self.pace: bottlenecks.Pace | None = None
        self.agreed = False
        self.kept: fit_state.Fit | None = None
        self.elastic: elastic_step.Training | None = None
        self.slices = kind != "predict"
        ops.records.between_steps()
        fixed = _has_fixed_batch(model)
        self.answer = predict_call.Answer(model, whole=fixed)
        if fixed:
            notes.note("the model has a fixed batch size, so every rank computes whole batches: right, but not faster")
            self.slices = False

    def decide_later(self, which: str, function: Any, make_anew: Callable[[], None]) -> None:
        """Before the steps of the last stage, which call `function`: whether ranks can share them. Collective.

        A step that trains is traced no earlier than the script alone traces it, once its data are iterated: callbacks
        have begun by then, and may have set what it reads. `make_anew` makes the function again, where that is needed.
        """
        stages = [call.stage for call in _state.stack if call.stage is not None]
        if not stages:
            return
        stage = stages[-1]  # of what `fit` validates with it may be that of `fit`

        def decide() -> None:
            if not stage.decide(function):
                make_anew()

        if which == "train" and stage.pending is not None:
            sliced_dataset.before_iteration(stage.pending[1], decide)
        else:
            decide()

    def next_stage(self) -> Stage:
        """The stage of the next data of this call: the first of `fit` trains, others validate."""
        self.stages += 1
        stage = self.stage = Stage(self, trains=self.kind == "fit" and self.stages == 1)
        if stage.trains:
            self.training = stage
            if stage.weak:
                notes.note(
                    "weak scaling: the batch given to fit is each rank's own; a step computes "
                    f"{world.current().size} of them, an epoch takes that many times fewer steps, and learning rates "
                    "are left as they are"
                )
        return stage

    def before_step(self) -> None:
        """Before the first training step: the variables are the same on all ranks."""
        if not self.agreed:
            self.agree()

    def agree(self) -> bool:
        """Give all ranks the same variables, if the model has them already; whether it has. Collective where it has."""
        if self._built():
            self.agreed = True
            variables.synchronize(self._variables())
        return self.agreed

    def after_step(self) -> None:
        """After the first training step of an epoch: the ranks saw the same rows."""
        self.step += 1
        if self.training is not None and self.training.why_whole:
            explain.say_whole(self.training.why_whole)
            self.training.why_whole = ""
        if self.pace is None:
            self.pace = bottlenecks.Pace()
        self.pace.tick()
        if not self.agreed:
            # Variables that the first step made; the ranks' generators agree, so they should already be the same.
            self.agreed = True
            variables.synchronize(self._variables())
        if self.step == 1 and self.training is not None and self.training.compares:
            first, self.training.first = self.training.first, None
            self.rows = first[0] if first else 0
            fingerprint.compare_batch(first, "the first batch of an epoch of fit")

    def end_epoch(self, epoch: int) -> None:
        """At the end of an epoch: no weights have drifted apart."""
        self.step = 0
        if self.elastic is not None:
            self.elastic.ends_epoch()
        ops.records.between_steps()
        if self.pace is not None:
            self.pace.rows = self.rows
            self.pace.whole_pipeline = self.training.whole_pipeline if self.training is not None else None
            self.pace.judge()
            self.pace = None
        variables.check_drift(
            self._split_weights()[0], self.model.trainable_weights, f"at the end of epoch {epoch + 1}"
        )

    def finish(self) -> None:
        """At the end of a call of its own: metrics that Keras 2 counts among the weights are the same on all ranks."""
        if self.kind != "predict":
            metrics.leave_whole(list(map(reduce.underlying, self._split_weights()[1])))

    def agree_to_stop(self) -> None:
        """If a callback on any rank has stopped training, stop it on all. Collective."""
        stops = objects.allgather(bool(self.model.stop_training), "whether a callback stops training")
        if any(stops):
            if not all(stops):
                ranks = [rank for rank, stop in enumerate(stops) if stop]
                notes.note(f"a callback stopped training on rank {ranks[0]} and not on every rank; all ranks stop")
            self.model.stop_training = True

    def _built(self) -> bool:
        return bool(getattr(self.model, "built", False)) and all(
            getattr(layer, "built", True) for layer in self.model.layers
        )

    def _split_weights(self) -> tuple[list[Any], list[Any]]:
        """The model's weights, and the variables of metrics that Keras 2 counts among them."""
        counted = {id(reduce.underlying(variable)) for variable in metrics.variables_of(self.model)}
        parts: tuple[list[Any], list[Any]] = ([], [])
        for weight in self.model.weights:
            parts[id(reduce.underlying(weight)) in counted].append(weight)
        return parts

    def _variables(self) -> list[Any]:
        optimizer = getattr(self.model, "optimizer", None)
        owned = getattr(optimizer, "variables", [])
        return [*self._split_weights()[0], *(owned() if callable(owned) else owned)]
