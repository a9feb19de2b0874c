"""Of the errors of several ranks the one that came first is shown, once, by whoever shows it."""

import multiprocessing
import os
import time

import pytest

from matex_tf.world import error_records
from matex_tf.world.error_records import ErrorRecord


def record(rank, **how):
    return ErrorRecord(rank, 4, f"host{rank % 2}", "ValueError: no", f"rank {rank} failed\n", **how)


@pytest.mark.parametrize(
    "records, cause",
    [
        ([], None),
        ([record(2, number=7, time=5.0), record(1, number=7, time=4.0)], 1),
        # The clock of a host may be anywhere: what failed before collective 7 does not follow from what failed after.
        ([record(0, number=7, time=9.0), record(1, number=8, time=1.0)], 0),
        # Rank 0 was told by the update under way that another rank has given it up, before that one could say why.
        ([record(0, number=7, time=1.0, follows=True), record(3, number=7, time=2.0)], 3),
        ([record(0, number=7, time=1.0, follows=True), record(3, number=8, time=2.0)], 3),
        ([record(3, number=7, time=1.0), record(2, number=7, time=1.0)], 2),
    ],
)
def test_the_cause_is_what_came_first(tmp_path, monkeypatch, records, cause):
    for number, one in enumerate(records):
        monkeypatch.setattr(error_records.os, "getpid", lambda number=number: number)
        error_records.write_record(one, tmp_path)
    found = error_records.find_cause(tmp_path)
    assert (found and found.rank) == cause
    assert found is None or found in records


def speak(folder, rank, leaves, monkeypatched):
    error_records._folder = monkeypatched
    error_records._job = "one job"
    error_records.show_record(record(rank), folder)
    leaves.wait()


@pytest.mark.parametrize("shown_by_run", [True, False])
def test_of_ranks_that_fail_at_once_one_speaks(tmp_path, capfd, shown_by_run):
    """The others wait in `show` until it has ended, or else would end it before it has spoken."""
    context = multiprocessing.get_context("fork")
    leaves, of_run = context.Event(), str(tmp_path) if shown_by_run else str(tmp_path / "not on this host")
    ranks = [context.Process(target=speak, args=(tmp_path, rank, leaves, of_run)) for rank in range(4)]
    for one in ranks:
        one.start()
    leaves.set()
    for one in ranks:
        one.join()
    assert [one.exitcode for one in ranks] == [0] * 4
    assert capfd.readouterr().err.count("failed") == (0 if shown_by_run else 1)
    assert sorted(one.rank for one in error_records.read_records(tmp_path)) == [0, 1, 2, 3] * shown_by_run


@pytest.mark.parametrize("seconds, rank, said", [(0, 1, 1), (30, 1, 1), (3600, 1, 2), (0, 2, 2)])
def test_a_claim_of_an_earlier_run_silences_nobody(tmp_path, capfd, monkeypatch, seconds, rank, said):
    """It is of an earlier one if it is old, or of the same rank."""
    monkeypatch.setattr(error_records, "_job", "a job")
    error_records.show_record(record(2), tmp_path)
    os.close(error_records._held.pop())  # as at the end of its process
    then = time.time() + seconds
    monkeypatch.setattr(error_records.time, "time", lambda: then)
    error_records.show_record(record(rank), tmp_path)
    os.close(error_records._held.pop())
    assert capfd.readouterr().err.count("failed") == said
