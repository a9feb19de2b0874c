"""What the current training step works on, a slice of the global batch or all of it, and what that weighs.

`read_numbers` defines the four numbers of a step; `list_slice_values` and `list_whole_values` give them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from matex_tf import settings
from matex_tf.analysis import declarations
from matex_tf.analysis.placement import make_unknown
from matex_tf.thread_flag import ThreadFlag
from matex_tf.world import world

_variable: Any = None
_is_first: Any = None
_GRAPH_KEY = "matex_tf/step"


_is_sliced = False
_within: list[Any] = []
_alone = ThreadFlag()


def list_whole_values() -> list[float]:
    """The numbers of a step in which every rank computes the whole batch.

    It counts on rank 0 alone, so that the result is bit for bit the sequential one.
    """
    mine = 1.0 if world.get_world().rank == 0 else 0.0
    return [mine, mine, mine, 0.0]


def count_whole() -> Any:
    """Whether what every rank computes whole counts in metrics here: 1 or 0, or a tensor where that may change."""
    global _is_first
    if not settings.get_settings().elastic or is_in_session_graph():
        return list_whole_values()[2]
    if _is_first is None:
        import tensorflow as tf

        _is_first = make_hidden_variable(list_whole_values()[2], tf.float64, "matex_tf_first")
    return _is_first.read_value()


def list_slice_values(rows: int, of_rows: int) -> list[float]:
    """The numbers of a step in which this rank computes `rows` of the batch's `of_rows` rows."""
    mine = 1.0 if rows > 0 else 0.0
    return [rows / of_rows if of_rows else 0.0, mine, mine, float(of_rows)]


def make_slice_tensor(has_rows: Any, start: Any, stop: Any, of_rows: Any) -> Any:
    """`list_slice_values` as a float64 tensor of shape [4], from tensors."""
    import tensorflow as tf

    of_rows = tf.cast(of_rows, tf.float64)
    mine = tf.cast(has_rows, tf.float64)
    rows = tf.cast(stop - start, tf.float64) * mine
    return tf.stack([tf.math.divide_no_nan(rows, of_rows), mine, mine, of_rows])


def get_variable() -> Any:
    """The variable that holds the numbers (float64, shape [4]); made at first use, outside of any function."""
    global _variable
    if _variable is None:
        import tensorflow as tf

        _variable = make_hidden_variable(list_whole_values(), tf.float64, "matex_tf_step")
    return _variable


def list_own_variables() -> list[Any]:
    """The variables of this module, which are none of the script's."""
    return [variable for variable in (_variable, _is_first) if variable is not None]


def make_hidden_variable(value: Any, dtype: Any, name: str) -> Any:
    """A variable outside of any function that no creator of variables sees, `tf.function`'s own included."""
    import tensorflow as tf
    from tensorflow.python.ops import resource_variable_ops

    with tf.init_scope(), tf.device("CPU:0"):
        made = resource_variable_ops.ResourceVariable(value, trainable=False, dtype=dtype, name=name)
    declarations.exempt_variable(made.handle)
    return made


def is_in_session_graph() -> bool:
    """Whether ops are now being added to a graph of `tf.compat.v1`, which a session will run."""
    import tensorflow as tf
    from tensorflow.python.framework import ops as framework_ops

    return not tf.executing_eagerly() and not framework_ops.inside_function()


