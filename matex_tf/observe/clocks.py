"""Measures the offsets of hosts' clocks from rank 0's clock, for the timeline, by sending the time back and forth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.ops import records
from matex_tf.runtime import objects
from matex_tf.world import world

_ROUNDS = 20  # messages back and forth for one measurement
_TAG = 7


@dataclass(frozen=True)
class Offset:
    """At time `at` of rank 0's clock, this host's clock was `ahead` of it, up to an error of `error`; nanoseconds."""

    at: int = 0
    ahead: int = 0
    error: int = 0


def estimate_offset(rounds: Sequence[tuple[int, int, int]]) -> Offset:
    """Estimate the offset from rounds of (sent, answered, received), where "answered" is the other clock's time.

    The fastest round is the most exact: the answer was given between sending and receiving (Cristian, 1989).
    """
    sent, answered, received = min(rounds, key=lambda clock_round: clock_round[2] - clock_round[0])
    middle = (sent + received) // 2
    return Offset(middle, answered - middle, (received - sent + 1) // 2)


def convert_to_rank_0_time(times: np.ndarray, start: Offset, end: Offset) -> np.ndarray:
    """Convert times of a host to rank 0's clock, in nanoseconds, assuming a linear drift from start to end."""
    begin, finish = start.at + start.ahead, end.at + end.ahead  # by the host's clock
    if finish <= begin:
        return times - start.ahead
    drift = (end.ahead - start.ahead) / (finish - begin)
    return times - start.ahead - np.rint((times - begin) * drift).astype(int)


class Clocks:
    """The clocks of all ranks. The constructor is collective."""

    def __init__(self) -> None:
        clock_ids = objects.allgather(_read_clock_id(), "whose clocks are the same")
        first_ranks = {clock: rank for rank, clock in reversed(list(enumerate(clock_ids)))}
        # For each rank, the first rank with the same clock; and these first ranks, except rank 0.
        self._leader_of = [first_ranks[clock] for clock in clock_ids]
        self._leaders = sorted(set(self._leader_of) - {0})

    def measure_offsets(self) -> list[Offset]:
        """The present offset of each rank's clock; `Offset()` for ranks with rank 0's clock.

        Collective. It sends messages of MPI directly. So the engine does not check that all ranks are at this place, as
        it does for other collectives, and this method is for the start and the end of a script only.
        """
        me = world.get_world().rank
        if world.get_world().has_lost:
            # Ranks that were measured at the start have new numbers, or are lost.
            return [Offset()] * world.get_world().size
        communicator = world.get_communicator("control")
        with ops.announce_exchange("comparing clocks"):
            offsets = {leader: _measure_offset(communicator, leader) for leader in self._leaders} if me == 0 else {}
            if me in self._leaders:
                _answer_rank_0(communicator)
            offsets = communicator.bcast(offsets)
        return [offsets.get(leader, Offset()) for leader in self._leader_of]


def _read_clock_id() -> str:
    """An identifier that is equal for processes with the same clock: a machine's clock starts at its boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return world.get_world().host


def _measure_offset(communicator: Any, rank: int) -> Offset:
    """On rank 0: the offset of the clock of `rank`, which calls `_answer_rank_0`."""
    rounds, answer = [], np.zeros(1, np.int64)
    for _ in range(_ROUNDS):
        sent = records.read_clock()
        communicator.Send(answer, rank, _TAG)
        communicator.Recv(answer, rank, _TAG)
        rounds.append((sent, int(answer[0]), records.read_clock()))
    return estimate_offset(rounds)


def _answer_rank_0(communicator: Any) -> None:
    """On a leader: answer each message of rank 0 with the time of this clock."""
    own_time = np.zeros(1, np.int64)
    for _ in range(_ROUNDS):
        communicator.Recv(own_time, 0, _TAG)
        own_time[0] = records.read_clock()
        communicator.Send(own_time, 0, _TAG)
