"""`tf.GradientTape.gradient`: in a loop of the script's own, gradients are reduced here, where the tape gives them.

Gradients of tensors that are not variables are left alone, and so are all while an outer tape records.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from matex_tf.gradients import custom_gradients, row_mixing, tape_stack
from matex_tf.loops import model_calls, side_effects, tape_gradients
from matex_tf.loops.recorded import backward, recording
from matex_tf.runtime import script_frames
from matex_tf.runtime.hooks import APIS, Table

HOOKS = Table()

_LOST = "gradients of a tape are not reduced"
_OWN = "a gradient function of the script is not proved to be that of a sum over rows"

# Gradients that TensorFlow takes for its own purposes are parts of a larger one.
_INTERNAL = (
    "tensorflow.python.eager.",
    "tensorflow.python.ops.",
    "tensorflow.python.training.",
    "tensorflow.python.keras.",
)
# Keras' own training step hands its gradients to the optimizer, which reduces them once for each real update.
_KERAS = ("keras.", "tf_keras.")
_JACOBIAN = "gradients of weights are taken of many values at once (tape.jacobian)"
_FORWARD = "gradients of weights are taken while a forward accumulator records (tf.autodiff.ForwardAccumulator)"


@HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape._push_tape", _LOST)
def _wrap_push(original: Any) -> Any:
    def _push_tape(self):
        import tensorflow as tf

        original(self)
        row_mixing.note_tape_change()
        outer = [tape for tape, _ in tape_stack.get_tapes()]
        if tf.executing_eagerly() and backward.is_wanted():
            recording.begin_recording(self, outer)
        tape_stack.get_tapes().append((self, None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()))

    return _push_tape


@HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape._pop_tape", _LOST)
def _wrap_pop(original: Any) -> Any:
    def _pop_tape(self):
        original(self)
        row_mixing.note_tape_change()
        recording.pause_recording(self)
        tape_stack.get_tapes()[:] = [(tape, graph) for tape, graph in tape_stack.get_tapes() if tape is not self]

    return _pop_tape


@HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape.watch", _LOST)
def _wrap_watch(original: Any) -> Any:
    def watch(self, tensor):
        import tensorflow as tf

        original(self, tensor)
        row_mixing.note_tape_change()
        recording.note_watched(self, tf.nest.flatten(tensor, expand_composites=True))

    return watch


@HOOKS.replace("tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable.handle", _LOST)
def _wrap_handle(original: Any) -> Any:
    def handle(self):
        recording.note_touched(self)
        return original(self)

    return handle


@HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape.reset", _LOST)
def _wrap_reset(original: Any) -> Any:
    def reset(self):
        recording.forget_recording(self)
        original(self)

    return reset


@HOOKS.replace("tensorflow.python.eager.record", "record_operation record_operation_backprop_only", _LOST)
def _wrap_record_operation(original: Any) -> Any:
    """A tape is told of a way back that is no op's: what it knows cannot be followed op by op."""

    def record_operation(op_type, output_tensors, input_tensors, *args, **kwargs):
        original(op_type, output_tensors, input_tensors, *args, **kwargs)
        tapes = [tape for tape, graph in tape_stack.get_tapes() if graph is None]
        recording.note_own_gradient(tapes, op_type, output_tensors, input_tensors)

    return record_operation


def _wrap_accumulator(more: int) -> Any:
    def make(original: Any) -> Any:
        def change(self):
            original(self)
            tape_stack.count_accumulator(more)

        return change

    return make


HOOKS.replace("tensorflow.python.eager.forwardprop", "ForwardAccumulator._push_accumulator", _LOST)(
    _wrap_accumulator(1)
)
HOOKS.replace("tensorflow.python.eager.forwardprop", "ForwardAccumulator._pop_accumulator", _LOST)(
    _wrap_accumulator(-1)
)


@HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape.jacobian GradientTape.batch_jacobian", _LOST)
def _wrap_jacobian(original: Any) -> Any:
    """One gradient for each row, of weights: what becomes of them (clipped, squared, solved for) need not add up."""

    signature = inspect.signature(original)

    def jacobian(self, *args, **kwargs):
        _, _, sources, *_ = signature.bind(self, *args, **kwargs).arguments.values()
        model_calls.note_whole(self, model_calls.JACOBIAN)
        result = original(self, *args, **kwargs)
        tape_gradients.refuse_slices(sources, _JACOBIAN)
        return result

    return jacobian


