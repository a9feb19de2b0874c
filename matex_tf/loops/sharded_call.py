"""One call of a model with this rank's rows: whole inputs are cut, outputs gathered, gradients added up.

`Call.run_function` goes forwards, and `Call._run_backward` is what the script's tape calls on the way back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.adapt import executor
from matex_tf.analysis import declarations
from matex_tf.analysis.placement import ROWS, SAME, make_partial
from matex_tf.gradients import reduction, row_gathering, tape_stack, variables
from matex_tf.loops import open_shapes, step_arguments
from matex_tf.sharding import row_shares, step_weight
from matex_tf.world import world

ATTACHED = ("_keras_mask", "_keras_logits")
"""What Keras' losses and layers read off a tensor beside its values."""
ACTIVATIONS = ("Sigmoid", "Softmax")
"""Ops before which Keras' losses look: of what comes of one in a graph they take the logits."""
INSTEAD = "Decorate the training step with @tf.function, or set MATEX_EAGER=whole"


def list_tensors(outputs: Any) -> list[Any]:
    """The tensors in what a model gives, what is attached to them, and logits behind them.

    Raises:
        TypeError: there is something else in it.
    """
    import tensorflow as tf

    flat = tf.nest.flatten(outputs)
    if not all(isinstance(part, tf.Tensor) for part in flat):
        raise TypeError("a model gives something that is no tensor")
    attached = [getattr(part, name, None) for part in flat for name in ATTACHED]
    return [*flat, *(one for one in attached if one is not None), *(find_logits(part) for part in flat)]


def find_logits(part: Any) -> Any:
    """The logits of which a tensor of a graph is made; any other is its own."""
    is_made = not hasattr(part, "numpy") and part.op.type in ACTIVATIONS
    return part.op.inputs[0] if is_made else part


def rebuild_output(part: Any, wholes: dict[int, Any]) -> Any:
    """An output of all rows, with what was attached to that of some; `wholes` are by the ids of what those were."""
    import tensorflow as tf

    whole = wholes[id(find_logits(part))]
    if find_logits(part) is not part:
        whole = tf.sigmoid(whole) if part.op.type == "Sigmoid" else tf.nn.softmax(whole)
    for name in ATTACHED:
        if getattr(part, name, None) is not None:
            setattr(whole, name, wholes[id(getattr(part, name))])
    return whole


