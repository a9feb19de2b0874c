"""The picture of `matex top`: how far a run is, who is waited for, who is silent; of many ranks, those that matter."""

from __future__ import annotations

import json
import sys

import pytest
import simulated_run as simulated
from rich.console import Console

import launch
from matex_tf.monitor import picture, progress, recording
from matex_tf.monitor.report import page
from matex_tf.observe import balance

TOP = [sys.executable, "-m", "matex_tf.launch.cli", "top"]


def drawn(folder, height=0, now=simulated.BEGAN + 100, width=140):
    console = Console(width=width, color_system=None)
    with console.capture() as text:
        console.print(picture.draw_run(recording.open_run(folder), height, now))
    return text.get()


def test_the_slow_rank_is_named_with_what_it_costs(tmp_path):
    where = simulated.start(tmp_path, 4, 60, slow=2, end="")
    epoch = {"t": simulated.BEGAN + 30, "up": 600, "epoch": 3, "of": 9, "steps": 200, "logs": {"loss": 0.4113}}
    simulated.write_events(where, "events-0.jsonl", epoch)
    text = drawn(tmp_path, now=simulated.BEGAN + 60)
    assert text.startswith("train.py --epochs 9, 4 ranks on 1 host, epoch 3 of 9 done, 1180 updates, 50.0 ms an update")
    assert "1,280 rows/s, loss 0.4113, left 3 min 00 s" in " ".join(text.split())
    rows = [line.split() for line in text.splitlines() if line.split()[:1] in [["0"], ["1"], ["2"], ["3"]]]
    assert [row[9:19:2] for row in rows] == [["3.0", "30.0", "5.0", "14.0", "6.0"]] * 2 + [
        ["3.0", "40.0", "5.0", "4.0", "6.0"],
        ["3.0", "30.0", "5.0", "14.0", "6.0"],
    ]
    assert "the others wait for rank 2 (n000): 10.0 ms in each step, 20% of it" in text
    assert "other processes of n000 keep 7.9 of its cores busy" in text


@pytest.mark.parametrize("gpu", [False, True])
def test_a_narrow_terminal_shows_fewer_columns_and_each_rank(tmp_path, gpu):
    simulated.start(tmp_path, 1024, 15, slow=517, gpu=gpu)
    before = 0
    for width in range(24, 141, 4):
        lines = drawn(tmp_path, height=40, width=width).splitlines()
        head = next(place for place, line in enumerate(lines) if line.split()[:1] == ["rank"])
        rows = lines[head + 1 : head + 5]
        ranks = [int(line.split()[0]) for line in rows]
        assert ranks == sorted(ranks) and "waiting" in lines[head] and max(map(len, lines)) <= width
        assert all(line.split()[-1] for line in rows) and "\u2026" not in "".join(lines[head : head + 5])
        assert before <= (before := len(lines[head].split()))
    assert before == (14 if gpu else 11)


