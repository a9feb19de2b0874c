"""Loops and `next` inside a `tf.function`: what they yield are slices if the function reduces a gradient.

That is known once the function is traced, so the decision is a variable that its graph reads (`_find_decision`).
"""

from __future__ import annotations

from typing import Any

from matex_tf import settings, tags
from matex_tf.adapt import executor
from matex_tf.analysis import declarations, graph_ops, verdict
from matex_tf.analysis.placement import SAME
from matex_tf.gradients import variables
from matex_tf.loops import dataset_loop, explain, traces
from matex_tf.resilience import script_loops
from matex_tf.runtime import notes
from matex_tf.runtime.hooks import Table
from matex_tf.runtime.loop_hooks import put_loop
from matex_tf.sharding import fingerprint, row_shares, share_arrays, sliced_dataset, step_weight
from matex_tf.world import world

HOOKS = Table()

_LOST = "a loop in a tf.function is not sharded"

WHOLE, BEGINNING, TRAINING = 0, 1, 2
"""A decision while its graph is traced, once that is known to train, and after the ranks have compared variables and
batches in its first step."""
_DECISION = "decision"


def take_next(iterator: Any, element: Any) -> Any:
    """What `next(iterator)` is in a graph, where the pipeline gives `element`."""
    if not world.is_active() or isinstance(element, (sliced_dataset.Batch, sliced_dataset.OwnBatch)):
        return element
    known = sliced_dataset.find_argument(iterator)
    loop = dataset_loop.find_loop(known)
    if loop is not None and loop.shares:
        _refuse_share()
    if loop is None or loop.fixed:
        return _take_all(element)
    import tensorflow as tf

    return _slice_if(_find_decision(tf.compat.v1.get_default_graph()), element)


def _refuse_share() -> None:
    """How many rows the other ranks have in a step of a share is asked between steps, and a graph has no such place."""
    raise world.RankError(
        "a loop or `next` inside a tf.function over a dataset of this rank's own rows (DataSet.as_dataset, or made of "
        "shares) cannot be weighted against the other ranks' rows. Loop in eager code and call the tf.function for "
        "each batch, or use fit"
    )


def _take_all(element: Any) -> Any:
    """The batch as it is, which every rank computes whole."""
    import tensorflow as tf

    with tf.control_dependencies([step_weight.get_variable().assign(step_weight.list_whole_values())]):
        return tf.nest.map_structure(tf.identity, element)


def _make_decision() -> Any:
    found = step_weight.make_hidden_variable(WHOLE, "int32", "matex_tf_loop")
    graph_ops.keep_alive(found)
    return found


def _decide_in_loop(body: Any, get_state: Any, set_state: Any) -> tuple[Any, Any]:
    """A decision of its own for a loop with `body`, and the body that takes and makes it."""
    decision = _make_decision()

    def body_on_slice(element):
        import tensorflow as tf

        body(_slice_if(decision, element))
        # What a turn hands on to the next one, whose slice may weigh otherwise, is whole.
        set_state(traces.make_outputs_whole(get_state()))
        _write_decision(tf.compat.v1.get_default_graph(), decision)

    return decision, body_on_slice


def _find_decision(graph: Any) -> Any:
    """The variable that says whether what `graph` iterates is sliced; written when its trace ends."""
    return tags.get_or_make_tag(graph, _DECISION, _make_decision)


def _write_decision(graph: Any, found: Any) -> None:
    import tensorflow as tf

    if not graph_ops.has_reductions(graph):
        return
    if verdict.find_failure(graph) is not None:
        explain.say_whole(str(verdict.find_failure(graph)))
    else:
        explain.say_shared("a loop in a tf.function")
        traces.note_shared_loop()
        executor.say_even("a loop in a tf.function", "ranks agree between steps, and a graph has no such place")
        with tf.init_scope():
            found.assign(BEGINNING)


@HOOKS.replace("tensorflow.python.framework.func_graph", "func_graph_from_py_func", _LOST)
def _wrap_trace(original: Any) -> Any:
    def func_graph_from_py_func(*args, **kwargs):
        graph = original(*args, **kwargs)
        found = tags.get_tag(graph, _DECISION)
        if found is not None:
            _write_decision(graph, found)
        return graph

    return func_graph_from_py_func


