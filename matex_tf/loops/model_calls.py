"""Shares the calls of a Keras model under a tape: each rank computes its rows, and all get the outputs of all rows.

`call_model` is the way in, `_decide_sharing` the proof, `sharded_call` the call. "Calls of models" in
docs/how-it-works.md says why the border is there.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.loops import explain, row_independence, sharded_call, side_effects, step_arguments
from matex_tf.resilience import script_loops
from matex_tf.runtime import objects
from matex_tf.sharding import step_weight
from matex_tf.thread_flag import ThreadFlag
from matex_tf.world import world

JACOBIAN = "a jacobian is taken through it"
SECOND = "gradients are taken through it while a tape records"
OTHER_OPS = "its ops are others from call to call"
NUMBERS = "its arguments are numbers that change from call to call: give it tensors"
EAGER = (
    "it makes no call of a Keras model that ranks can share, and its gradients are no plain ones. Decorate the step "
    "with @tf.function: then they share all of it that can be proved"
)
_MOST_PROGRAMS, _MOST_KINDS = 32, 64
_WHOLE_ENOUGH = 2

_models: weakref.WeakKeyDictionary[Any, _Model] = weakref.WeakKeyDictionary()
_reasons: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Of tapes under which a model was called: why a call could not be shared, if one could not."""
_gaining: weakref.WeakSet[Any] = weakref.WeakSet()
"""Tapes under which a call was shared, or may be next time."""
_state = threading.local()
_shared_in_graphs = ThreadFlag()


class _Model:
    """A model as a function of tensors, and what is known of its calls by the kinds of their arguments."""

    def __init__(self, model: Any, original: Callable[..., Any]):
        import tensorflow as tf

        alive: Callable[[], Any] = weakref.ref(model)
        self.name = str(model.name)
        self.function = tf.function(lambda *args, **kwargs: original(alive(), *args, **kwargs), autograph=False)
        self.losses = lambda: list(alive().losses)
        self.plans: dict[Any, _Plan] = {}


class _Plan:
    """How calls with arguments of one kind are made: whole, which `why` explains, or by slices."""

    def __init__(self, why: str, tapes: Sequence[Any]):
        self.why = why
        self.first_tapes = [weakref.ref(tape) for tape in tapes]
        self.replicated: frozenset[int] = frozenset()
        """The ids of the variables whose sparse gradients have the same indices on all ranks."""
        self.is_decided = False
        self.calls = 0
        self.programs: set[int] = set()


def share_models(are: bool) -> contextlib.AbstractContextManager[None]:
    """Around the trace of a step that cannot be sharded as a whole: whether the calls of models in it are shared."""
    return _shared_in_graphs.set(are)


def has_noticed() -> bool:
    """Whether a model that may be shared by itself was called in a graph under a tape since this was asked."""
    found = getattr(_state, "noticed", False)
    _state.noticed = False
    return found


def note_whole(tape: Any, why: str) -> None:
    """What is done with `tape` needs more of the models that were called under it than a sharded call can give."""
    for known in list(_models.values()):
        for plan in known.plans.values():
            if any(one() is tape for one in plan.first_tapes):
                plan.why = plan.why or why


