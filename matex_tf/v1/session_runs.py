"""Training runs of a `tf.compat.v1` session: what the ranks agree on before one, and what is fed to each rank."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf import ops, settings
from matex_tf.adapt import executor
from matex_tf.gradients import variables
from matex_tf.loops import explain
from matex_tf.resilience import script_loops
from matex_tf.runtime import notes, objects
from matex_tf.sharding import fingerprint, row_shares, share_arrays, step_weight
from matex_tf.v1.run_plans import Plan
from matex_tf.world import world

_state = threading.local()


def is_inside() -> bool:
    """Whether this thread is within a run of our own."""
    return getattr(_state, "inside", False)


@contextlib.contextmanager
def _run_plainly() -> Iterator[None]:
    _state.inside = True
    try:
        yield
    finally:
        _state.inside = False


@contextlib.contextmanager
def enter_run(session: Any, plan: Plan, feeds: dict) -> Iterator[tuple[Any, dict]]:
    """Around a training run: agree on what must be agreed, and give the fetches and feeds of this rank."""
    with session.graph.as_default():
        numbers = _make_placeholder(session.graph)
    if session not in plan.prepared:
        plan.prepared.add(session)
        script_loops.say_loop()
        _agree_on_variables(
            session, plan.variables, "comparing the variables before the first training run", error=False
        )
    elif settings.get_settings().drift_steps and plan.runs % settings.get_settings().drift_steps == 0:
        _agree_on_variables(session, plan.trained, f"after {plan.runs} training runs", error=True)
    if plan.batches:
        # The next batch is fetched whole and its rows fed, as if the script had fed it.
        with _run_plainly():
            feeds = {**feeds, **dict(zip(plan.batches, session.run(plan.batches)))}
    mine, values = _slice_feeds(session.graph, feeds, plan)
    plan.runs += 1
    mine[numbers] = values
    if len(plan.turns) > 1:
        ops.announce_turns(plan.turns)
    _state.inside = True
    try:
        yield plan.fetches, mine
    finally:
        _state.inside = False
        if len(plan.turns) > 1:
            ops.announce_turns([])


def _make_placeholder(graph: Any) -> Any:
    finalized = graph.finalized
    graph._unsafe_unfinalize()
    try:
        return step_weight.make_placeholder()
    finally:
        if finalized:
            graph.finalize()


def _agree_on_variables(session: Any, chosen: list[Any], what: str, error: bool) -> None:
    with _run_plainly():
        values = [np.asarray(value) for value in session.run(chosen)]
        names = [variable.name for variable in chosen]
        for index in variables.find_differing(names, values, what):
            if error:
                raise world.RankError(
                    f"the weights have drifted apart: '{names[index]}' is not the same on all ranks ({what})"
                )
            value = objects.broadcast(values[index], f"sending variable number {index} from rank 0")
            initializer = chosen[index].initializer
            session.run(initializer, {initializer.inputs[1]: value})


def _slice_feeds(graph: Any, feeds: dict, plan: Plan) -> tuple[dict, list[float]]:
    """This rank's feeds and the numbers of the step."""
    import tensorflow as tf

    mine = dict(feeds)
    open_rows, fixed = {}, False
    for given, value in feeds.items():
        key = graph.as_graph_element(given, allow_operation=False) if isinstance(given, str) else given
        if not isinstance(key, tf.Tensor) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            fixed = True  # sparse and other composite values
            continue
        if not hasattr(value, "__len__"):
            continue
        value = value if isinstance(value, np.ndarray) else np.asarray(value)
        if value.ndim == 0:
            continue
        if key.shape.rank and key.shape.as_list()[0] is None:
            open_rows[given] = value
        else:
            fixed = fixed or (value.shape[0] > 1 and key.shape.rank != 1)
    lengths = {len(value) for value in open_rows.values()}
    if any(share_arrays.is_share(value) for value in open_rows.values()):
        announced = step_weight.get_announced()
        if announced is None:
            rows = max(lengths)
            counts = objects.allgather(rows, "the rows that each rank feeds")
            announced = step_weight.list_slice_values(rows, sum(counts))
        return mine, announced
    if plan.whole is not None:
        if open_rows or any(op.type == "IteratorGetNext" for op in plan.needed):
            explain.say_whole(plan.whole)
        return mine, step_weight.list_whole_values()
    if len(lengths) != 1 or fixed:
        if open_rows or fixed:
            notes.print_note(
                "a training run is fed arrays of different lengths, or into placeholders of fixed first dimensions, "
                "so it is not known which hold rows: every rank computes the whole batch. The result is right, "
                "training is no faster"
            )
        return mine, step_weight.list_whole_values()
    count = lengths.pop()
    if plan.runs == 0:
        executor.say_even("a training run of a session", executor.MEASURED)
        if settings.get_settings().scaling == "weak":
            notes.print_note("arrays that are fed to a session are sliced; weak scaling is for fit and eager loops")
        total = 0
        for value in open_rows.values():
            total = fingerprint.digest_value(value, total)
        fingerprint.compare_batch((count, total), "the arrays fed to the first training run")
    me = world.get_world()
    start, stop, has_rows = row_shares.find_slice_bounds(count, me.rank, me.trainers)
    for key, value in open_rows.items():
        mine[key] = value[start:stop]
    return mine, step_weight.list_slice_values(stop - start if has_rows else 0, count)
