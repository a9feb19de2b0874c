"""Whether ranks can take turns at the batches of a call of `fit` (`servers.asynchronous`), and that training."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from matex_tf import settings
from matex_tf.gradients import reduction, tape_stack
from matex_tf.keras import async_rescue, step_check
from matex_tf.metrics import metrics
from matex_tf.resilience import elastic, elastic_step, fit_state
from matex_tf.runtime import notes, objects
from matex_tf.servers import additive, asynchronous
from matex_tf.servers.variable_swap import find_inner
from matex_tf.sharding import step_weight
from matex_tf.world import world

_proofs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Of graphs of steps what their traces showed."""

_TYPES = ("float32", "float64", "int32", "int64")


class Proof:
    """What the trace of the step of a model shows. Made before it is traced.

    shared: the variables that it adds to, once it is traced.
    told: single numbers of the optimizer that it reads, as the learning rate.
    parts: of each addition that it makes which variable it changes; lost ranks are known by that.
    why_not: why ranks cannot take turns at it.
    """

    def __init__(self, model: Any):
        self._model = model
        self.shared: list[Any] = []
        self.told: list[Any] = []
        self.parts: list[int] = []
        self.is_decided = False  # the step is used; it may be traced again, for other shapes
        self.why_not: str | None = None

    def prove_step(self, function: Any, spec: Any) -> str | None:
        """Trace the step, if it is not yet, that `function` makes of batches of such a spec; why that fails."""
        from tensorflow.python.data.ops import iterator_ops

        functions = elastic_step.list_functions(function)
        if not functions:
            return step_check.EAGER
        try:
            concrete = functions[0].get_concrete_function(iterator_ops.IteratorSpec(spec))
        except Exception as error:  # of the script's code, any: where it is a fault, its real step raises it, too
            return f"its step cannot be traced by itself ({type(error).__name__})"
        graph = step_check.find_step(concrete, _proofs)
        if graph is None:
            return step_check.NOT_KERAS
        self.shared, self.told, self.parts, self.why_not = _proofs[graph]
        return None

    @contextlib.contextmanager
    def enter_trace(self) -> Iterator[None]:
        """Around what makes the step, in its graph."""
        import tensorflow as tf

        counted = {id(find_inner(one)) for one in metrics.list_variables(self._model)}
        weights = [one for one in self._model.weights if id(find_inner(one)) not in counted]
        additions = additive.Additions(weights, self._model.trainable_variables)
        with additions, step_weight.enter_alone(), tape_stack.keep_plain(), reduction.take_as_reduced():
            yield
        if (
            self.is_decided
            and additions.parts != self.parts
            and (elastic.is_on() or len(additions.parts) > len(self.parts))
        ):
            raise world.RankError(
                "a step of asynchronous training changes other variables, or in another order, than a trace of it that "
                "was made before"
            )
        self.parts = additions.parts
        graph, variables = tf.compat.v1.get_default_graph(), additions.variables
        sums = metrics.list_variables(self._model)  # a metric makes its own in its first step
        shared = {id(find_inner(one)) for one in variables}
        own = [one for one in self._model.variables if id(find_inner(one)) not in shared]
        self.why_not = additions.why_not or additive.find_obstacle(graph, variables, sums, own)
        self.shared = additive.list_changed(graph, variables)
        apart = {id(find_inner(one)) for one in (*weights, *self.shared)}
        self.told = [one for one in variables if id(find_inner(one)) not in apart and find_inner(one).shape.rank == 0]
        for one in self.shared:
            if find_inner(one).dtype.name not in _TYPES:
                self.why_not = f"'{reduction.find_name(one)}' is of {find_inner(one).dtype.name}"
        _proofs[graph] = self.shared, self.told, self.parts, self.why_not


def find_call_obstacle(is_by_steps: bool) -> str | None:
    """Why ranks cannot take turns at batches of any model in a call of `fit`.

    `is_by_steps`: it asks for each batch by its number.
    """
    if not is_by_steps:
        return "it is that of Keras 2, or of an early Keras 3"
    if world.get_world().has_several_nodes:
        return "the ranks are on several hosts, which have no memory in common"
    if asynchronous.is_under_way():
        return "it is called within another one that trains so"
    return None


def find_obstacle(model: Any, batches: int | None, callbacks: Any) -> str | None:
    """Why ranks cannot take turns at the batches of a call of `fit`, as far as that shows before its step is traced."""
    import tensorflow as tf

    chosen, here = settings.get_settings(), world.get_world()
    optimizer = getattr(model, "optimizer", None)
    if chosen.scaling == "weak":
        return "with MATEX_SCALING=weak a batch is each rank's own already"
    if chosen.microbatch:
        return "with MATEX_MICROBATCH a model is called in parts"
    if tf.config.list_logical_devices("GPU"):
        return "its weights are in the memory of a GPU"
    if batches is None:
        return "its number of batches is not known before they are read"
    if batches < here.size:
        return f"an epoch has {batches} batches, fewer than there are ranks"
    if getattr(model, "run_eagerly", False):
        return "its step is not traced (run_eagerly=True)"
    if getattr(model, "jit_compile", False):
        return "XLA compiles its step (jit_compile=True)"
    if getattr(model, "steps_per_execution", 1) != 1:
        return "it makes several steps at once (steps_per_execution)"
    if getattr(optimizer, "gradient_accumulation_steps", None):
        return "its optimizer accumulates gradients"
    for callback in callbacks:
        if isinstance(getattr(callback, "save_freq", "epoch"), int):
            return f"a callback, {type(callback).__name__}, saves within an epoch"
    return None


def begin_turns(
    proof: Proof, mine: str | None, model: Any, spec: Any, most: int, kept: fit_state.Fit | None
) -> tuple[asynchronous.Turns | None, str]:
    """The training in which ranks take turns; else None, and why. Collective.

    Args:
        mine: why this rank cannot.
        spec: the element spec of whole batches.
        most: how many an epoch has, at most.
        kept: what is kept of this call of `fit`.
    """
    everyone = objects.allgather((mine or proof.why_not, proof.parts), "whether ranks can take turns at batches")
    found = next((why for why, _ in everyone if why), None)
    if found is None and any(parts != everyone[0][1] for _, parts in everyone):
        found = "its step changes variables in another order on each rank"
    if found is not None:
        return None, found
    if kept is not None:
        kept.put_back_traced()
    rescue = async_rescue.Rescue(model, spec) if elastic.is_on() else None
    proof.is_decided = True
    made = asynchronous.Turns(proof.shared, proof.told, most, len(proof.parts), rescue, kept)
    if not made.open_turns():
        return None, "the ranks have no memory in common, or too little of it is left"
    if kept is not None:
        kept.takes_turns = True
    if rescue is not None:
        rescue.watch_losses(made)
    return made, ""


def say_turns(rows: int | None) -> None:
    """Say how this training goes."""
    batches = "whole batches" if rows is None else f"whole batches of {rows} rows"
    how = (
        f"at most {asynchronous.read_bound()} ahead of the oldest under way; results are statistical, not those of the "
        "script alone"
        if asynchronous.read_bound()
        else "one at a time; the result is that of the script alone, but for what a step draws at random"
    )
    notes.print_note(f"asynchronous: {world.get_world().size} ranks, {batches} in turn, {how} (docs/strategies.md)")