def call_model(
    original: Callable[..., Any], model: Any, tapes: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `original(model, *args, **kwargs)` gives while `tapes` record. Collective where it is sharded."""
    import tensorflow as tf

    is_eager, plain = tf.executing_eagerly(), functools.partial(original, model, *args, **kwargs)
    if not _is_wanted() or step_weight.is_sliced() or step_weight.is_within_slice():
        return plain()
    for tape in tapes:
        _reasons.setdefault(tape, "")
    known = _models.get(model)
    if known is None:
        known = _models[model] = _Model(model, original)
    try:
        arguments = step_arguments.Arguments(known.function, args, kwargs)
    except TypeError:  # as the call itself says
        return plain()
    is_built = getattr(model, "built", False)
    if not is_built or 0 <= arguments.rows < 2 or not all(map(_is_plain, arguments.leaves)):
        return plain()
    key = is_eager, arguments.make_key()
    plan = known.plans.get(key)
    if plan is None and len(known.plans) >= _MOST_KINDS:
        _note_reason(tapes, known, NUMBERS)
        return plain()
    if plan is None:
        # The first call is the script's own; what it does shows what a sharded one could not.
        with side_effects.Watch(model, arguments, is_first=True) as watch:
            result = plain()
        known.plans[key] = _Plan(watch.why or (side_effects.USES if watch.is_input_followed(tapes) else ""), tapes)
        _state.noticed = not is_eager
        _gaining.update(tapes)
        return result
    if any(one() is tape for one in plan.first_tapes for tape in tapes):
        # In the step of the first call, which shows what is done with the gradients.
        plan.first_tapes += [weakref.ref(tape) for tape in tapes]
        return plain()
    if not is_eager and not _shared_in_graphs:
        return plain()
    if not plan.is_decided:
        _decide_sharing(known, plan, arguments, is_eager)
    if plan.why:
        _note_reason(tapes, known, plan.why)
        return plain()
    plan.calls += 1
    if is_eager and plan.calls & (plan.calls - 1) == 0:
        step_arguments.compare_arguments(arguments, plan.calls == 1, f"the arguments of the model '{known.name}'")
    watch = side_effects.Watch(model, arguments, is_first=False)

    def watched(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with watch:
            return original(model, *args, **kwargs)

    def checked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _run_together(known, plan, arguments, watch, functools.partial(watched, args, kwargs))

    result = sharded_call.Call(known.name, plan.replicated, arguments).run_function(
        checked if is_eager else watched, tapes
    )
    if watch.is_input_followed(tapes):
        raise _make_changed_error(known, side_effects.USES)
    _gaining.update(tapes)
    return result


def _note_reason(tapes: Sequence[Any], known: _Model, why: str) -> None:
    for tape in tapes:
        _reasons[tape] = _reasons.get(tape) or f"the model '{known.name}' cannot be: {why}"


def _decide_sharing(known: _Model, plan: _Plan, arguments: step_arguments.Arguments, is_eager: bool) -> None:
    """See whether ranks can share calls of this kind. Collective.

    What was seen in the first call is each rank's own: a thread may draw random numbers on one of them only.
    """
    plan.is_decided, mine = True, plan.why
    if not mine:
        mine, plan.replicated = row_independence.prove_model(known.function, known.losses, arguments)
    reasons = [one for one in objects.allgather(mine, f"whether ranks can share the model '{known.name}'") if one]
    if reasons:
        plan.why = reasons[0]
    elif is_eager:
        explain.say_shared(f"in eager code the model '{known.name}'")
    else:
        explain.note_model(known.name)


def _check_watched(known: _Model, plan: _Plan, arguments: step_arguments.Arguments, watch: side_effects.Watch) -> None:
    """Whether what ran in eager code is what was proved.

    That is the first sharded call, which follows the proof, or one that ran the same ops; others are proved anew.
    """
    why = watch.why
    if watch.program not in plan.programs and not why:
        if plan.programs:
            why = row_independence.prove_model(known.function, known.losses, arguments)[0]
        plan.programs.add(watch.program)
    if why:
        raise _make_changed_error(known, why)


def _make_changed_error(known: _Model, why: str) -> world.RankError:
    return world.RankError(
        f"the model '{known.name}' was proved to compute each row by itself, but in this call it did something else, "
        f"of which that is not proved: {why}. {sharded_call.INSTEAD}, with which every rank computes whole batches in "
        "eager code"
    )


def _run_together(
    known: _Model, plan: _Plan, arguments: step_arguments.Arguments, watch: side_effects.Watch, work: Callable[[], Any]
) -> Any:
    """What `work` gives, if it fails on no rank, did what was proved, and all have as many rows; else all raise.

    Collective. A script may catch an exception and go on, which alone it would do for the whole batch.
    """
    failure, result = None, None
    try:
        result = work()
        _check_watched(known, plan, arguments, watch)
    except Exception as error:  # of the script's code, any
        failure = error
    mine = (arguments.rows, failure and (type(failure), str(failure)), len(plan.programs) >= _MOST_PROGRAMS)
    everyone = objects.allgather(mine, "the call of a model")
    if failure is not None:
        raise failure
    for rank, (count, theirs, full) in enumerate(everyone):
        if theirs is not None:
            kind, text = theirs
            raise _make_like(kind, text, rank)
        if count != everyone[0][0]:
            raise world.RankError(
                f"the model '{known.name}' is called with different numbers of rows: {everyone[0][0]} on rank 0, "
                f"{count} on rank {rank}. All ranks must have the same batch"
            )
        plan.why = plan.why or (OTHER_OPS if full else "")
    return result


def _make_like(kind: type, text: str, rank: int) -> Exception:
    """An exception such as that of another rank."""
    import tensorflow as tf

    text = f"rank {rank}: {text}"
    try:
        return kind(None, None, text) if issubclass(kind, tf.errors.OpError) else kind(text)
    except TypeError:
        return world.RankError(text)


def _is_wanted() -> bool:
    chosen = settings.get_settings()
    return chosen.eager == "auto" and chosen.scaling == "strong" and not chosen.elastic


def _is_plain(leaf: Any) -> bool:
    """Whether a call can be told from another by this argument: an eager tensor without a mask, an array, a number."""
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return True
    import tensorflow as tf

    return isinstance(leaf, (tf.Tensor, np.ndarray, np.generic)) and getattr(leaf, "_keras_mask", None) is None


def note_gain(tape: Any) -> None:
    """Ranks share something of the step in which `tape` records, or may the next time."""
    _gaining.add(tape)


def note_reason(tape: Any, why: str) -> None:
    """Why nothing else than the calls of models can be shared of the step in which `tape` records."""
    _reasons[tape] = _reasons.get(tape) or why


def say_verdict(tape: Any) -> None:
    """At the end of a training step in eager code: if every rank computes all of it, say so once."""
    why = _reasons.get(tape, EAGER) if settings.get_settings().eager == "auto" else "MATEX_EAGER=whole says so"
    if not why or tape in _gaining or step_weight.is_sliced():
        return
    counts = _state.__dict__.setdefault("whole", {})
    counts[why] = counts.get(why, 0) + 1
    if counts[why] == _WHOLE_ENOUGH:
        script_loops.say_loop()
        explain.say_whole(why, "a training step in eager code")
