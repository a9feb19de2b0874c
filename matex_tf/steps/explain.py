"""Messages to the user about a step: ranks share it, or the reason why every rank computes it."""

from __future__ import annotations

import inspect
import os
from typing import Any

from matex_tf import settings, tags
from matex_tf.rewrite.programs import Program
from matex_tf.runtime import notes
from matex_tf.steps import events, report
from matex_tf.world import world

_said: set[tuple[str, str]] = set()


def name_step(function: Any) -> str:
    """The name of a step, a `tf.function`, in messages. Called for each call of the step."""
    return tags.get_or_make_tag(function, "name of the step", lambda: _make_name(function))


def _make_name(function: Any) -> str:
    code = getattr(inspect.unwrap(function.python_function), "__code__", None)
    if code is None:
        return "a step"
    return f"the step '{code.co_name}' ({os.path.basename(code.co_filename)} line {code.co_firstlineno})"


def say_shared(step: str, program: Program) -> None:
    if settings.get_settings().explain:
        collectives = report.format_report(report.describe(program))
        notes.print_note(f"{step} is sharded: each rank computes its slice of every batch. {collectives}")


def say_whole_batches(step: str, why: str) -> None:
    """Tell that every rank reads and decodes all rows of the batches that a shared step takes by itself."""
    if settings.get_settings().explain and world.get_world().size > 1:
        notes.print_note(
            f"{step}: every rank reads and decodes whole batches, because {why}. Apply map, filter, batch and "
            "the like to the dataset before the function is called, and loop over the result in the function"
        )


def say_whole(step: str, why: str, is_usual: bool) -> None:
    """Tell, once for each reason, that every rank computes a step. is_usual: only with `--explain`."""
    if (is_usual and not settings.get_settings().explain) or (step, why) in _said:
        return
    _said.add((step, why))
    if not is_usual:
        events.computed_whole(step, why)
    if world.get_world().size == 1:
        return
    notes.print_note(
        f"{step} cannot be sharded: {why}. So every rank computes the whole batch: the result is right, training is no "
        "faster"
    )
