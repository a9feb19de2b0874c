"""One call of Keras' `fit`, `evaluate` or `predict`: how its data is shared out and what the ranks agree on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf import (
    answers,
    comparison,
    control,
    early_rows,
    elastic,
    elastic_fit,
    gradients,
    loops,
    metrics,
    ops,
    output,
    pace,
    pipeline,
    rehearsal,
    resumed_fit,
    resuming,
    settings,
    sharding,
    steps,
    variables,
    world,
)

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
    before = steps.current_values() if not stack else None
    stack.append(this)
    if kind != "predict":
        metrics.count_apart(metrics.variables_of(model))
    try:
        if kind == "fit" and len(stack) == 1:
            this.kept = resuming.next_fit(model)
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
            steps.go_back_to(before)


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
        self.dealt = sharding.Dealt()
        self.numbered: Any = None
        self.whole = False
        self.gives_whole_batches = False  # of which the step takes its slice
        self.rows_of_batch: int | None = None  # of arrays
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
        if not arrays or not comparison.are_shares(arrays, self.name):
            return
        elastic.refuse(f"{self.name}, each rank's own share,")
        rows = {len(array) for array in arrays}
        if len(rows) != 1:
            raise world.RankError(f"{self.name}: this rank's arrays have different numbers of rows: {sorted(rows)}")
        self.counts = control.allgather(rows.pop(), f"counting the rows of {self.name}")
        total = sum(self.counts)
        if not batch_size:
            batch_size = -(-total // steps_per_epoch) if steps_per_epoch else 32
        self.batch_size = batch_size * world.current().size if self.weak else batch_size
        self.inputs, self.shuffle = inputs, bool(shuffle)
        if self.trains:
            self._learn_dealt(arrays)

    def _learn_dealt(self, arrays: list[np.ndarray]) -> None:
        """Learn how a reader dealt the rows, and that this call of fit takes them so."""
        for dealt in map(sharding.dealt, arrays):
            self.dealt = sharding.Dealt(*(mine if mine is not None else its for mine, its in zip(self.dealt, dealt)))
        mine = (self.dealt, self.batch_size)
        everyone = control.allgather(mine, f"how the rows of {self.name} were dealt")
        dealt = everyone[0][0]
        if any(theirs != everyone[0] for theirs in everyone) or dealt.batch_size not in (None, self.batch_size):
            raise world.RankError(
                f'{self.name}: its rows were dealt for batches of {dealt.batch_size} (distribution="batch"), the batch '
                f"size of this call is {self.batch_size}; give both the same, on all ranks"
            )
        if dealt.batch_size is not None and self.shuffle:
            output.note(
                'the rows were dealt in batches (distribution="batch") for the loss curve of the sequential run, but '
                "fit shuffles them (its default); with shuffle=False each step has the sequential run's rows"
            )

    def look_at_source(self, source: Any) -> None:
        """Learn how many batches each rank has, where `source` is a dataset over this rank's own share."""
        if not hasattr(source, "element_spec") or not sharding.is_share(source) or hasattr(source, "_matex_whole"):
            return
        elastic.refuse(f"{self.name}, each rank's own share,")
        self.numbered = getattr(source, "_matex_numbered", None)
        if self.numbered is not None:
            return
        number = int(source.cardinality())
        self.own_batches = control.allgather(number, f"counting the batches of {self.name}")
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
        """The dataset that Keras is to iterate in place of `dataset`: elements are `pipeline.Batch`."""
        if self.counts is not None:
            if self.dealt.reshuffle is not None and self.epochs > 1:
                output.note(
                    'reshuffle="epoch" exchanges no rows between the epochs of fit on arrays under Keras 2, which '
                    "iterates them once for all epochs; as_dataset deals the rows anew in each"
                )
            return pipeline.shares(
                self.inputs, self.counts, self.batch_size, self.shuffle, self.dealt, epochs=self.epochs
            )
        if self.numbered is not None:
            return self.numbered
        if self.weak and not are_arrays and self.own_batches is None:
            return pipeline.grouped(dataset)
        if self.own_batches is not None:
            return pipeline.own_batches(dataset, self._most_batches())
        dataset = getattr(dataset, "_matex_whole", dataset)
        self.whole = not self._takes_any_rows(dataset)
        if self.trains and elastic.is_on():
            import tensorflow as tf

            self.gives_whole_batches = True
            return pipeline.exempt(dataset.prefetch(tf.data.AUTOTUNE))
        if self.whole:
            return pipeline.whole(dataset)
        dataset, self.whole_pipeline = early_rows.slices(dataset, are_arrays, self._keep_first)
        return dataset

    def _takes_any_rows(self, dataset: Any) -> bool:
        """Whether the model's step can compute a part of a batch; said where it cannot. Collective."""
        size = None if hasattr(dataset, "_matex_whole") else self.rows_of_batch
        kind = "train" if self.trains else "test"
        mine = rehearsal.why_whole(self.call.model, kind, dataset.element_spec, size)
        reasons = [why for why in control.allgather(mine, f"whether ranks can share {self.name}") if why]
        if reasons:
            output.note(reasons[0])
        return not reasons

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


