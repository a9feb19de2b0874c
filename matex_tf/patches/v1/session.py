"""`tf.compat.v1`: gradients in graphs that a session runs, and the runs that train.

`compute_gradients` and `tf.gradients` reduce gradients where they are made. A run that fetches what needs them trains:
arrays fed to it are sliced, scalars are those of the global batch, and rows come back whole.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from matex_tf.gradients import reduction, variables
from matex_tf.loops import tape_gradients
from matex_tf.runtime.hooks import APIS, Table
from matex_tf.servers import local_sgd
from matex_tf.sharding import step_weight
from matex_tf.v1 import run_plans, session_runs
from matex_tf.world import world

HOOKS = Table()

_LOST = "gradients in a graph of tf.compat.v1 are not reduced"


@HOOKS.replace("tensorflow.python.client.session", "BaseSession.run", "runs of a session are not sharded")
def _wrap_run(original: Any) -> Any:
    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        if not world.is_active() or session_runs.is_inside():
            return original(self, fetches, feed_dict, options, run_metadata)
        plan = run_plans.find_plan(self.graph, fetches)
        if plan is None:
            return original(self, fetches, feed_dict, options, run_metadata)
        with session_runs.enter_run(self, plan, feed_dict or {}) as (new_fetches, new_feeds):
            if not plan.passes:
                return original(self, new_fetches, new_feeds, options, run_metadata)
            return original(self, [new_fetches, plan.passes], new_feeds, options, run_metadata)[0]

    return run


@HOOKS.replace("tensorflow.python.training.optimizer", "Optimizer.compute_gradients", _LOST, takes="grad_loss")
def _wrap_compute_gradients(original: Any) -> Any:
    signature = inspect.signature(original)

    def compute_gradients(self, loss, *args, **kwargs):
        import tensorflow as tf

        if reduction.is_taking_as_reduced():
            return original(self, loss, *args, **kwargs)
        given = signature.bind(self, loss, *args, **kwargs).arguments
        if callable(loss):
            return _reduce_later(original(**given))
        run_plans.declare_rows(tf.compat.v1.get_default_graph())
        pairs: list = []

        def compute(of, upstream):
            if upstream is not None and isinstance(of, list):
                # One loss for all: it has the gradient that each gives, multiplied by its factor.
                terms = [tf.reduce_sum(part * tf.stop_gradient(by)) for part, by in zip(of, upstream)]
                of, upstream = tf.add_n(terms), None
            of = of[0] if isinstance(of, list) and len(of) == 1 else of
            pairs.extend(original(**{**given, "loss": of, "grad_loss": upstream}))
            return [gradient for gradient, _ in pairs]

        found = tape_gradients.compute_in_graph(
            compute, loss, lambda: [of for _, of in pairs], given.get("grad_loss"), True, False
        )
        return [(gradient, of) for gradient, (_, of) in zip(found, pairs)]

    return compute_gradients


def _reduce_later(pairs: list) -> list:
    """Gradients of eager code that the optimizer takes itself, reduced."""
    of = [variable for _, variable in pairs]
    reduced, _ = reduction.reduce_gradients([gradient for gradient, _ in pairs], of, place="compute_gradients")
    reduction.mark_reduced(of, born=True)
    _expect_agreement(of)
    return list(zip(reduced, of))


def _expect_agreement(of: list) -> None:
    import tensorflow as tf

    if tf.executing_eagerly():
        variables.expect_agreement(of)
        variables.settle_agreements()


@HOOKS.replace("tensorflow.python.training.optimizer", "Optimizer.apply_gradients", _LOST)
def _wrap_apply_gradients(original: Any) -> Any:
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        local_sgd.say_only_fit("a session of tf.compat.v1")
        pairs = list(grads_and_vars)
        of = [variable for _, variable in pairs]
        found = [gradient for gradient, _ in pairs]
        if not pairs or reduction.is_taking_as_reduced() or reduction.are_reduced(found, of):
            with reduction.take_as_reduced():
                return original(self, pairs, *args, **kwargs)
        reduced, _ = reduction.reduce_gradients(found, of, place="apply_gradients")
        _expect_agreement(of)
        with reduction.take_as_reduced():
            return original(self, list(zip(reduced, of)), *args, **kwargs)

    return apply_gradients


@HOOKS.replace(APIS, "gradients", _LOST, takes="grad_ys", later=True)
def _wrap_gradients(original: Any) -> Any:
    signature = inspect.signature(original)

    def gradients_of(ys, xs, *args, **kwargs):
        import tensorflow as tf

        caller = sys._getframe(1).f_globals.get("__name__", "")
        given = signature.bind(ys, xs, *args, **kwargs).arguments
        if caller.startswith(("tensorflow.", "keras.", "tf_keras.")):
            return original(**given)
        if step_weight.is_in_session_graph():
            run_plans.declare_rows(tf.compat.v1.get_default_graph())

        def compute(of, upstream):
            return original(**{**given, "ys": of, "grad_ys": upstream})

        return tape_gradients.compute_in_graph(compute, ys, xs, given.get("grad_ys"), reduces=True, owed=False)

    return gradients_of
