"""A stall: ranks wait at one collective, and other ranks do not come. Who is late, when to report it, and the message.

The reporter of the watchdog keeps one `Stall`. For example, rank 0 of 3 has waited at collective 7 for a minute. The
answers of all ranks say that rank 1 waits there, too, and that rank 2 comes to number 5 next: rank 2 is late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from matex_tf import ops
from matex_tf.world import world

_MAX_RANKS = 8  # maximum number of listed ranks
_MAX_STACKS = 2  # maximum number of listed stacks


@dataclass(frozen=True)
class Answer:
    """The position of a queried rank."""

    number: int  # of the collective at which it waits, or of its next one
    waits_at: str  # the description of the collective at which it waits; "" if it does not wait
    place: str  # the line of the script
    doing: str  # its long activities (`watchdog.excuse_wait`)
    has_excuse: bool  # the time limit of one of these activities is not over
    updates: int  # the number of updates that it has made
    stack: tuple[str, ...]  # the lines of its Python stack, and of errors that have ended its threads, for a message


@dataclass
class Stall:
    """What the reporter knows about ranks that wait at one collective. Times are given by `time.monotonic`."""

    number: int  # of the collective
    what: str  # its description
    starts: dict[int, float] = field(default_factory=dict)  # of the wait, for each rank that reported one
    answers: dict[int, Answer] = field(default_factory=dict)
    asked_at: float | None = None  # when the reporter asked all ranks; None if no answer is awaited
    reported_wait: float = 0.0  # the wait in the last message to the user, in seconds

    def is_report_due(self, waited: float, stall_seconds: float, abort_seconds: float) -> bool:
        """Whether to report a wait of `waited` seconds, so that messages become rarer.

        A report is due after MATEX_STALL_SECONDS, then at each double of the wait reported last, and at
        MATEX_ABORT_SECONDS, when the job may be ended.
        """
        if waited < self.reported_wait:
            self.reported_wait = 0.0  # this wait began later than the reported one
        due_seconds = max(stall_seconds, 2 * self.reported_wait)
        if self.reported_wait < abort_seconds:
            due_seconds = min(due_seconds, abort_seconds)
        return waited >= due_seconds

    def list_late(self, ranks: Sequence[int]) -> list[int]:
        """The ranks that have not answered that they wait at this collective or a later one."""
        waiting_ranks = {
            rank for rank, answer in self.answers.items() if answer.waits_at and answer.number >= self.number
        }
        return [rank for rank in ranks if rank not in waiting_ranks]

    def is_excused(self, late_ranks: Sequence[int]) -> bool:
        """Whether one of the late ranks has an excuse."""
        return any(self.answers[rank].has_excuse for rank in late_ranks if rank in self.answers)

    def describe(self, waited: float, ranks: Sequence[int], late_ranks: Sequence[int]) -> str:
        """The message after the `ranks` have waited for `waited` seconds for the `late_ranks` among them."""
        lines = self._list_late_lines(waited, ranks, late_ranks) if late_ranks else self._list_mutual(waited, ranks)
        return "\n".join(lines) + "\n"

    def _list_late_lines(self, waited: float, ranks: Sequence[int], late_ranks: Sequence[int]) -> list[str]:
        hosts = world.get_world().hosts
        waiting_ranks = [rank for rank in ranks if rank not in late_ranks]
        names = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in waiting_ranks[:_MAX_RANKS])
        names += f" and {len(waiting_ranks) - _MAX_RANKS} more" if len(waiting_ranks) > _MAX_RANKS else ""
        place = f"{self.what} (collective number {self.number}, after {ops.count_updates()} updates)"
        verb = "have" if len(waiting_ranks) > 1 else "has"
        lines = [f"matex_tf: for {waited:.0f} s {names} {verb} waited at {place} for:"]
        for rank in late_ranks[:_MAX_RANKS]:
            answer = self.answers.get(rank)
            if answer is None:
                position = "does not answer: its process is stopped, or its host cannot be reached"
            else:
                activity = f"it is {answer.doing}" if answer.doing else f"it is at {answer.place}"
                position = f"comes to number {answer.number} next; {activity}; it has made {answer.updates} updates"
            lines.append(f"  rank {rank} ({hosts[rank]}) {position}")
        if len(late_ranks) > _MAX_RANKS:
            lines.append(f"  and {len(late_ranks) - _MAX_RANKS} more")
        for rank in [rank for rank in late_ranks if rank in self.answers][:_MAX_STACKS]:
            lines += [f"  the Python stack of rank {rank} ({hosts[rank]}):", *self.answers[rank].stack]
        return lines

    def _list_mutual(self, waited: float, ranks: Sequence[int]) -> list[str]:
        """No rank is late: ranks wait for one another, or a transfer of all ranks takes this long."""
        hosts = world.get_world().hosts
        reasons = "for one another, because their code has diverged, or for a transfer that takes this long"
        wait_text = f"for up to {waited:.0f} s, after {ops.count_updates()} updates"
        lines = [f"matex_tf: all ranks have waited {wait_text}: {reasons}:"]
        for rank in ranks[:_MAX_RANKS]:
            answer = self.answers[rank]
            position = f"waits at {answer.waits_at} (collective number {answer.number}); it is at {answer.place}"
            lines.append(f"  rank {rank} ({hosts[rank]}) {position}")
        if len(ranks) > _MAX_RANKS:
            lines.append(f"  and {len(ranks) - _MAX_RANKS} more")
        return lines
