"""A loop of the script's own over a `tf.data.Dataset`, in eager code.

Every iterator begins by giving whole batches: the script may only be looking, collecting or evaluating. Once a gradient
was reduced between two batches the loop trains, and from then on each rank gets its slice of each batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from matex_tf import (
    bookkeeping,
    comparison,
    control,
    gradients,
    ops,
    output,
    pace,
    pipeline,
    resuming,
    settings,
    sharding,
    steps,
    variables,
    world,
)

NAMED = (
    "a training step cannot be traced for a part of the batch, but for the whole (it names the batch's size), so every "
    "rank computes whole batches: right, but not faster"
)
_training: weakref.WeakSet = weakref.WeakSet()


class Loop:
    """What is known of one iterator: whether its batches train, and what it gave last."""

    def __init__(self, shares: bool, pull: Callable[[], Any], fixed: bool = False, dataset: Any = None):
        self.trains = False
        self.shares = shares
        self.pull = pull
        self.weak = settings.current().scaling == "weak"
        self.fixed = fixed and not self.weak
        self.why_whole = ""
        self.rows = 0
        self.credited = False
        self.dataset = dataset
        self.first_slice: tuple[Any, Any] | None = None
        self.first_row: Any = None
        self.done = False
        self.watch: bookkeeping.Watch | None = None
        self.pace = pace.Pace()
        self.pace.whole_pipeline = "a loop of the script's own takes its rows out of whole batches"
        ops.records.between_steps()

    def give(self, element: Any) -> Any:
        """What the script gets for `element`, the next batch of the pipeline."""
        if self.shares:
            return self._give_share(element)
        _credit_last()
        _gave(self)
        if self.why_whole and not self.fixed:
            self.take_back(self.why_whole)
        if self.fixed:
            if self.credited:
                say_fixed(self.dataset)
            return element
        starts = not self.trains and self.credited
        if starts:
            self._start_training(element)
        if not self.trains:
            return self._give_whole(element)
        watch_drift()
        self.pace.tick()
        if self.weak:
            return self._give_one_of_group(element)
        mine = self._give_slice(element)
        self.first_slice = (mine, element) if starts else None
        return mine

    def take_back(self, why: str) -> None:
        """The loop cannot do with slices: from here on every rank computes whole batches of this dataset."""
        self.first_slice = None
        self.fixed, self.trains = True, False
        if self.dataset is not None:
            self.dataset._matex_whole_batches = True
        _training.discard(self)
        steps.set_whole()
        shared_elsewhere()
        output.note(why)

    def _give_whole(self, element: Any) -> Any:
        if _someone_trains(self):
            steps.look_at_whole_batch()
        self.rows = int(sharding.batch_rows(element))
        if self.watch is None and not (self.fixed or self.weak or self.credited):
            self.watch = bookkeeping.begin(self.rows)
            bookkeeping.mark(element, self.rows)
        if self.watch is not None:
            self.watch.record(element, self.rows)
        return element

    def _give_slice(self, element: Any) -> Any:
        me = world.current()
        if self.dataset is not None and pipeline.is_uneven(element, self.dataset.element_spec):
            pipeline.say_uneven()
            steps.set_whole()
            return element
        self.pace.rows = count = int(sharding.batch_rows(element))
        start, stop, has_rows = sharding.slice_bounds(count, me.rank, me.size)
        self.rows = stop - start
        steps.set_slice(start, stop, has_rows, count)
        mine = pipeline.take_rows(element, start, stop, count)
        bookkeeping.mark(mine, count)
        return mine

    def _give_one_of_group(self, element: Any) -> Any:
        """Weak scaling: of as many batches as there are ranks, this rank's own, or the first with weight 0."""
        import tensorflow as tf

        me = world.current()
        group = [element]
        while len(group) < me.size:
            try:
                group.append(self.pull())
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        counts = [int(sharding.batch_rows(batch)) for batch in group]
        if me.rank < len(group):
            steps.set_values(steps.slice_values(counts[me.rank], sum(counts)))
            return group[me.rank]
        steps.set_values(steps.slice_values(0, sum(counts)))
        return pipeline.take_rows(element, 0, 1, counts[0])

    def _start_training(self, element: Any) -> None:
        self.trains = True
        _training.add(self)
        resuming.say_loop()
        if self.weak:
            output.note("weak scaling: each rank takes whole batches of its own from the loops that train")
        comparison.compare_batch(comparison.batch_digest(element), "the batches of a loop over a tf.data.Dataset")
        if self.watch is not None:
            bookkeeping.end(self.watch)
            why = self.watch.why_whole()
            if why:
                self.take_back(why)

    def _give_share(self, element: Any) -> Any:
        """A batch of this rank's own rows. Ranks may have other numbers of batches: they go on until all are done."""
        rows = int(sharding.batch_rows(element))
        if self.first_row is None:
            self.first_row = pipeline.take_rows(element, 0, 1, rows)
            _training.add(self)
        counts = control.allgather(rows, "the rows of each rank's next batch")
        steps.set_values(steps.slice_values(rows, sum(counts)))
        return element

    def end(self) -> Any:
        """The iterator is exhausted. A batch to go on with, or None where all ranks are done."""
        if self.shares and not self.done:
            counts = control.allgather(0, "the rows of each rank's next batch")
            if sum(counts) > 0 and self.first_row is not None:
                steps.set_values(steps.slice_values(0, sum(counts)))
                return self.first_row
        self.pace.judge()
        ops.records.between_steps()
        self.close()
        return None

    def close(self) -> None:
        """Nothing more comes from this iterator."""
        if self.done:
            return
        self.done = True
        if self.watch is not None:
            bookkeeping.end(self.watch)
        if self.trains or self.shares:
            _training.discard(self)
            if not _training:
                steps.set_whole()
        elif _training:
            # Back in the training loop around this one: what it gave last counts in metrics as before.
            steps.back_to_slice()


