"""Of the errors of several ranks the one that came first is shown, once, by whoever shows it."""

import multiprocessing
import os
import time

import pytest

from matex_tf.launch import run_end
from matex_tf.runtime import rank_records


def record(rank, **how):
    return {"rank": rank, "text": f"rank {rank} failed\n", **how}


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
        monkeypatch.setattr(rank_records.os, "getpid", lambda number=number: number)
        rank_records.append(tmp_path, **one)
    found = run_end.read_end(tmp_path).cause
    assert (found and found.rank) == cause


def speak(folder, rank, leaves, monkeypatched):
    rank_records._folder = monkeypatched
    rank_records._job = "one job"
    if not rank_records.note_error("it failed", rank):
        rank_records.show_error("it failed", rank, folder)
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
    assert sorted(one.rank for one in rank_records.read_records(tmp_path)) == [0, 1, 2, 3] * shown_by_run


@pytest.mark.parametrize("seconds, rank, said", [(0, 1, 1), (30, 1, 1), (3600, 1, 2), (0, 2, 2)])
def test_a_claim_of_an_earlier_run_silences_nobody(tmp_path, capfd, monkeypatch, seconds, rank, said):
    """It is of an earlier one if it is old, or of the same rank."""
    monkeypatch.setattr(rank_records, "_job", "a job")
    rank_records.show_error("it failed", 2, tmp_path)
    os.close(rank_records._claims.pop())  # as at the end of its process
    then = time.time() + seconds
    monkeypatch.setattr(rank_records.time, "time", lambda: then)
    rank_records.show_error("it failed", rank, tmp_path)
    os.close(rank_records._claims.pop())
    assert capfd.readouterr().err.count("failed") == said


def test_a_line_that_is_cut_takes_nothing_else_along(tmp_path, monkeypatch):
    """As on a full disk, or read while it is written; what the rank says later counts."""
    rank_records.append(tmp_path, rank=3, state=rank_records.BEGUN)
    (record,) = tmp_path.iterdir()
    with record.open("a") as file:
        file.write('\n{"state": "en')
    assert rank_records.read_records(tmp_path) == [rank_records.Record(3, state=rank_records.BEGUN)]
    rank_records.append(tmp_path, state=rank_records.ENDED, codes=[2])
    assert rank_records.read_records(tmp_path) == [rank_records.Record(3, state=rank_records.ENDED, codes=(2,))]


@pytest.mark.parametrize(
    "records, code, expected",
    [
        ([{"abort_code": 3, "number": 7}, {"abort_code": 1, "number": 7, "follows": True}], 0, 3),  # as with --elastic
        ([{"abort_code": 70, "time": 2.0}, {"abort_code": 74, "time": 1.0}], 0, 74),
        ([{"abort_code": 3}], 1, 1),
        ([{"abort_code": 3}, {"state": "ended"}], 0, 0),  # a rank that the others have gone on without
        ([{"state": "begun"}], 0, 0),
    ],
)
def test_exit_code_0_of_aborted_ranks_is_theirs(records, code, expected):
    end = run_end.RunEnd([rank_records.Record(rank, **one) for rank, one in enumerate(records)], are_files_written=True)
    assert end.correct_code(code) == expected
