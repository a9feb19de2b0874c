"""Creates the slots of optimizers in pieces, with `MATEX_STRATEGY=sharded`, `servers` and `auto`.

A slot, such as a moment of Adam, is a variable with an entry for each entry of a weight. In pieces means: each rank has
and updates a part of the entries only, and the cuts are the entries at which the parts begin. Hooks on Keras'
optimizers replace the creation of slots, so each rank has only its piece from the start. Optimizers that cannot have
pieces are reported, and update whole variables on each rank. With `auto` (`owners.is_left_open`), ranks later choose
between pieces and whole variables by the measured time of their steps.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from matex_tf import settings, tags
from matex_tf.runtime import notes, real_files
from matex_tf.runtime.hooks import Table
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.servers.pieces import owners, piece_copies
from matex_tf.steps import events, pieces, publishing
from matex_tf.steps.variables import find_tf_variable
from matex_tf.thread_flag import is_main_thread, starts_own
from matex_tf.world import script_knowledge, world

HOOKS = KerasTable()
_IF_HOOK_MISSING = "each rank has complete optimizer variables"
_SLOT, _COUNTED = "slot", "counted"  # tags of variables
EAGER = "it is called outside of a tf.function"
_LEAST_BYTES = 256 << 10
"""With `auto`, the smallest weight whose slots are sharded: smaller updates take less time than a rendezvous."""


class Slot(NamedTuple):
    """The weight and the optimizer of a slot."""

    weight: Any
    optimizer: Any


def find_slot(variable: Any) -> Slot | None:
    """The weight and the optimizer of a slot; None if the variable is no slot, or if one of the two was deleted."""
    # The tag of a slot is a pair of weak references, which are called. Without a tag, two functions return None.
    weight, optimizer = (get_target() for get_target in tags.get_tag(variable, _SLOT, (lambda: None, lambda: None)))
    return None if weight is None or optimizer is None else Slot(weight, optimizer)


def list_slots(variables: Iterable[Any], optimizer: Any) -> list[Any]:
    """Of these variables, the slots of an optimizer."""
    return [variable for variable in variables if (slot := find_slot(variable)) and slot.optimizer is optimizer]


@HOOKS.replace_in(
    _IF_HOOK_MISSING,
    "backend.tensorflow.optimizer:TFOptimizer.add_variable_from_reference",
    "optimizers.optimizer:Optimizer.add_variable_from_reference",
)
def _wrap_add_slot(original: Any) -> Any:
    signature = inspect.signature(original)

    def add_variable_from_reference(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        _, reference, *_ = signature.bind(self, *args, **kwargs).arguments.values()  # the weight comes after `self`
        weight = find_tf_variable(reference)
        create = functools.partial(_create_slot, self, weight)
        with tf.variable_creator_scope(create) if owners.is_chosen() else contextlib.nullcontext():
            slot = original(self, *args, **kwargs)
        slot_variable = find_tf_variable(slot)
        if slot_variable.shape == weight.shape and slot_variable.dtype == weight.dtype:
            tags.set_tag(slot_variable, _SLOT, (weakref.ref(weight), weakref.ref(self)))
        return slot

    return add_variable_from_reference


@HOOKS.replace_in(_IF_HOOK_MISSING, keras2="optimizers.legacy.optimizer_v2:OptimizerV2._distributed_apply")
def _wrap_legacy_apply(original: Any) -> Any:
    def distributed_apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        report_whole(_name_optimizer(self), "it is one of tf.keras.optimizers.legacy")
        return original(self, *args, **kwargs)

    return distributed_apply


@HOOKS.replace(
    "tensorflow.python.training.optimizer",
    "Optimizer.apply_gradients",
    "a v1 optimizer that is not sharded is not reported",
)
def _wrap_v1_apply(original: Any) -> Any:
    def apply_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        update = original(self, *args, **kwargs)
        if self.get_slot_names():
            report_whole(_name_optimizer(self), "it is one of tf.compat.v1")
        return update

    return apply_gradients


def start_pieces() -> None:
    """Hold slots in pieces, if that strategy is chosen."""
    HOOKS.install()
    if owners.is_left_open() and settings.get_settings().explain and owners.find_obstacle():
        notes.print_note(f"MATEX_STRATEGY=auto: allreduce: {owners.find_obstacle()}")
    if owners.is_chosen():
        pieces.is_left_open = owners.is_left_open()
        if pieces.is_left_open:
            script_knowledge.when_known.append(lambda: owners.keep_whole(pieces.ASKED))
            THREADS.install()
        events.cuts_wanted.add_listener(_choose_cuts)
        events.pieces_refused.add_listener(_report_refused)
        events.updates_eagerly.add_listener(_make_slots_whole)
        if settings.get_settings().elastic:
            events.step_computed.add_listener(
                lambda plan: piece_copies.send_copies(plan.copies.pieces.list_variables())
            )
            events.step_ended.add_listener(lambda plan: piece_copies.keep_sent())


THREADS = Table()


@THREADS.replace("threading", "Thread.start", "a thread of the script may find an optimizer's variables in pieces")
def _wrap_start(original: Any) -> Any:
    """Until the script starts a thread, all ranks read an optimizer's variables together, on their main threads. A
    thread may read them on one rank alone. So from its start on, every rank has complete variables.

    Threads that libraries start within `use_real_files` do not read any.
    """

    def start(self: Any) -> None:
        if not starts_own and not real_files.uses_real_files():
            owners.keep_whole(pieces.THREADED)
        original(self)

    return start


def report_whole(optimizer: str, why: str) -> None:
    """Report that an optimizer, or a variable of it, is not sharded although a sharded strategy is chosen."""
    if owners.is_chosen() and (not owners.is_left_open() or settings.get_settings().explain):
        if world.get_world().servers:
            why += ". Ranks that only serve still have no rows; with MATEX_STRATEGY=allreduce they train, too"
        notes.print_note(f"MATEX_STRATEGY={settings.get_settings().strategy}: {optimizer} runs as allreduce: {why}")


def _name_optimizer(optimizer: Any) -> str:
    name = getattr(optimizer, "name", None) or getattr(optimizer, "_name", type(optimizer).__name__)
    return f"the optimizer '{name}'"


def _create_slot(optimizer: Any, weight: Any, create: Callable[..., Any], **options: Any) -> Any:
    """The variable that `create` would make for an optimizer; in pieces, if it is a slot of `weight`."""
    import tensorflow as tf

    # Whole: in a thread of the script, which ranks do not run together; for a weight whose shape is not known.
    if not is_main_thread() or not weight.shape.is_fully_defined():
        return create(**options)
    # Whole: with `auto`, where pieces would not be faster: small weights, and weights to which a rank cannot write its
    # piece in place (`publishing`).
    is_small = weight.shape.num_elements() * weight.dtype.size < _LEAST_BYTES
    if owners.is_left_open() and (is_small or not publishing.can_publish(weight.handle, weight.dtype)):
        return create(**options)
    is_traced = not tf.executing_eagerly()
    with tf.init_scope():
        # Whole: in a v1 graph.
        if not tf.executing_eagerly():
            return create(**options)
        # Whole: a variable that is no slot, such as a counter.
        value = options["initial_value"]
        value = tf.convert_to_tensor(value() if callable(value) else value, options.get("dtype"))
        is_like_weight = value.shape == weight.shape and value.dtype == weight.dtype
        if not is_like_weight or not value.dtype.is_floating or not value.shape.num_elements():
            return create(**{**options, "initial_value": value})
        from matex_tf.steps.piece_variables import PieceVariable

        # No cuts: the variable is complete at first, and `_choose_cuts` chooses them. A value that is not constant may
        # differ between ranks, which compare it before. With `servers:auto` the number of owners is not known yet.
        is_constant = bool(tf.reduce_all(value == tf.reshape(value, [-1])[0]))
        cuts = owners.cut_variable(weight) if is_constant and not owners.is_count_automatic() else ()
        further_options = {
            name: options[name] for name in ("synchronization", "aggregation") if options.get(name) is not None
        }
        name = options.get("name") or "Variable"
        owner = _name_optimizer(optimizer)
        slot = PieceVariable(
            value=value, cuts=cuts, of=weight, owner=owner, name=name, trainable=False, **further_options
        )
    if is_traced:
        # If the first trace of a function created variables, TensorFlow traces it again without. It counts only what
        # `create` makes, so a small variable is created, too.
        tags.set_tag(slot, _COUNTED, create(initial_value=0.0, trainable=False, name="counted"))
    return slot


def _choose_cuts(variables: Sequence[Any]) -> None:
    """Choose the cuts of the variables that have none yet."""
    uncut_variables = [variable for variable in variables if not variable.cuts and variable.of() is not None]
    if uncut_variables:
        weights = list({id(variable.of()): variable.of() for variable in uncut_variables}.values())
        owners.choose_owners(weights, uncut_variables)
        for variable in uncut_variables:
            variable.cuts = owners.cut_variable(variable.of())


def _report_refused(variables: Sequence[Any], why: str) -> None:
    for owner in dict.fromkeys(variable.owner for variable in variables):
        refused_names = [variable.name for variable in variables if variable.owner == owner and variable.is_refused]
        report_whole(f"'{refused_names[0]}' of {owner}" if refused_names else owner, why)


def _make_slots_whole(optimizer: Any) -> None:
    """Before an optimizer updates in eager code: make its slots whole. Collective if they are in pieces."""
    own_slots = list_slots(pieces.list_variables(), optimizer)
    for variable in own_slots:
        variable.make_whole()
    if own_slots:
        report_whole(own_slots[0].owner, EAGER)