def test_a_recording_without_reading_and_waiting_for_the_input_has_dashes_there(tmp_path):
    where = simulated.start(tmp_path, 2, 20)
    for path in where.glob("rank-*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**one, "in": None, "read": None}) + "\n" for one in lines))
        path.write_text(path.read_text().replace(', "in": null, "read": null', ""))
    row = next(line.split() for line in drawn(tmp_path).splitlines() if line.split()[:1] == ["1"])
    assert row[9:14] == ["-", "30.0", "ms", "-", "4.0"]
    page.format_page(recording.open_run(tmp_path))


def test_even_ranks_are_said_to_be_even(tmp_path):
    simulated.start(tmp_path, 3, 20)
    assert "the ranks are balanced" in drawn(tmp_path)


@pytest.mark.parametrize("slow", [0, 517, 1023])
def test_of_a_thousand_ranks_the_slow_one_is_among_the_few_that_are_shown(tmp_path, slow):
    simulated.start(tmp_path, 1024, 15, slow=slow)
    text = drawn(tmp_path, height=30)
    lines = text.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 140
    assert any(line.split()[:1] == [str(slow)] for line in lines)
    assert f"the others wait for rank {slow} (n{slow // 8:03}): 10.0 ms" in text and "(medians)" in text


def test_a_rank_that_does_not_come_is_named_by_those_that_wait_for_it(tmp_path):
    where = simulated.start(tmp_path, 3, 20, end="")
    for rank in (0, 2):
        last = {**simulated.sample(rank, None, 20, simulated.BEGAN), "now": [14.2, "optimizer.apply: w"]}
        with (where / f"rank-{rank}.jsonl").open("a") as file:
            file.write(json.dumps(last) + "\n")
    text = drawn(tmp_path, now=simulated.BEGAN + 21)
    assert "2 ranks have waited 14 s for rank 1 (n000) at optimizer.apply: w" in text


def test_a_rank_of_which_nothing_is_heard_is_named(tmp_path):
    where = simulated.start(tmp_path, 4, 60, end="")
    path = where / "rank-3.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:20]))
    (where / "rank-1.jsonl").unlink()
    text = drawn(tmp_path, now=simulated.BEGAN + 60)
    assert "nothing from rank 3 (n000) for 41 s" in text and "rank 1 has written nothing" in text
    assert "nothing from" not in drawn(tmp_path, now=simulated.BEGAN + 20)


def test_ranks_of_a_long_run_whose_samples_are_rare_are_not_silent(tmp_path):
    where = simulated.start(tmp_path, 2, 20, end="")
    for rank in range(2):
        with (where / f"rank-{rank}.jsonl").open("a") as file:
            for second in (36, 52):
                file.write(json.dumps(simulated.sample(rank, None, second, simulated.BEGAN)) + "\n")
    assert "nothing from" not in drawn(tmp_path, now=simulated.BEGAN + 67)
    assert "nothing from 2 ranks" in drawn(tmp_path, now=simulated.BEGAN + 52 + 161)


def test_the_end_is_that_of_all_ranks_or_of_the_command(tmp_path):
    where = simulated.start(tmp_path, 3, 5)
    assert picture.has_ended(recording.open_run(tmp_path))
    lines = (where / "rank-1.jsonl").read_text().splitlines()
    (where / "rank-1.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert not picture.has_ended(recording.open_run(tmp_path))
    simulated.write_events(tmp_path, "events.jsonl", {"t": 1, "event": "ended with exit code 1", "end": 1})
    assert picture.has_ended(recording.open_run(tmp_path))


def test_what_is_left_counts_the_epochs_of_the_last_fit():
    def epoch(t, number, of):
        return progress.Epoch(t, number, of, {})

    first = [epoch(10, 1, 2), epoch(20, 2, 2)]
    assert progress.estimate_seconds_left([], 0) is None and progress.estimate_seconds_left(first, 0) == 0
    assert progress.estimate_seconds_left([*first, epoch(60, 1, 4), epoch(61, 2, 4), epoch(62, 3, 4)], 0) == 1


def test_nobody_is_waited_for_where_there_is_nobody_else():
    assert balance.find_slowest({0: balance.Step(1, 0, 0)}) is None and balance.find_slowest({}) is None


def test_in_a_pipe_no_escape_code_and_in_a_terminal_the_picture(tmp_path):
    simulated.start(tmp_path, 4, 20, slow=1)
    found = launch.execute([*TOP, str(tmp_path)], launch.environment(), 60).check()
    assert "rank 1" in found.stdout and "\x1b" not in found.stdout and not found.stderr
    env = launch.environment({"TERM": "xterm", "COLUMNS": "100", "LINES": "30"})
    found = launch.in_terminal([*TOP, str(tmp_path)], env, (30, 100))
    assert found.returncode == 0 and "\x1b[" in found.stdout and "wait for rank 1 (n000)" in found.stdout


@pytest.mark.parametrize(
    "name, why",
    [
        ("no thing", "no thing': there is no such folder"),
        (".", "no rank has written anything"),
        ("file", "that is a file, not a folder"),
    ],
)
@pytest.mark.parametrize("command", ["top", "report"])
def test_a_folder_without_a_run_is_answered_with_what_to_do(tmp_path, command, name, why):
    (tmp_path / "file").touch()
    words = [sys.executable, "-m", "matex_tf.launch.cli", command, str(tmp_path / name)]
    found = launch.execute(words, launch.environment(), 60)
    assert found.returncode == 1 and why in found.stderr and "matex run --record" in found.stderr
    assert found.stderr.count("\n") == 1
