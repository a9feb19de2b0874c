"""The database: what is written stays, also beside others, killed processes and full disks."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys

import pytest

from matex_tf.launch import cli
from matex_tf.tune import database as databases
from matex_tf.tune import rungs, setup
from matex_tf.tune.database import RUNNING, Database, DatabaseError, Record
from matex_tf.tune.engines import warm_start
from matex_tf.tune.objective import Objective, Point
from matex_tf.tune.space import Number, Space

TASK = {"rows": 1000, "columns": 8, "classes": 2, "parameters": 500, "loss": "mse"}


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path / "deep" / "tune.db")


def add(database, folder="/runs/a"):
    return database.add_search(folder, ["train.py"], "search: ...", {"trials": 3}, "minimize val_loss")


def test_what_is_written_is_read(database):
    search = add(database)
    one, two = (database.add_trial(search.id, {"--x": x}, "engine") for x in (0.25, "a"))
    curve = (Point(1, math.nan), Point(2, 0.5))
    done = Record(1, one.config, "engine", state="done", value=0.5, seconds=3.0, curve=curve)
    database.update_trial(search.id, done)
    again = Database(database.path)
    first, second = again.list_trials(search.id)
    assert first == done and first.curve[1] == Point(2, 0.5) and math.isnan(first.curve[0].value)
    assert (second, second.state) == (two, RUNNING)
    assert again.find_search(search.id) == search and again.find_search(99) is None
    assert again.add_trial(search.id, {}, "engine").number == 3


def test_a_trial_that_is_made_again_has_one_curve(database):
    search = add(database)
    record = database.add_trial(search.id, {}, "engine")
    for values in ((3.0, 2.0, 1.0), (5.0,)):
        curve = tuple(Point(place, value) for place, value in enumerate(values))
        ended = Record(record.number, {}, "engine", state="done", value=values[-1], curve=curve)
        database.update_trial(search.id, ended)
    assert database.list_trials(search.id)[0].curve == (Point(0, 5.0),)


def test_tasks_of_others(database):
    one, two, other = (database.add_search("", [], "", {}, objective) for objective in ("a", "a", "b"))
    for search in (one, two, other):
        database.note_task(search.id, TASK)
    database.note_task(one.id, {**TASK, "rows": 5})  # the first stays
    assert database.read_task(one.id) == TASK and database.list_other_tasks(one.id, "a") == {two.id: TASK}


def test_many_processes_write_at_once(database):
    program = """
import sys
from pathlib import Path
from matex_tf.tune.database import Database
database = Database(Path(sys.argv[1]))
print(flush=True)
sys.stdin.read()
for _ in range(100):
    database.add_trial(1, {}, "engine")
"""
    words = [sys.executable, "-c", program, str(database.path)]
    add(database)
    children = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    for child in children:
        child.stdout.readline()
    for child in children:
        child.stdin.close()
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert [one.number for one in database.list_trials(1)] == list(range(1, 301))


def test_a_full_disk_is_an_error_and_leaves_what_was_written(database):
    search = add(database)
    record = database.add_trial(search.id, {}, "engine")
    pages = database._file.execute("pragma page_count").fetchone()[0]
    database._file.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(DatabaseError, match=r"tune.db: .*full"):
        database.update_trial(search.id, Record(record.number, {}, "engine", state="failed", tail="x" * 100_000))
    assert database.list_trials(search.id) == [record]
    database._file.execute("pragma max_page_count = 100000")
    database.update_trial(search.id, Record(record.number, {}, "engine", state="done", value=1.0))
    assert database.list_trials(search.id)[0].value == 1.0


def test_a_file_of_another_kind_or_version_is_refused(tmp_path):
    (tmp_path / "text").write_text("no database, and long enough to be told from one" * 100)
    with pytest.raises(DatabaseError, match="text: .*not a database"):
        Database(tmp_path / "text")
    with sqlite3.connect(tmp_path / "new.db") as file:
        file.execute("pragma user_version = 7")
    with pytest.raises(DatabaseError, match="its version is 7, and this matex reads 3"):
        Database(tmp_path / "new.db")
    with pytest.raises(DatabaseError, match="Not a directory|File exists"):
        Database(tmp_path / "text" / "below.db")


def test_where_it_is(monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert str(databases.find_default_path()) == f"/data/matex/tune-{databases.VERSION}.db"


def test_a_file_of_an_older_version_stops_no_search(tmp_path, monkeypatch, capsys):
    """It has another path than new ones. Its own searches are told that they need the matex that began them."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    older = tmp_path / "matex" / "tune.db"
    older.parent.mkdir()
    with sqlite3.connect(older) as file:
        file.execute("pragma user_version = 2")
    add(Database(databases.find_default_path()))
    (tmp_path / setup.NOTE).write_text(json.dumps({"database": str(older), "search": 1}))
    for command, code in ((["tune", "--resume"], 2), (["report"], 1)):
        assert cli.main([*command, str(tmp_path)]) == code
        told = capsys.readouterr().err
        assert "that began them" in told and "To go on" not in told


# Warm starts


def test_how_far_tasks_are_apart():
    assert warm_start.compute_task_distance(TASK, TASK) == 0
    assert warm_start.compute_task_distance(
        TASK, {**TASK, "rows": 10_000, "columns": 80, "classes": None}
    ) == pytest.approx((2 / 3) ** 0.5)
    assert warm_start.compute_task_distance(TASK, {**TASK, "loss": "mae"}) == math.inf
    assert warm_start.compute_task_distance({**TASK, "loss": None}, {**TASK, "loss": None}) == math.inf
    assert (
        warm_start.compute_task_distance(
            TASK, {"rows": 1000, "columns": None, "classes": None, "parameters": None, "loss": "mse"}
        )
        == math.inf
    )


def test_what_is_begun_with():
    space = Space((Number("x", 0, 1),))
    others = {
        1: {**TASK, "rows": 2000}, 2: TASK, 3: {**TASK, "rows": 10**9, "parameters": 10**9}, 4: {**TASK, "rows": 1500}
    }  # fmt: skip
    best = {1: [{"x": 5.0}, {"x": 0.5}], 2: [{"x": 0.25}, {"x": 0.1}], 3: [{"x": 0.9}], 4: [{"y": 1.0}]}
    found = warm_start.choose_starts(TASK, others, best, space)
    assert list(found.items()) == [(2, {"x": 0.25}), (1, {"x": 0.5})]
    many = warm_start.choose_starts(
        TASK, dict.fromkeys(range(9), TASK), {place: [{"x": place / 10}] for place in range(9)}, space
    )
    assert list(many) == [8, 7, 6, 5], "of those as near, the newest"


def test_the_best_come_first():
    values = (3.0, 1.0, None, 2.0)
    trials = [Record(place, {"x": place}, "", state="done", value=value) for place, value in enumerate(values)]
    for objective, order in ((Objective(), [1, 3, 0]), (Objective(maximize=True), [0, 3, 1])):
        assert [record.number for record in rungs.sort_trials(trials, objective)] == order
