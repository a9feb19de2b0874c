"""Connects the recorders and measurements of a run to the events of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf.monitor import sampler
from matex_tf.observe import bottlenecks, epochs, measured_steps
from matex_tf.ops import records
from matex_tf.rewrite import sources
from matex_tf.steps import events


def start_listening(find_call: Callable[[Any], int | None]) -> None:
    """Connect the recorders of a run of several ranks.

    Args:
        find_call: returns the number of the call of `fit` that trains a model, if the state of the run is saved.
    """
    events.epoch_logged.add_listener(
        lambda model, epoch, params, logs: sampler.note_epoch(epoch, params, logs, find_call(model))
    )
    # Timelines, profiles and recordings exclude the time between epochs and between passes over the data.
    for event in (events.training_begins, events.epoch_ended, events.pass_begins):
        event.add_listener(lambda *_: records.mark_between_steps())
    events.batch_given.add_listener(lambda _, is_over: records.mark_between_steps() if is_over else None)
    sources.around_pull = bottlenecks.time_pull  # for batches that a step takes in its graph
    events.batch_wanted.add_listener(bottlenecks.want_batch)
    events.batch_given.add_listener(bottlenecks.give_batch)
    events.batch_taken.add_listener(bottlenecks.take_batch)
    events.step_ended.add_listener(bottlenecks.end_step)
    events.epoch_ended.add_listener(bottlenecks.end_epoch)
    events.world_changed.add_listener(sampler.note_loss)


def listen_for(measured: measured_steps.Measured) -> None:
    """Connect the measurements of a process that `matex plan` measures."""
    events.step_trained.add_listener(measured.note_step)
    events.pass_begins.add_listener(measured.note_pass)
    events.batch_taken.add_listener(measured.note_batch)
    events.batch_given.add_listener(measured.note_batch_of_loop)
    events.training_begins.add_listener(epochs.begin_fit)
    events.step_ended.add_listener(epochs.end_step)
    events.epoch_ended.add_listener(epochs.end_epoch)
    events.training_ended.add_listener(epochs.end_fit)
    events.pass_begins.add_listener(epochs.begin_pass)
    events.batch_wanted.add_listener(epochs.want_batch)
    events.batch_given.add_listener(epochs.give_batch)