def make_placeholder() -> Any:
    """The numbers in a graph of `tf.compat.v1`: a placeholder that a sliced run feeds; whole batches need not."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    found = graph.get_collection(_GRAPH_KEY)
    if not found:
        with tf.control_dependencies(None), tf.device("CPU:0"):
            default = tf.constant(list_whole_values(), tf.float64)
            found = [tf.compat.v1.placeholder_with_default(default, [4], name="matex_tf_step")]
        graph.add_to_collection(_GRAPH_KEY, found[0])
    return found[0]


def read_numbers() -> Any:
    """This step's four numbers as a tensor, wherever ops are being made.

    They are in a variable of TensorFlow, so that a traced function reads this step's, not those it was traced with:

        mean    weight of this rank's gradient of a loss that is a mean over rows: rows here / rows of the batch
        sum     the same for a loss that is a sum over rows: 1, or 0 on a rank without rows
        metrics whether what this rank computes counts in metrics: 1 or 0
        rows    rows of the global batch; 0 where nobody sliced it
    """
    import tensorflow as tf

    within = not tf.executing_eagerly() and _within and isinstance(_within[-1], tf.Tensor)
    found = (
        tf.identity(_within[-1])
        if within
        else make_placeholder()
        if is_in_session_graph()
        else get_variable().read_value()
    )
    if not tf.executing_eagerly():
        # Who uses them for what knows what comes of it, and declares that.
        declarations.declare_placement(found, make_unknown(found.op, "it depends on which rows a rank has"))
    return found


def read_weight_and_rows(of_sum: bool = False) -> Any:
    """This rank's weight for a mean (or a sum) over rows and the rows of the global batch: float64, shape [2]."""
    import tensorflow as tf

    return tf.gather(read_numbers(), [1 if of_sum else 0, 3])


def set_values(values: Any) -> None:
    """Make `values` (four numbers, or a float64 tensor of shape [4]) those of the current step."""
    import tensorflow as tf

    global _is_sliced
    if isinstance(values, list):
        _is_sliced = values[3] > 0
    with tf.device("CPU:0"):  # from a GPU they would come back after all that it has still to do
        get_variable().assign(values)


def is_sliced() -> bool:
    """Whether eager code works on rows of this rank alone."""
    return _is_sliced


@contextlib.contextmanager
def enter_slice(numbers: Any) -> Iterator[None]:
    """Within it the step works on this rank's rows, which `read_numbers` tells of, and its gradients are parts of a
    sum.

    Args:
        numbers: `list_slice_values` in eager code, `make_slice_tensor` in a graph.
    """
    before = read_values() if isinstance(numbers, list) else None
    if before is not None:
        set_values(numbers)
    _within.append(numbers)
    try:
        yield
    finally:
        _within.pop()
        if before is not None:
            go_back_to(before)


def enter_alone() -> contextlib.AbstractContextManager[None]:
    """Within it a step is made of whole batches that this rank computes by itself: it needs no other rank."""
    return _alone.set()


def is_alone() -> bool:
    return bool(_alone)


def is_within_slice() -> bool:
    return bool(_within)


def go_back_to(values: list[float]) -> None:
    """Make what `read_values` gave those of the current step again."""
    set_values(values if values[3] else list_whole_values())  # which rank is the first may have changed


def read_values() -> list[float]:
    """The numbers of the current step, in eager code."""
    import tensorflow as tf

    with tf.device("CPU:0"):  # by way of a GPU they would wait for all that it has still to do
        return [float(number) for number in get_variable().numpy()]


def set_whole() -> None:
    """From here on every rank computes whole batches."""
    if _variable is not None:
        set_values(list_whole_values())


def handle_loss(became_first: bool) -> None:
    """What is computed whole counts on the first rank, which may be another now."""
    if _is_first is not None:
        _is_first.assign(list_whole_values()[2])
    if _variable is not None and not read_values()[3]:
        set_whole()


def set_metrics_weight(counts: float) -> None:
    """Change only whether this rank's metrics count."""
    import tensorflow as tf

    if _variable is not None:
        with tf.device("CPU:0"):
            get_variable()[2].assign(counts)


def restore_metrics_weight() -> None:
    """Undo `set_metrics_weight`: metrics count where the slice has rows."""
    import tensorflow as tf

    if _variable is not None:
        with tf.device("CPU:0"):
            get_variable()[2].assign(get_variable()[1])


def announce_rows(rows: int, of_rows: int) -> None:
    """For a loop that feeds itself: the next step computes `rows` here of a global batch of `of_rows`."""
    global _announced
    _announced = list_slice_values(rows, of_rows)
    import tensorflow as tf

    if tf.executing_eagerly():
        set_values(_announced)


_announced: list[float] | None = None


def get_announced() -> list[float] | None:
    """What `announce_rows` said last, for runs of a session, which are fed the numbers."""
    return _announced