class Run:
    """The state of one call."""

    def __init__(self, kind: str, model: Any):
        self.kind = kind
        self.model = model
        self.training: Stage | None = None
        self.stages = 0
        self.step = 0
        self.rows = 0
        self.pace: pace.Pace | None = None
        self.agreed = False
        self.kept: resumed_fit.Fit | None = None
        self.elastic: elastic_fit.Training | None = None
        self.slices = kind != "predict"
        ops.records.between_steps()
        fixed = _has_fixed_batch(model)
        self.answer = answers.Answer(model, whole=fixed)
        if fixed:
            output.note("the model has a fixed batch size, so every rank computes whole batches: right, but not faster")
            self.slices = False

    def next_stage(self) -> Stage:
        """The stage of the next data of this call: the first of `fit` trains, others validate."""
        self.stages += 1
        stage = Stage(self, trains=self.kind == "fit" and self.stages == 1)
        if stage.trains:
            self.training = stage
            if stage.weak:
                output.note(
                    "weak scaling: the batch given to fit is each rank's own; a step computes "
                    f"{world.current().size} of them, an epoch takes that many times fewer steps, and learning rates "
                    "are left as they are"
                )
        return stage

    def before_step(self) -> None:
        """Before the first training step: the variables are the same on all ranks."""
        loops.shared_elsewhere()
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
        if self.pace is None:
            self.pace = pace.Pace()
        self.pace.tick()
        if not self.agreed:
            # Variables that the first step made; the ranks' generators agree, so they should already be the same.
            self.agreed = True
            variables.synchronize(self._variables())
        if self.step == 1 and self.training is not None and self.training.compares:
            first, self.training.first = self.training.first, None
            self.rows = first[0] if first else 0
            comparison.compare_batch(first, "the first batch of an epoch of fit")

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
            metrics.leave_whole(list(map(gradients.underlying, self._split_weights()[1])))

    def agree_to_stop(self) -> None:
        """If a callback on any rank has stopped training, stop it on all. Collective."""
        stops = control.allgather(bool(self.model.stop_training), "whether a callback stops training")
        if any(stops):
            if not all(stops):
                ranks = [rank for rank, stop in enumerate(stops) if stop]
                output.note(f"a callback stopped training on rank {ranks[0]} and not on every rank; all ranks stop")
            self.model.stop_training = True

    def _built(self) -> bool:
        return bool(getattr(self.model, "built", False)) and all(
            getattr(layer, "built", True) for layer in self.model.layers
        )

    def _split_weights(self) -> tuple[list[Any], list[Any]]:
        """The model's weights, and the variables of metrics that Keras 2 counts among them."""
        counted = {id(gradients.underlying(variable)) for variable in metrics.variables_of(self.model)}
        parts: tuple[list[Any], list[Any]] = ([], [])
        for weight in self.model.weights:
            parts[id(gradients.underlying(weight)) in counted].append(weight)
        return parts

    def _variables(self) -> list[Any]:
        optimizer = getattr(self.model, "optimizer", None)
        owned = getattr(optimizer, "variables", [])
        return [*self._split_weights()[0], *(owned() if callable(owned) else owned)]
