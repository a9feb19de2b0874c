"""What eager code asks and reads of the rows of a batch that a loop gave it, for books of its own.

Outside of tapes the figures that a script sees are those of the whole batch (`figures`), and so is the number of rows
by which it weighs them, adds them up or decides: `total += loss * len(x)`. What it does with the rows in NumPy cannot
be seen; so if it reads those of the first batch of a loop, which every rank has whole, the loop stays so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from matex_tf import control, figures, output, rehearsal, replay, row_uses, steps

_ROWS = "_matex_rows"
# Where a tensor is read for whoever calls them; what else these libraries read is for their own purposes.
_READERS = (
    "tensorflow.python.framework.ops",
    "tensorflow.python.framework.tensor",
    "matex_tf.patches.eager_values",
    "matex_tf.patches.eager_rows",
)
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "matex_tf")
# Where Keras' own products are made for whoever calls them.
_OPERATIONS = ("keras.src.ops", "keras.src.backend", "tf_keras.src.backend", "matex_tf.patches")

_ADVICE = (
    ", so every rank computes whole batches: right, but not faster. Sums and means by tf.reduce_sum and "
    "tf.reduce_mean, and Keras metrics, are shared out"
)
READS = f"a loop of the script's own reads the rows of its batches in Python (NumPy, print){_ADVICE}"
ASKS = f"a loop of the script's own asks for the number of rows in a way whose purpose cannot be seen{_ADVICE}"
_MOST_RECORDED = 8
"""Batches that a loop gives before it trains: more of them are looked at for something else."""


class Watch:
    """What a script does with the rows of the first batch of a loop."""

    def __init__(self, rows: int, outer: Watch | None):
        self.rows = rows
        self.outer = outer
        self.why = ""
        self.recorder = replay.Recorder()
        self._recorded = 0

    def record(self, element: Any, rows: int) -> None:
        """The loop gives `element`, a whole batch: of the last one before it trains it is seen what is done with it."""
        self._recorded += 1
        if self._recorded > _MOST_RECORDED:
            self.recorder.end()
            self.recorder.forget()
        else:
            self.recorder.begin(_tensors_of_rows(element), rows)

    def why_whole(self) -> str:
        """Why the loop cannot be shared out, as any rank saw it; empty where it can. Collective."""
        if not self.why and self.recorder.rows_meet(rehearsal.other_rows(self.rows)):
            self.why = rehearsal.MEET
        self.recorder.forget()
        seen = control.allgather(self.why, "what the script does with the rows of a batch")
        return next((why for why in seen if why), "")


_watch: Watch | None = None
_uses: dict[tuple[CodeType, int], str] = {}


def begin(rows: int) -> Watch:
    """The loop that gives a whole batch of `rows` rows has its script watched until `end`."""
    global _watch
    _watch = Watch(rows, _watch)
    return _watch


def end(watch: Watch) -> None:
    global _watch
    watch.recorder.end()
    if _watch is watch:
        _watch = watch.outer


def mark(element: Any, of_rows: int) -> None:
    """Note on the eager tensors of `element`, a batch or slice that a loop gives, how many rows the whole batch has."""
    for part in _tensors_of_rows(element):
        _mark(part, of_rows)


def _tensors_of_rows(element: Any) -> list[Any]:
    import tensorflow as tf

    parts = tf.nest.flatten(element)
    return [part for part in parts if hasattr(part, "numpy") and isinstance(part, tf.Tensor) and part.shape.rank]


def pass_on(value: Any, result: Any) -> None:
    """`result` has the rows of `value`, one for one."""
    rows = rows_of(value)
    if rows is not None and hasattr(result, "numpy"):
        _mark(result, rows)


def rows_of(tensor: Any) -> int | None:
    """The rows of the whole batch that the eager `tensor` is, or is a slice of; None for any other."""
    return getattr(tensor, _ROWS, None)


def notice_product(result: Any, factors: Sequence[Any], caller: FrameType) -> None:
    """A product is made. If the script itself makes one in which the rows of the batch meet, this is noted.

    That is a table of rows by rows, as in a contrastive loss, or a sum over the rows of two tensors. A factor that is a
    variable has no rows of the batch, though it may have as many.
    """
    watch = _watch
    if watch is None or watch.rows < 2 or getattr(result.shape, "rank", None) != 2:
        return
    if any(hasattr(factor, "assign") for factor in factors):
        return
    rows, columns = result.shape
    shapes = [tuple(factor.shape) for factor in factors if hasattr(factor, "numpy") and factor.shape.rank == 2]
    summed = len(shapes) == 2 and all(watch.rows in shape for shape in shapes) and watch.rows not in (rows, columns)
    if summed or (rows == columns and rows and rows % watch.rows == 0):
        _note_meeting(watch, caller)


def notice_spread(tensor: Any, axis: Any, caller: FrameType) -> None:
    """A deviation is taken. If the script itself takes one over the rows of the batch, this is noted."""
    watch = _watch
    shape = getattr(tensor, "shape", None)
    if watch is None or not getattr(shape, "rank", None) or shape[0] != watch.rows:
        return
    if figures.removes_rows(axis, shape.rank):
        _note_meeting(watch, caller)


def _note_meeting(watch: Watch, caller: FrameType | None) -> None:
    while caller is not None and _module(caller).startswith(_OPERATIONS):
        caller = caller.f_back
    if caller is not None and not row_uses.is_library(caller.f_code.co_filename):
        watch.why = watch.why or rehearsal.MEET


def asked(tensor: Any, caller: FrameType) -> int | None:
    """The number of rows that `caller`, which asks `tensor` for them, means where that is the whole batch's."""
    rows = rows_of(tensor)
    if rows is not None:
        return _meant(rows, caller)
    if _watch is not None and tensor.shape.rank and tensor.shape[0] == _watch.rows and _meant(0, caller) is not None:
        _watch.why = _watch.why or ASKS  # of what was computed from the batch; a slice of it would not know the batch
    return None


