"""Loops of the script's own, in a run whose state is kept or that goes on with fewer ranks: neither serves them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from matex_tf.resilience import elastic, run_state
from matex_tf.runtime import notes

_with_fewer = False


@contextlib.contextmanager
def permit_fewer_ranks() -> Iterator[None]:
    """Around a step that goes on when a rank is lost: Keras makes its functions anew for fewer of them."""
    global _with_fewer
    before, _with_fewer = _with_fewer, True
    try:
        yield
    finally:
        _with_fewer = before


def say_loop() -> None:
    """A loop of the script's own trains: what it has done is not in the state.

    It cannot begin with fewer ranks either, whose functions were made for more (but see `permit_fewer_ranks`).
    """
    if not _with_fewer:
        elastic.refuse_after_loss("a loop of the script's own")
    if run_state.is_kept():
        notes.print_note(
            "of this run only calls of fit are put back when it is started again; a loop of the script's own begins "
            "anew then (or where the script itself has saved and restores)"
        )
