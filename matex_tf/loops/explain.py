"""What the user is told of a step: that it is sharded, or why not."""

from __future__ import annotations

import os
from typing import Any

from matex_tf import settings
from matex_tf.loops import traces
from matex_tf.runtime import notes

_models: list[str] = []
_said: set[tuple[str, str]] = set()


def note_model(name: str) -> None:
    """The calls of this model are sharded within a step that is computed whole, of which `say_whole` comes to tell."""
    if name not in _models:
        _models.append(name)


def say_whole(why: str, step: str = "a training step") -> None:
    """Say, once for each reason, that a step is computed whole, or all of it but the calls of its models."""
    if (step, why) in _said:
        return
    _said.add((step, why))
    names = ", ".join(f"'{name}'" for name in _models)
    _models.clear()
    shared = f"the calls of {names} in it are sharded, the rest every rank computes for the whole batch"
    whole = "every rank computes the whole batch: the result is right, training is no faster"
    notes.print_note(
        f"{step} cannot be sharded{' as a whole' if names else ''}: {why}. So {shared if names else whole}"
    )


def say_inexact(why: str) -> None:
    """Say, once for each reason, that what the ranks compute of their own rows does not make up the whole."""
    notes.print_note(
        f"the ranks' parts of a training step do not make up that of all ranks: {why}. The result is not exactly that "
        "of one rank with all rows"
    )


def say_shared(step: str, meeting: str = "") -> None:
    """Where the user asked for it, say of a step that it is sharded.

    meeting: why its rows, or figures of them, are put together in the middle of it.
    """
    if not settings.get_settings().explain:
        return
    whole = f". From here on every rank has the whole batch's: {meeting}" if meeting else ""
    notes.print_note(f"{step} is sharded: each rank computes its slice of every batch{whole}")


def name_step(function: Any) -> str:
    """What a step that is a `tf.function` is called in messages."""
    code = getattr(traces.unwrap_function(function.python_function), "__code__", None)
    if not settings.get_settings().explain or code is None:
        return "a training step"
    return f"the step '{code.co_name}' ({os.path.basename(code.co_filename)} line {code.co_firstlineno})"