def notice_read(tensor: Any, caller: FrameType) -> None:
    """A tensor's value is read. If it has the rows of the batch and the reader is the script, this is noted."""
    watch, now = _watch, steps.current_slice()
    if watch is None and now is None:
        return
    shape = tensor.shape
    if not shape.rank or shape[0] not in (now.sizes if now is not None else (watch.rows,)):
        return
    if not _is_read_by_script(caller):
        return
    if now is None:
        watch.why = watch.why or READS
    else:
        output.note(
            "a loop of the script's own reads the rows of a batch in Python (NumPy, print), but did not with its first "
            "batch: it sees this rank's slice, and figures made of it are the slice's. matex_tf.allreduce makes them "
            "global"
        )


def _mark(tensor: Any, of_rows: int) -> None:
    setattr(tensor, _ROWS, of_rows)
    tensor._tensor_shape = _shape_type()(tensor.shape, of_rows)


def _meant(rows: int, caller: FrameType) -> int | None:
    from matex_tf.patches import tapes

    if tapes.recording() or row_uses.is_library(caller.f_code.co_filename):
        return None
    key = (caller.f_code, caller.f_lasti)
    if key not in _uses:
        _uses[key] = row_uses.use_of(caller.f_code, caller.f_lasti, caller.f_lineno)
    if _uses[key] == row_uses.UNCLEAR and _watch is not None:
        _watch.why = _watch.why or ASKS
    return rows if _uses[key] == row_uses.BOOKS else None


_shape_types: list[type] = []


def _shape_type() -> type:
    """A kind of shape that answers for the whole batch where that is meant; made at first use of TensorFlow."""
    if not _shape_types:
        import tensorflow as tf

        class BatchShape(tf.TensorShape):
            def __init__(self, dims: Any, of_rows: int):
                super().__init__(dims)
                self._matex_of_rows = of_rows

            def __getitem__(self, key):
                if key == 0 and isinstance(key, int):
                    rows = _meant(self._matex_of_rows, sys._getframe(1))
                    if rows is not None:
                        return rows
                return super().__getitem__(key)

        _shape_types.append(BatchShape)
    return _shape_types[0]


def _is_read_by_script(frame: FrameType | None) -> bool:
    """Whether the script reads, itself or by a library that is not TensorFlow's or Keras' own code."""
    while frame is not None and (_module(frame) in _READERS or row_uses.is_library(frame.f_code.co_filename)):
        if _module(frame) not in _READERS and _module(frame).partition(".")[0] in _LIBRARIES:
            return False
        frame = frame.f_back
    return frame is not None


def _module(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "")
