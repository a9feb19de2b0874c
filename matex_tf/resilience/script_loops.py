"""Loops of the script's own, in a run whose state is kept."""

from __future__ import annotations

from matex_tf.resilience import run_state
from matex_tf.runtime import notes


def say_loop() -> None:
    """A loop of the script's own trains: what it has done is not in the state."""
    if run_state.is_kept():
        notes.print_note(
            "of this run only calls of fit are put back when it is started again; a loop of the script's own begins "
            "anew then (or where the script itself has saved and restores)"
        )
