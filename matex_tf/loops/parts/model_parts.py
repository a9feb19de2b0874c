"""Computes a rank's slice in parts (MATEX_MICROBATCH): activations of one part at a time are in memory.

`call_in_parts` is the way in. The price is one more forward pass of all but the first part (`_Parts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matex_tf import settings
from matex_tf.analysis import declarations, interpreter
from matex_tf.analysis.placement import ROWS, SAME
from matex_tf.gradients import tape_stack
from matex_tf.loops import sharded_call, step_arguments
from matex_tf.loops.parts import fitting, part_trace, split_check
from matex_tf.ops import overlap
from matex_tf.sharding import step_weight
from matex_tf.world import world

EAGER = "eager code is not computed in parts: decorate the training step with @tf.function"
COMPILED = "XLA compiles it (jit_compile=True)"
TAPES = "several tapes record, or one that watches variables that are not trainable"
ARGUMENTS = "it is given something else than tensors of rows and plain values"
NOT_BUILT = "it is not built before its first step: give it an Input or call build()"
SECOND = "a tape records while gradients of a model are computed"


def call_in_parts(
    original: Callable[..., Any], model: Any, tapes: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `original(model, *args, **kwargs)` gives while `tapes` record, in a graph: in parts where that is proved."""
    import tensorflow as tf

    rows = settings.get_settings().microbatch
    if not rows or tf.executing_eagerly() or step_weight.is_in_session_graph() or tape_stack.is_plain():
        return original(model, *args, **kwargs)
    function = tf.function(lambda *args, **kwargs: None, autograph=False)
    arguments = step_arguments.Arguments(function, args, kwargs)
    found: Any = _find_obstacle(model, tapes, arguments)
    if not found:
        found = part_trace.trace_part(original, model, arguments)
    if not isinstance(found, str) and part_trace.REPLICATED in {kind for kinds in found.kinds for kind in kinds}:
        found = part_trace.REPLICATED
    if not isinstance(found, str) and rows == settings.AUTO:
        found = fitting.find_obstacle(found.variables) or found
    if isinstance(found, str):
        split_check.note_whole(str(model.name), found)
        return original(model, *args, **kwargs)
    split_check.note_split()
    if rows != settings.AUTO:
        fitting.return_freed()
    return _Parts(found, arguments, tapes, rows, str(model.name)).compute_outputs()


def _find_obstacle(model: Any, tapes: Sequence[Any], arguments: step_arguments.Arguments) -> str:
    import tensorflow as tf

    if overlap.is_for_xla() or getattr(model, "jit_compile", False) is True:
        return COMPILED
    if len(tapes) != 1 or not all(variable.trainable for variable in tapes[0].watched_variables()):
        return TAPES
    if not getattr(model, "built", False):
        return NOT_BUILT
    for leaf, is_rows in zip(arguments.leaves, arguments.are_rows):
        is_plain = leaf is None or isinstance(leaf, (bool, int, float, str))
        is_tensor = isinstance(leaf, tf.Tensor) and is_rows and getattr(leaf, "_keras_mask", None) is None
        if not is_plain and not is_tensor:
            return ARGUMENTS
    places = [interpreter.find_placement(leaf) for leaf in _list_rows(arguments)]
    if not places or not (all(one == ROWS for one in places) or all(one.is_same for one in places)):
        return ARGUMENTS
    return ""


def _list_rows(arguments: step_arguments.Arguments) -> list[Any]:
    return [leaf for leaf, is_rows in zip(arguments.leaves, arguments.are_rows) if is_rows]


