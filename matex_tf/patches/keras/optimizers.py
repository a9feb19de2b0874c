"""Optimizers: gradients that are not reduced yet are reduced here, once for each real update.

With accumulation each rank's gradients are weighted as they come, and their accumulated sum is reduced before clipping.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from matex_tf.analysis import graph_ops
from matex_tf.gradients import reduction, variables
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.servers import additive
from matex_tf.sharding import step_weight

HOOKS = KerasTable()

_LOST = "gradients are not reduced"

# Of optimizers that accumulate, within a call of `apply`: the variables.
_accumulated: weakref.WeakKeyDictionary[Any, Sequence[Any]] = weakref.WeakKeyDictionary()


@HOOKS.replace_in(
    "ranks do not agree on whether scaled gradients are finite",
    "optimizers.loss_scale_optimizer:LossScaleOptimizer.__init__",
    "mixed_precision.loss_scale_optimizer:LossScaleOptimizer.__init__ LossScaleOptimizerV3.__init__",
)
def _wrap_loss_scale(original: Any) -> Any:
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        reduction.leave_infinities_to(self)

    return __init__


@HOOKS.replace_in(_LOST, "optimizers.base_optimizer:BaseOptimizer.apply")
@HOOKS.replace_in(_LOST, "optimizers.loss_scale_optimizer:LossScaleOptimizer.apply")
def _wrap_apply(original: Any) -> Any:
    def apply(self, grads, trainable_variables=None):
        if step_weight.is_alone():
            with additive.share_update(self, grads, trainable_variables) as grads_then:
                return original(self, grads_then, trainable_variables)
        if reduction.is_taking_as_reduced():
            return original(self, grads, trainable_variables)
        grads = list(grads)
        targets = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not grads or len(grads) != len(targets) or reduction.are_reduced(grads, targets):
            with reduction.take_as_reduced():
                return original(self, grads, trainable_variables)
        if _is_accumulating(self):
            _accumulated[self] = [one for gradient, one in zip(grads, targets) if gradient is not None]
            graph_ops.note_accounts(reduction.list_accumulators(self))
            try:
                with reduction.take_as_reduced():
                    return original(self, reduction.scale_gradients(grads), trainable_variables)
            finally:
                del _accumulated[self]
        grads, _ = reduction.reduce_gradients(grads, targets, place="optimizer.apply")
        variables.expect_agreement(targets)
        with reduction.take_as_reduced():
            return original(self, grads, trainable_variables)

    return apply


def _is_accumulating(optimizer: Any) -> bool:
    """Not so a `LossScaleOptimizer` around one that does: whether to skip a batch is decided by all its gradients."""
    return bool(getattr(optimizer, "gradient_accumulation_steps", None))


@HOOKS.replace_in("accumulated gradients are not reduced", "optimizers.base_optimizer:BaseOptimizer._clip_gradients")
def _wrap_clip_gradients(original: Any) -> Any:
    def _clip_gradients(self, grads):
        targets = _accumulated.get(self)
        if targets is not None:
            import tensorflow as tf

            one = tf.constant(1.0, tf.float64)
            grads, _ = reduction.reduce_gradients(
                list(grads), targets[: len(grads)], weight=one, place="optimizer.apply"
            )
        return original(self, grads)

    return _clip_gradients


@HOOKS.replace_in(_LOST, keras2="optimizers.optimizer:Optimizer.apply_gradients")
@HOOKS.replace_in(_LOST, keras2="optimizers.legacy.optimizer_v2:OptimizerV2.apply_gradients")
def _wrap_apply_gradients(original: Any) -> Any:
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = list(grads_and_vars)
        targets = [variable for _, variable in pairs]
        found = [gradient for gradient, _ in pairs]
        if not pairs or reduction.is_taking_as_reduced() or reduction.are_reduced(found, targets):
            with reduction.take_as_reduced():
                return original(self, pairs, *args, **kwargs)
        reduced, _ = reduction.reduce_gradients(found, targets, place="optimizer.apply_gradients")
        variables.expect_agreement(targets)
        with reduction.take_as_reduced():
            return original(self, list(zip(reduced, targets)), *args, **kwargs)

    return apply_gradients