class Call:
    """A call that is sharded, in eager code or in a graph.

    Forwards a rank calls the model with its slice under a tape of its own. The script's tape sees one operation, whose
    outputs are those of all rows. Backwards each rank goes back through its own tape from its rows of the upstream
    gradients; those of the variables are summed over the ranks, and those of inputs gathered. So on both sides of it
    all ranks have the same.

    Args:
        name: the model's, for messages.
        replicated: ids of the variables whose sparse gradients have the same indices on all ranks.
        arguments: those of the call.
    """

    def __init__(self, name: str, replicated: frozenset[int], arguments: step_arguments.Arguments):
        import tensorflow as tf

        me = world.get_world()
        self._name, self._replicated, self._arguments = name, replicated, arguments
        self._is_eager = tf.executing_eagerly()
        executor.say_even(f"the model '{name}', called", executor.MEASURED)
        self._rows = [leaf for leaf, is_rows in zip(arguments.leaves, arguments.are_rows) if is_rows]
        count = arguments.rows if self._is_eager else self._count_rows()
        self._start, self._stop, has_rows = row_shares.find_slice_bounds(count, me.rank, me.trainers)
        self._of_rows = count
        if self._is_eager:
            self._mine = self._stop - self._start if has_rows else 0
            self._numbers = step_weight.list_slice_values(self._mine, count)
        else:
            self._numbers = step_weight.make_slice_tensor(has_rows, self._start, self._stop, count)
            self._mine = tf.where(has_rows, self._stop - self._start, tf.zeros_like(count))

    def _count_rows(self) -> Any:
        """The number of rows in a graph, int64, where it may show only when it is run."""
        import tensorflow as tf

        counts = [tf.shape(leaf, tf.int64)[0] for leaf in self._rows]
        checks = [
            tf.debugging.assert_equal(one, counts[0], f"the inputs of '{self._name}' have different numbers of rows")
            for one in counts[1:]
        ]
        with tf.control_dependencies(checks):
            return tf.identity(counts[0])

    def run_function(self, function: Callable[[tuple[Any, ...], dict[str, Any]], Any], tapes: Sequence[Any]) -> Any:
        """What `function`, given arguments, makes of all rows; `tapes`, those that record, note the way back.

        A tape owns what it notes, which so must not hold it.
        """
        import tensorflow as tf
        from tensorflow.python.eager import record
        from tensorflow.python.eager import tape as tape_lib

        inputs = [leaf for leaf in self._rows if isinstance(leaf, tf.Tensor) and record.should_record_backprop([leaf])]
        self._sources: list[Any] = []
        persistent = len(tapes) > 1 or tapes[0]._persistent

        def cut(leaf: Any) -> Any:
            mine = tf.convert_to_tensor(leaf[self._start : self._stop])
            if not self._is_eager:
                mine.set_shape([None, *leaf.shape.as_list()[1:]])
                declarations.declare_placement(mine, ROWS)
            if any(leaf is one for one in inputs):
                self._sources.append(mine)
            return mine

        with contextlib.ExitStack() as stopped:
            for tape in reversed(tapes):
                stopped.enter_context(tape.stop_recording())
            args, kwargs = self._arguments.replace_rows(cut)
            with self._enter_slice(), tf.GradientTape(persistent=persistent) as self._inner:
                self._inner.watch(self._sources)
                with open_shapes.watch_rows(self._arguments.rows > 0 and not self._is_eager):
                    outputs = function(args, kwargs)
            flat = tf.nest.flatten(outputs)
            mine = {id(one): one for one in list_tensors(outputs)}
            for part in flat:
                if find_logits(part) is not part:
                    del mine[id(part)]  # made anew of its logits
            wholes = {key: self._gather_rows(one, like=one) for key, one in mine.items()}
        self._variables = list(self._inner.watched_variables())
        for variable in self._variables:
            tape_lib.variable_accessed(variable)
        self._targets = {key: one for key, one in mine.items() if one.dtype.is_floating}
        handles = [variable.handle for variable in self._variables]
        record.record_operation(
            "MatexModel", [wholes[key] for key in self._targets], [*inputs, *handles], self._run_backward
        )
        result = [rebuild_output(part, wholes) for part in flat]
        return tf.nest.pack_sequence_as(outputs, result)

    def _enter_slice(self) -> contextlib.AbstractContextManager[None]:
        return step_weight.enter_slice(self._numbers)

    def _gather_rows(self, tensor: Any, like: Any) -> Any:
        """The rows of all ranks, in a tensor of the shape of `like` but for their number."""
        import tensorflow as tf

        tensor = tf.convert_to_tensor(tensor)
        whole = row_gathering.gather_rows(tensor[: self._mine], "the rows of a model", self._numbers)
        if self._is_eager:
            return whole
        rows = None if self._arguments.rows < 0 else self._arguments.rows
        whole.set_shape([rows, *like.shape.as_list()[1:]])
        # Only a tape knows the way back from here.
        whole = tf.raw_ops.PreventGradient(input=whole, message="tf.gradients through a model whose rows ranks share")
        declarations.declare_placement(whole, SAME)
        return whole

    def _run_backward(self, *upstream: Any) -> list[Any]:
        """The gradients with respect to the inputs that the tape knows, and to the variables, of all rows."""
        import tensorflow as tf

        refused = ""
        if self._is_eager and not tf.executing_eagerly():
            refused = f"a tape is asked for a jacobian through the model '{self._name}'"
        elif tape_stack.get_tapes():
            refused = f"a tape records while gradients of the model '{self._name}' are computed"
        if refused:
            raise world.RankError(f"{refused}, whose rows the ranks share. {INSTEAD}")
        pairs = [
            (target, one[self._start : self._stop])
            for target, one in zip(self._targets.values(), upstream)
            if one is not None
        ]
        with self._enter_slice(), tape_stack.keep_plain():
            found = self._inner.gradient(
                [target for target, _ in pairs], [*self._sources, *self._variables], [one for _, one in pairs]
            )
        count = len(self._sources)
        wholes = [
            None if one is None else self._gather_rows(one, like=source)
            for one, source in zip(found[:count], self._sources)
        ]
        return [*wholes, *self._add_up(found[count:])]

    def _add_up(self, found: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        # Sparse gradients at the same indices on all ranks are added up as dense ones are.
        dense = [
            one.values if isinstance(one, tf.IndexedSlices) and id(variable) in self._replicated else one
            for one, variable in zip(found, self._variables)
        ]
        if not self._is_eager:
            for one in dense:
                self._declare_part(one)
        weight = tf.stack([tf.cast(self._numbers[1], tf.float64), tf.cast(self._of_rows, tf.float64)])
        place = "the gradients of a model"
        reduced, _ = reduction.reduce_gradients(dense, self._variables, weight=weight, place=place)
        for index, one in enumerate(found):
            if dense[index] is not one:
                reduced[index] = tf.IndexedSlices(reduced[index], one.indices, one.dense_shape)
        reduction.note_same(reduced)
        if self._is_eager:
            variables.expect_agreement(self._variables)
            variables.settle_agreements()
        return reduced

    def _declare_part(self, gradient: Any) -> None:
        """State of a gradient in a graph that it is this rank's part of a sum."""
        import tensorflow as tf

        if isinstance(gradient, tf.IndexedSlices):
            declarations.declare_placement(gradient.values, ROWS)
            declarations.declare_placement(gradient.indices, ROWS)
        elif gradient is not None:
            declarations.declare_placement(gradient, make_partial(0))