class _Parts:
    """One call of a model in a graph.

    Forwards the model, which is proved to compute each row by itself, is called part by part, and only its outputs are
    kept; of the first part all that its way back needs. Backwards each further part is computed once more and
    differentiated from its rows of the upstream gradients; gradients of variables are added up. So the loss, the
    metrics and all else of the step see the slice as ever, and what a loss makes of its rows makes no difference. Of
    one part nothing is computed twice.
    """

    def __init__(
        self,
        trace: part_trace.PartTrace,
        arguments: step_arguments.Arguments,
        tapes: Sequence[Any],
        rows: int,
        name: str,
    ):
        import tensorflow as tf

        self._trace, self._leaves, self._tapes = trace, _list_rows(arguments), tapes
        self._known = None if arguments.rows < 0 else arguments.rows
        place = interpreter.find_placement(self._leaves[0])
        self._place = SAME if place.is_same else ROWS
        self._count = tf.shape(self._leaves[0], tf.int64)[0]
        with _stop_recording(tapes):
            is_auto = rows == settings.AUTO
            self._most = fitting.find_rows_that_fit(trace, self._leaves, self._count, name) if is_auto else rows
        checks = [tf.debugging.assert_equal(tf.shape(leaf, tf.int64)[0], self._count) for leaf in self._leaves[1:]]
        with tf.control_dependencies(checks):
            self._parts = tf.maximum((self._count + self._most - 1) // self._most, 1)
        # How often a loop turns, which nothing that comes of it tells.
        declarations.declare_placement(self._parts, SAME)

    def compute_outputs(self) -> Any:
        """What the model makes of all rows; the tape notes the way back."""
        import tensorflow as tf
        from tensorflow.python.eager import record
        from tensorflow.python.eager import tape as tape_lib

        trace = self._trace
        self._inputs = [leaf for leaf in self._leaves if record.should_record_backprop([leaf])]
        with _stop_recording(self._tapes):
            flat = self._run_forward()
        for variable in trace.variables:
            tape_lib.variable_accessed(variable)
        handles = [variable.handle for variable in trace.variables]
        targets = [flat[index] for index in trace.targets]
        record.record_operation("MatexParts", targets, [*self._inputs, *handles], self._run_backward)
        wholes = {id(one): whole for one, whole in zip(trace.outputs, flat)}
        parts = [sharded_call.rebuild_output(part, wholes) for part in tf.nest.flatten(trace.made)]
        return tf.nest.pack_sequence_as(trace.made, parts)

    def _run_forward(self) -> list[Any]:
        import tensorflow as tf

        outputs = self._trace.outputs

        def part(number: Any, *arrays: Any) -> list[Any]:
            made = self._trace.function(number, *map(self._make_cut(number), self._leaves))
            return [array.write(_cast_index(number), one) for array, one in zip(arrays, made)]

        self._first: Any = self._compute_part(tf.zeros([], tf.int64))
        arrays = [self._make_array(one).write(0, made) for one, made in zip(outputs, self._first[2])]
        arrays = self._run_further_parts(part, arrays, self._first[2])
        return [self._join_array(array, one) for array, one in zip(arrays, outputs)]

    def _make_cut(self, number: Any) -> Callable[[Any], Any]:
        """Takes the rows of a part."""
        import tensorflow as tf

        start = number * self._most
        stop = tf.minimum(start + self._most, self._count)
        return lambda whole: part_trace.cut_rows(whole, start, stop)

    def _compute_part(self, number: Any) -> tuple[Any, list[Any], list[Any]]:
        """A part with its way back: the tape, those of its rows that have gradients, and what the model makes."""
        import tensorflow as tf

        rows = list(map(self._make_cut(number), self._leaves))
        sources = [mine for mine, whole in zip(rows, self._leaves) if any(whole is one for one in self._inputs)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            made = self._trace.function(number, *rows)
        return tape, sources, made

    def _run_further_parts(
        self, part: Callable[..., list[Any]], state: Sequence[Any], after: Sequence[Any]
    ) -> list[Any]:
        """Go on from `state`, which is the first part's, by `part` for each further one in turn, once `after` is there.

        So one part at a time is in memory.
        """
        import tensorflow as tf

        first = _order_after(after)
        made = tf.while_loop(
            lambda number, *_: number < self._parts,
            lambda number, *before: [number + 1, *part(number, *before)],
            [first, *state],
            parallel_iterations=1,
        )
        return list(made[1:])

    def _make_array(self, like: Any) -> Any:
        import tensorflow as tf

        shape = [None, *like.shape.as_list()[1:]]
        return tf.TensorArray(like.dtype, _cast_index(self._parts), infer_shape=False, element_shape=shape)

    def _join_array(self, array: Any, like: Any) -> Any:
        """The rows of all parts, which only a tape knows the way back from."""
        import tensorflow as tf

        whole = array.concat()
        whole.set_shape([self._known, *like.shape.as_list()[1:]])
        whole = tf.raw_ops.PreventGradient(input=whole, message="tf.gradients through a model that is called in parts")
        declarations.declare_placement(whole, self._place)
        return whole

    def _run_backward(self, *upstream: Any) -> list[Any]:
        """The gradients with respect to the inputs that the tape knows, and to the variables."""
        import tensorflow as tf

        if tape_stack.get_tapes():
            raise world.RankError(f"{SECOND}, and they are computed in parts. Unset MATEX_MICROBATCH")
        trace = self._trace
        given = [index for index, one in enumerate(upstream) if one is not None]
        kinds = [_join_kinds({trace.kinds[index][place] for index in given}) for place in range(len(trace.variables))]
        chosen = [(variable, kind) for variable, kind in zip(trace.variables, kinds) if kind]
        dense = [variable for variable, kind in chosen if kind == "dense"]
        sparse = [variable for variable, kind in chosen if kind == "sparse"]

        def add(number: Any, computed: tuple[Any, list[Any], list[Any]], arrays: list[Any], sums: list[Any]) -> Any:
            """Gradients of a part: they are put into arrays, or added to sums, of which the first part has none."""
            tape, sources, made = computed
            cut = self._make_cut(number)
            with tape_stack.keep_plain():
                of_inputs, of_dense, of_sparse = tape.gradient(
                    [made[trace.targets[index]] for index in given],
                    [sources, dense, sparse],
                    [cut(upstream[index]) for index in given],
                )
            found = [tf.zeros_like(one) if got is None else got for one, got in zip(sources, of_inputs)]
            for got in of_sparse:
                found += [got.values, tf.cast(got.indices, tf.int64)]
            arrays = [array.write(_cast_index(number), got) for array, got in zip(arrays, found)]
            found = [
                tf.zeros_like(one) if got is None else tf.convert_to_tensor(got) for one, got in zip(dense, of_dense)
            ]
            return [*arrays, *([one + got for one, got in zip(sums, found)] if sums else found)]

        arrays = [self._make_array(one) for one in self._inputs]
        for variable in sparse:
            arrays.append(_make_rows_array(variable.dtype, variable.shape[1:], self._parts))
            arrays.append(_make_rows_array(tf.int64, [], self._parts))

        def part(number: Any, *state: Any) -> Any:
            return add(number, self._compute_part(number), list(state[: len(arrays)]), list(state[len(arrays) :]))

        # A persistent tape would have zeros made for all that the way back needs. So a second way back computes anew.
        zero = tf.zeros([], tf.int64)
        first, self._first = self._first or self._compute_part(zero), None
        state = add(zero, first, arrays, [])
        made = iter(self._run_further_parts(part, state, state[len(arrays) :]))
        of_inputs = [self._join_array(next(made), one) for one in self._inputs]
        of: dict[int, Any] = {}
        for variable in sparse:
            values, indices = next(made).concat(), next(made).concat()
            for one in (values, indices):
                declarations.declare_placement(one, self._place)
            of[id(variable)] = tf.IndexedSlices(values, indices, tf.shape(variable, tf.int64))
        of.update((id(variable), next(made)) for variable in dense)
        return [*of_inputs, *(of.get(id(variable)) for variable in trace.variables)]


@contextlib.contextmanager
def _stop_recording(tapes: Sequence[Any]) -> Iterator[None]:
    """Within it `tapes` do not record."""
    with contextlib.ExitStack() as stopped:
        for tape in reversed(tapes):
            stopped.enter_context(tape.stop_recording())
        yield


def _join_kinds(kinds: set[str]) -> str:
    """The kind of a sum of gradients of these kinds."""
    return next((kind for kind in ("dense", "sparse") if kind in kinds), "")


def _make_rows_array(dtype: Any, shape: Any, parts: Any) -> Any:
    import tensorflow as tf

    return tf.TensorArray(dtype, _cast_index(parts), infer_shape=False, element_shape=[None, *shape])


def _order_after(found: Sequence[Any]) -> Any:
    """1, which is known once all of `found` is. A function that is called does not keep control edges waiting."""
    import tensorflow as tf

    one = tf.ones([], tf.int64)
    numbers = [tf.where(tf.cast(tf.reshape(one, [-1])[:1], tf.bool)) for one in found]
    counts = [tf.shape(number, tf.int64)[0] for number in numbers]
    one = tf.minimum(tf.maximum(tf.add_n([one, *counts]), 1), 1)
    declarations.declare_placement(one, SAME)
    return one


def _cast_index(number: Any) -> Any:
    import tensorflow as tf

    return tf.cast(number, tf.int32)