@HOOKS.replace("tensorflow.python.data.ops.dataset_autograph", "_tf_ag_dataset_for_stmt", _LOST, put=put_loop)
def _wrap_dataset_loop(original: Any) -> Any:
    def _tf_ag_dataset_for_stmt(ds, extra_test, body, get_state, set_state, symbol_names, opts):
        known = sliced_dataset.find_argument(ds)
        if not sliced_dataset.has_batches_to_slice(known):
            return original(ds, extra_test, body, get_state, set_state, symbol_names, opts)
        if share_arrays.is_share(known):
            _refuse_share()
        if sliced_dataset.has_fixed_rows(known):
            dataset_loop.say_fixed()
            return original(ds, extra_test, body, get_state, set_state, symbol_names, opts)
        import tensorflow as tf

        _say_weak()
        decision, body_on_slice = _decide_in_loop(body, get_state, set_state)
        # Every run of the loop compares its first batch anew.
        with tf.control_dependencies([decision.assign(tf.minimum(decision.read_value(), BEGINNING))]):
            original(ds, extra_test, body_on_slice, get_state, set_state, symbol_names, opts)
        step_weight.get_variable().assign(step_weight.list_whole_values())

    return _tf_ag_dataset_for_stmt


@HOOKS.replace("tensorflow.python.autograph.operators.control_flow", "_tf_iterator_for_stmt", _LOST, put=put_loop)
def _wrap_iterator_loop(original: Any) -> Any:
    def _tf_iterator_for_stmt(iter_, extra_test, body, get_state, set_state, symbol_names, opts):
        known = sliced_dataset.find_argument(iter_)
        loop = dataset_loop.find_loop(known)
        if loop is not None and loop.shares:
            _refuse_share()
        if loop is None or loop.fixed:
            return original(iter_, extra_test, body, get_state, set_state, symbol_names, opts)
        _say_weak()
        _, body_on_slice = _decide_in_loop(body, get_state, set_state)
        return original(iter_, extra_test, body_on_slice, get_state, set_state, symbol_names, opts)

    return _tf_iterator_for_stmt


def _say_weak() -> None:
    if settings.get_settings().scaling == "weak":
        notes.print_note(
            "weak scaling is for fit and eager loops: in a loop inside a tf.function each batch is sharded"
        )


def _slice_if(decision: Any, element: Any) -> Any:
    """In a graph: this rank's rows of a batch where `decision` is not WHOLE, else all of them."""
    import tensorflow as tf

    me = world.get_world()
    count = row_shares.count_batch_rows(element)
    parts = tf.nest.flatten(element, expand_composites=True)

    def begin(*values: Any) -> bool:
        variables.settle_agreements()
        script_loops.say_loop()
        whole = tf.nest.pack_sequence_as(element, values, expand_composites=True)
        if sliced_dataset.is_uneven(whole):
            sliced_dataset.say_uneven()
        fingerprint.compare_batch(fingerprint.digest_batch(whole), "the first batch of a loop in a tf.function")
        decision.assign(TRAINING)
        return True

    known = decision.read_value()
    for whole_here in (known, *parts):  # before it is cut, every rank has the batch, and all have decided alike
        declarations.declare_placement(whole_here, SAME)
    ready = tf.cond(
        tf.equal(known, BEGINNING), lambda: tf.py_function(begin, parts, tf.bool), lambda: tf.constant(True)
    )
    even, most = sliced_dataset.measure_evenness(element)
    slicing = tf.logical_and(known > WHOLE, even)
    start, stop, has_rows = row_shares.find_slice_bounds(count, me.rank, me.trainers)
    numbers = tf.where(
        slicing,
        step_weight.make_slice_tensor(has_rows, start, stop, count),
        tf.constant(step_weight.list_whole_values(), tf.float64),
    )
    start = tf.where(slicing, start, tf.zeros_like(start))
    stop = tf.where(slicing, stop, most)
    with tf.control_dependencies([ready]), tf.control_dependencies([step_weight.get_variable().assign(numbers)]):
        mine = sliced_dataset.take_rows(tf.nest.map_structure(tf.identity, element), start, stop)
    traces.declare_rows(mine)
    return mine
