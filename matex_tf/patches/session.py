"""`tf.compat.v1`: gradients in graphs that a session runs, and the runs that train.

`compute_gradients` and `tf.gradients` reduce gradients where they are made. A run whose fetches need such a gradient
is a training run: arrays fed to it are sliced, scalars fetched from it are those of the global batch, and what has
one row for each row fed comes back whole.
"""

from __future__ import annotations

import sys
from typing import Any

from matex_tf import births, gradients, losses, sessions, variables, world
from matex_tf.patches import replace


def install() -> None:
    import tensorflow as tf
    from tensorflow.python.client import session
    from tensorflow.python.training import optimizer

    replace(session.BaseSession, "run", _run)
    replace(optimizer.Optimizer, "compute_gradients", _compute_gradients)
    replace(optimizer.Optimizer, "apply_gradients", _apply_gradients)
    for api in (tf, tf.compat.v1, tf.compat.v2):
        replace(api, "gradients", _gradients)


def _run(original: Any) -> Any:
    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        if not world.is_active() or sessions.inside():
            return original(self, fetches, feed_dict, options, run_metadata)
        plan = sessions.plan(self.graph, fetches)
        if plan is None:
            return original(self, fetches, feed_dict, options, run_metadata)
        with sessions.training(self, plan, feed_dict or {}) as (new_fetches, new_feeds):
            if not plan.passes:
                return original(self, new_fetches, new_feeds, options, run_metadata)
            return original(self, [new_fetches, plan.passes], new_feeds, options, run_metadata)[0]

    return run


def _compute_gradients(original: Any) -> Any:
    def compute_gradients(self, loss, *args, **kwargs):
        pairs = original(self, loss, *args, **kwargs)
        if gradients.inside_reduced():
            return pairs
        return _reduce_pairs(pairs, () if callable(loss) else (loss,), "compute_gradients")

    return compute_gradients


def _reduce_pairs(pairs: Any, target: Any, place: str) -> list:
    found = [gradient for gradient, _ in pairs]
    of = [variable for _, variable in pairs]
    scalars = losses.reducible(target)
    reduced, totals = gradients.reduce(found, of, scalars, weight=losses.weight(target), place=place)
    losses.remember(scalars, totals)
    gradients.mark(of, born=True)
    _expect(of)
    return list(zip(reduced, of))


def _expect(of: list) -> None:
    import tensorflow as tf

    if tf.executing_eagerly():
        variables.expect(of)
        variables.settle()


def _apply_gradients(original: Any) -> Any:
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = list(grads_and_vars)
        of = [variable for _, variable in pairs]
        if not pairs or gradients.inside_reduced() or gradients.are_born_reduced(of):
            with gradients.reduced():
                return original(self, pairs, *args, **kwargs)
        reduced, _ = gradients.reduce([gradient for gradient, _ in pairs], of, place="apply_gradients")
        _expect(of)
        with gradients.reduced():
            return original(self, list(zip(reduced, of)), *args, **kwargs)

    return apply_gradients


def _gradients(original: Any) -> Any:
    def gradients_of(ys, xs, *args, **kwargs):
        result = original(ys, xs, *args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith(("tensorflow.", "keras.", "tf_keras.")):
            return result
        return births.reduce_structure(result, xs, ys)

    return gradients_of
