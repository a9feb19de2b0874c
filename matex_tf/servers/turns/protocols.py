"""What a training in which ranks take turns at batches asks of others: of the pipeline, for losses, for restarts."""

from __future__ import annotations

from typing import Any, Protocol


class Data(Protocol):
    """The pipeline that an epoch's batches come from."""

    def get_first(self) -> tuple[int, int] | None:
        """The rows and the hash of the epoch's first batch, if the pipeline began with it."""

    def note_end(self, place: int) -> None:
        """There is no batch at this place of the pipeline: the first that is wanting."""

    def raise_end(self) -> None:
        """Raise what a step raises where its pipeline has ended."""


class Rescue(Protocol):
    """What lets ranks go on without one that is lost within an epoch."""

    def count_bytes(self) -> int:
        """How much of the store it takes."""

    def begin_turns(self, place: int) -> None:
        """Ranks are about to take turns; its part of the store is at `place`."""

    def fetch_batch(self, place: int, iterator: Any) -> Any:
        """An iterator that gives the batch at this place of a pipeline; None if the pipeline ends before."""

    def keep_counts(self) -> int:
        """The step of a batch is made: keep what this rank has counted; the version of that (`store.end_batch`)."""

    def find_losses(self) -> None:
        """See whether ranks are lost that others wait for."""

    def end_turns(self) -> None:
        """This rank takes no more turns, until it is told that it does again."""

    def forget_counts(self) -> None:
        """What was counted will not go on."""

    def close_turns(self) -> None:
        """Nor will the training."""


class State(Protocol):
    """The state of the run, which is kept between two batches."""

    def is_due(self) -> bool:
        """Whether this rank is to keep it, or to have it kept."""

    def keep_within(self, step: int) -> None:
        """Keep it, before this step of the epoch. Collective."""