@HOOKS.replace("tensorflow.python.ops.custom_gradient", "_graph_mode_decorator", _OWN)
def _wrap_graph_decorator(original: Any) -> Any:
    """Its gradients are of the values that it computes, not of those that ranks would put together within it
    (`row_mixing`): so it is called by us, as one whole.
    """

    def _graph_mode_decorator(f, *args, **kwargs):
        given = f if custom_gradients.are_trusted() else custom_gradients.prove_calls(f)
        result = original(given, *args, **kwargs)
        custom_gradients.note_called(result)
        return result

    return _graph_mode_decorator


@HOOKS.replace("tensorflow.python.ops.custom_gradient", "_eager_mode_decorator", _OWN)
def _wrap_eager_decorator(original: Any) -> Any:
    def _eager_mode_decorator(f, *args, **kwargs):
        # TensorFlow's own, as that of `tf.nn.silu`, do the same in each step.
        if not custom_gradients.are_trusted() and script_frames.find_function_package(f) != "tensorflow":
            side_effects.note_own_gradient()
        return original(f, *args, **kwargs)

    return _eager_mode_decorator


@HOOKS.replace("tensorflow.python.framework.ops", "get_gradient_function", _OWN)
def _wrap_gradient_function(original: Any) -> Any:
    """That of an op to which a script gave another than its type has (`Graph.gradient_override_map`)."""

    def get_gradient_function(op):
        found = original(op)
        return found if found is None else custom_gradients.prove_other(op, found)

    return get_gradient_function


@HOOKS.replace(APIS, "recompute_grad", _OWN, later=True)
def _wrap_recompute_grad(original: Any) -> Any:
    """Its gradient function computes `f` once more and gives the derivative; those within `f` are the script's."""

    import tensorflow as tf

    def recompute_grad(f):
        def compute(*args, **kwargs):
            with custom_gradients.trust_gradients(False):
                return f(*args, **kwargs)

        made = original(functools.wraps(f)(compute))

        @tf.autograph.experimental.do_not_convert
        @functools.wraps(f)
        def inner(*args, **kwargs):
            with custom_gradients.trust_gradients():
                return made(*args, **kwargs)

        return inner

    return recompute_grad


@HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape.gradient", _LOST, takes="output_gradients")
def _wrap_gradient(original: Any) -> Any:
    signature = inspect.signature(original)

    def gradient(self, target, sources, *args, **kwargs):
        import tensorflow as tf

        caller = sys._getframe(1).f_globals.get("__name__", "")
        is_within = tape_stack.is_within_gradient()
        # A part of a larger gradient is none of the script's.
        is_part = tape_stack.is_plain() or (caller.startswith(_INTERNAL) and not is_within)
        given = signature.bind(self, target, sources, *args, **kwargs).arguments

        def compute(of, upstream):
            with tape_stack.keep_plain():
                return original(**{**given, "target": of, "output_gradients": upstream})

        upstream = given.get("output_gradients")
        if tape_stack.get_tapes() and not is_part:
            model_calls.note_whole(self, model_calls.SECOND)
        if is_part:
            return compute(target, upstream)
        if tape_stack.count_accumulators():
            # What is made of them forwards is no sum that ranks could add up, and our ops have no such derivatives.
            result = compute(target, upstream)
            tape_gradients.refuse_slices(sources, _FORWARD)
            return result
        has_outer = is_within or any(tape is not self for tape, _ in tape_stack.get_tapes())
        owed = caller.startswith(_KERAS)
        if not tf.executing_eagerly():
            return tape_gradients.compute_in_graph(compute, target, sources, upstream, reduces=not has_outer, owed=owed)
        is_plain = upstream is None and len(given) == 3 + ("output_gradients" in given)
        is_open = self._persistent and any(tape is self for tape, _ in tape_stack.get_tapes())
        flat = None
        if is_plain and not (is_open or has_outer or owed):
            flat = backward.share_backward(self, target, sources, lambda: compute([], None))
        result = compute(target, upstream) if flat is None else tf.nest.pack_sequence_as(sources, flat)
        if not self._persistent:
            recording.forget_recording(self)
        return tape_gradients.reduce_structure(self, result, sources, not has_outer, owed)

    return gradient
