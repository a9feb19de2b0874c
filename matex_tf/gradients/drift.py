"""Weights that updates have changed by other amounts on each rank: found while a script trains, and at its end."""

from __future__ import annotations

from matex_tf import settings
from matex_tf.gradients import reduction, variables
from matex_tf.runtime import shutdown

_checked = 0
"""So many updates have been made when weights were last compared."""


def watch_updates() -> None:
    """Every so many updates, compare the weights of all ranks. Collective then."""
    every = settings.get_settings().drift_steps
    done = reduction.count_updates()
    if every and done - _checked >= every:
        check_updates(f"after {done} updates")


def check_updates(when: str) -> None:
    """Compare the weights of all ranks, if there were updates since that was last done. Collective then.

    Raises:
        RankError: on every rank, if one differs.
    """
    global _checked
    done = reduction.count_updates()
    if done == _checked or not settings.get_settings().drift_steps:
        return
    _checked = done
    agreed = variables.list_agreed()
    # Moving statistics are each rank's own with weak scaling; the optimizer leaves them alone.
    trained = [variable for variable in agreed if getattr(variable, "trainable", True)]
    variables.check_drift(trained, trained, when)


def leave_out(updates: int) -> None:
    """Of the last updates so many need no comparison: the weights that they changed were compared."""
    global _checked
    _checked += updates


def _check_end() -> None:
    check_updates("at the end of the script")


shutdown.at_end.append(_check_end)
