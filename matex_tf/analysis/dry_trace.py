"""Traces that only look at what a function of the script makes of rows."""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf.runtime import notes


def read_random_states() -> tuple[Any, ...]:
    """The states of the generators of Python and NumPy."""
    return random.getstate(), np.random.get_state()


@contextlib.contextmanager
def suppress_effects(start: tuple[Any, ...] | None = None) -> Iterator[None]:
    """What is traced within it prints nothing, and no random numbers of Python and NumPy are used up.

    start: the random states that it begins with; default those that are.
    """
    states = read_random_states()
    if start is not None:
        random.setstate(start[0])
        np.random.set_state(start[1])
    try:
        with contextlib.redirect_stdout(io.StringIO()), _suppress_warnings(), notes.hold_notes():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextlib.contextmanager
def _suppress_warnings() -> Iterator[None]:
    """Within it nothing warns. `warnings.catch_warnings` would have all that was shown be shown once more later."""
    before = warnings.warn
    warnings.warn = lambda *args, **kwargs: None
    try:
        yield
    finally:
        warnings.warn = before
