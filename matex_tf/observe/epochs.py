"""How many updates an epoch of the script alone has, for `matex plan`: of `fit`, or of a loop over a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import ops, settings
from matex_tf.world import world

_GRADIENTS = 1  # see `ops.count_completed`
_trained: Source | None = None
"""The one whose batches trained last."""


class Source:
    """What gives batches, pass after pass. A pass of one that trains is an epoch.

    Args:
        count_batches: those of a pass of the script alone; None where that is not known.
    """

    def __init__(self, name: str, count_batches: Callable[[], int | None]):
        self.name, self.count_batches = name, count_batches
        self._done = self._pass_began = 0
        self._is_at_batch = False
        self._ended: int | None = None
        self.trained = (0, 0)
        """After how many batches updates were last seen, and how many these had made."""
        self._updates = self._last = ops.count_completed(_GRADIENTS)

    def begin_batch(self) -> None:
        """A batch is given; that before it is done."""
        self._end_batch()
        self._is_at_batch = True

    def end_pass(self) -> None:
        """No more batches are given in this pass."""
        self._end_batch()
        self._ended, self._pass_began = self._done - self._pass_began, self._done

    def _end_batch(self) -> None:
        if self._is_at_batch:
            self.end_batches(1)
            self._is_at_batch = False

    def end_batches(self, count: int) -> None:
        """So many batches are done."""
        global _trained
        self._done += count
        done = ops.count_completed(_GRADIENTS)
        if done > self._last:
            _trained = self
            self.trained, self._last = (self._done, done - self._updates), done

    def describe_epoch(self) -> dict[str, Any]:
        """Batches of an epoch, or 0 and why that is not known; how many batches were given, and updates they made."""
        batches = self.count_batches() or (self._ended or 0) * count_own_batches(True)
        given, updates = self.trained
        why = "" if batches else f"{self.name} does not tell how many batches it has, and no epoch was over"
        return {"batches": batches, "given": given, "updates": updates, "why_not": why}


def make_source(name: str, count_batches: Callable[[], int | None]) -> Source | None:
    """A source, if `matex plan` asks."""
    return Source(name, count_batches) if settings.get_settings().plan is not None else None


def describe_epoch() -> dict[str, Any]:
    """Of what trained last; of nothing, where no batches were seen."""
    if _trained is not None:
        return _trained.describe_epoch()
    why = "no batches were given by `fit`, or by a loop in eager code over a tf.data.Dataset"
    return {"batches": 0, "given": 0, "updates": 0, "why_not": why}


def make_counter(dataset: Any, is_share: bool) -> Callable[[], int | None]:
    """What counts the batches of a tf.data.Dataset, of which each rank may have a share."""

    def count_batches() -> int | None:
        known = int(dataset.cardinality())
        return known * count_own_batches(is_share) if known > 0 else None

    return count_batches


def count_own_batches(are_dealt: bool) -> int:
    """How many batches of the script alone each of a rank's own stands for: with weak scaling one of each rank."""
    return world.get_world().trainers if are_dealt and settings.get_settings().scaling == "weak" else 1