_last: Any = None
_last_updates = 0


def _gave(loop: Loop) -> None:
    global _last, _last_updates
    _last, _last_updates = weakref.ref(loop), gradients.updates()


def _credit_last() -> None:
    """An update since the last batch was given is that batch's; of batches fetched together the last one is sliced.

    The others stay whole, on every rank the same, which leaves the weighed sum over ranks right.
    """
    loop = _last() if _last is not None else None
    if loop is not None and gradients.updates() > _last_updates:
        loop.credited = True


def whole_batch_in(args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """`args` and `kwargs` with the whole batch in place of the first slice that a loop gave; None if none is there."""
    import tensorflow as tf

    for loop in list(_training):
        if loop.first_slice is None:
            continue
        mine, whole = (tf.nest.flatten(part, expand_composites=False) for part in loop.first_slice)
        known = {id(part): instead for part, instead in zip(mine, whole)}
        if any(id(part) in known for part in tf.nest.flatten((args, kwargs))):
            loop.take_back(NAMED)
            return tf.nest.map_structure(lambda part: known.get(id(part), part), (args, kwargs))  # noqa: B023
    return None


def working_on() -> Loop | None:
    """The loop that gave the last batch, if its next one is a slice or may be."""
    loop = _last() if _last is not None else None
    return None if loop is None or loop.done or loop.fixed or loop.shares or loop.weak else loop


def compute_whole(why: str) -> None:
    """What is done with the batch that a loop gave last cannot be put together of slices: it gets no more of them."""
    loop = working_on()
    if loop is None:
        return
    if loop.trains:
        loop.why_whole = why  # the step at work goes on with its slice
    else:
        loop.take_back(why)


def say_fixed(dataset: Any = None) -> None:
    shared_elsewhere()
    if dataset is not None and getattr(dataset, "_matex_whole_batches", False):
        return
    output.note(
        "the batches of a loop have a fixed size (drop_remainder=True), which the script may rely on, so every rank "
        "computes them whole: right, but not faster. Without drop_remainder they are shared out"
    )


def _someone_trains(but: Loop) -> bool:
    return any(loop is not but for loop in _training)


_checked = 0


def watch_drift() -> None:
    """Every so many updates, compare the weights of all ranks."""
    global _checked
    every = settings.current().drift_steps
    done = gradients.updates()
    if every and done - _checked >= every:
        _checked = done
        agreed = variables.agreed()
        # Moving statistics are each rank's own where MATEX_SYNC_BATCHNORM has it so; the optimizer leaves them alone.
        trained = [variable for variable in agreed if getattr(variable, "trainable", True)]
        variables.check_drift(trained, trained, f"after {done} updates")


_updates_seen = 0
_whole_updates = 0
_WHOLE_ENOUGH = 4


def notice_update() -> None:
    """After eager code has run something: if it reduced gradients of whole batches again and again, say so once."""
    global _updates_seen, _whole_updates
    updates = gradients.updates()
    if updates == _updates_seen:
        return
    _updates_seen = updates
    if _training or _whole_updates < 0 or steps.announced() is not None:
        _whole_updates = min(_whole_updates, 0)
        return
    _whole_updates += 1
    if _whole_updates == _WHOLE_ENOUGH:
        resuming.say_loop()
        output.note(
            "a loop of the script's own takes its batches by slicing arrays, from a tf.data.Dataset that does not "
            "batch, or by other means that cannot be seen, so every rank computes them whole: right, but not faster. "
            "What Dataset.batch() gives is shared out"
        )


def shared_elsewhere() -> None:
    """Batches are shared out where `notice_update` does not look: by `fit`, inside a function, by the script."""
    global _whole_updates
    _whole_updates = -1
