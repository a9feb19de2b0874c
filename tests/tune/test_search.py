"""Whole searches, with trials that are small Pythons: killed, interrupted, refused, failing, warm, in a terminal."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_trials as fakes
import numpy as np
import pytest

import launch
import matex_tf
from matex_tf.tune import setup, space_file
from matex_tf.tune.database import Database, DatabaseError, Record
from matex_tf.tune.engines.random_search import RandomSearch
from matex_tf.tune.screen import Screen
from matex_tf.tune.search import SearchError, hold_search
from matex_tf.tune.settings import Settings
from matex_tf.tune.trials import trial

pytestmark = pytest.mark.waits

FAKES = str(Path(fakes.__file__))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(setup, "find_own_command", lambda: fakes.command(tmp_path))
    fakes.prepare(tmp_path)


def search(space=fakes.SPACE, target=("train.py",), **settings):
    where = setup.create_search(target, space, Settings(**{"source": os.getcwd(), "name": "space.yaml", **settings}))
    return where, setup.run_search(where)


def records(where):
    database, found = setup.open_search(where)
    return database.list_trials(found.id)


def tune(*words, timeout=60):
    environment = {**launch.environment(), "XDG_DATA_HOME": os.environ["XDG_DATA_HOME"]}
    return launch.execute([sys.executable, FAKES, *map(str, words)], environment, timeout)


def test_a_search_finds_the_best_and_says_how_to_train_so(capfd):
    where, found = search(trials=6, parallel=2)
    all_of = records(where)
    assert [one.number for one in all_of] == list(range(1, 7)) and {one.state for one in all_of} == {"done"}
    best = min(all_of, key=lambda one: one.value)
    assert found.best == best and found.code == 0 and found.trials == 6
    assert found.command == f"matex run -n 1 train.py --x={best.config['--x']}"
    assert best.value == pytest.approx((best.config["--x"] - 0.3) ** 2 / 2) and len(best.curve) == 2
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["trial", "val_loss", "epochs", "state", "s", "--x"] and len(lines) == 7
    assert not Path("made").exists() and (where / "trial-3" / "place" / "made").read_text() == "x"
    assert not (where / "trial-3" / "place" / "train.py").exists()


def test_from_the_command_line():
    ended = tune("--search", "space.yaml", "--trials", "3", "--engine", "random", "train.py", "--fixed=1", "two words")
    assert ended.returncode == 0, ended.output
    best = r"best of 3 trials, \d s: val_loss [\d.e-]+, trial \d\n"
    words = r"  matex run -n 1 train.py --fixed=1 'two words' --x=[\d.e-]+\n"
    assert re.search(f"{best}{words}kept in .*tune-3.db", ended.stdout)
    assert "told ['--fixed=1', 'two words', '--x=" in Path("runs/tune-train-1/trial-1/output").read_text()
    after = tune("train.py", "--search", "space.yaml", "--trials", "1", "--", "--seed=3", "-n").check()
    assert re.search(r"matex run -n 1 train.py --seed=3 -n --x=", after.stdout)
    more = tune("--resume", "runs/tune-train-1", "--trials", "5").check()
    assert "best of 5 trials" in more.stdout and len(records(Path("runs/tune-train-1"))) == 5


@pytest.mark.parametrize(
    "words, message",
    [
        (["--trials", "3"], "no script is named. For example: matex tune --search space.yaml train.py"),
        (["train.py"], "what is to be searched?"),
        (["train.py", "--search", "space.yaml", "--epochs", "3"], "train.py --search space.yaml -- --epochs ..."),
        (["--search", "no.yaml", "train.py"], "there is no file no.yaml"),
        (["--search", "space.yaml", "no.py"], "there is no file no.py"),
        (["--search", "wrong.yaml", "train.py"], "wrong.yaml, line 2: --x: there is no word flaot; did you mean float"),
        (["--serach", "space.yaml", "train.py"], "there is no option --serach; did you mean --search"),
        (
            ["--search", "space.yaml", "--engine", "forest", "train.py"],
            "'forest' is not one of 'random', 'smac', 'tpe'",
        ),
        (["--search", "space.yaml", "--limit", "soon", "train.py"], "--limit: expected time to be"),
        (["--search", "space.yaml", "--trials", "0", "train.py"], "0 is not in the range"),
        (["--search", "space.yaml", "--folder", ".", "train.py"], ". is not empty. `matex tune --resume .` goes on"),
        (["--resume", "data"], "data is not the folder of a search"),
        (["--resume", "x", "train.py"], "--resume FOLDER goes on as it was begun"),
        (["--resume", "x", "--seed", "3"], "--resume goes on as it was begun, without --seed"),
        (["--resume", "x", "-n", "3"], "--resume goes on as it was begun, without -n"),
        (["--resume", "x", "--no-warm-start"], "--resume goes on as it was begun, without --no-warm-start"),
    ],
)
def test_wrong_words_are_answered_before_anything_starts(words, message, capsys):
    Path("wrong.yaml").write_text("search:\n  --x: {flaot: [0, 1]}\n")
    Path("data").mkdir(exist_ok=True)
    from matex_tf.launch import cli

    assert cli.main(["tune", *words]) == 2
    assert message in capsys.readouterr().err and not Path("runs").exists()


# Ends


def wait_for(condition, what):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def start(*words, **environment):
    full = {**launch.environment(environment), "XDG_DATA_HOME": os.environ["XDG_DATA_HOME"]}
    return subprocess.Popen(
        [sys.executable, FAKES, *words], env=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_killed_at_any_moment_it_goes_on_without_a_lost_or_doubled_trial():
    draw, where = random.Random(0), Path("runs/tune-train-1")
    child = start("--search", "space.yaml", "--trials", "12", "--parallel", "3", "train.py", SLEEP="0.1")
    wait_for((where / "search.json").exists, "the search begins")
    for _ in range(4):
        time.sleep(draw.uniform(0.1, 0.6))
        child.kill()
        child.communicate()
        child = start("--resume", str(where), SLEEP="0.1")
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    all_of = records(where)
    assert [one.number for one in all_of] == list(range(1, 13)) and {one.state for one in all_of} == {"done"}
    assert len({one.config["--x"] for one in all_of}) == 12
    for one in all_of:  # each was made whole, once, whatever was begun before
        assert len(one.curve) == 2 and (where / f"trial-{one.number}" / "place" / "made").read_text() == "x"
    assert sum(line.split()[1:2] != ["val_loss"] for line in stdout.splitlines() if line.startswith("    ")) <= 12


def test_trials_end_with_a_search_that_is_killed():
    where = Path("runs/tune-train-1")
    child = start("--search", "space.yaml", "train.py", SLEEP="100")
    wait_for((where / "trial-1" / "output").exists, "a trial")
    child.kill()
    child.communicate()
    with (where / "trial-1" / "lock").open() as lock:
        wait_for(lambda: is_free(lock), "the trial ends")


def is_free(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_folder_on_a_file_system_without_locks_is_used_and_that_is_told(tmp_path, monkeypatch, capsys):
    def flock(handle, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with hold_search(tmp_path), trial.hold_folder(tmp_path):
        (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line and "expected" in line and os.strerror(errno.ENOLCK) in line


def test_ctrl_c_ends_the_trials_and_keeps_what_there_is():
    where = Path("runs/tune-train-1")
    child = start("--search", "space.yaml", "--parallel", "2", "train.py", SLEEP="0.1")
    wait_for((where / "trial-4" / "output").exists, "four trials")
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert f"Ctrl-C: the trials that had ended are kept. To go on: matex tune --resume {where}" in stdout
    assert "best of " in stdout and {one.state for one in records(where)} == {"done", "running"}
    for one in where.glob("trial-*"):
        with (one / "lock").open() as lock:
            assert is_free(lock), "no trial lives on"


def test_two_cannot_go_on_with_one_search():
    child = start("--search", "space.yaml", "train.py", SLEEP="50")
    where = Path("runs/tune-train-1")
    wait_for((where / "trial-1" / "output").exists, "a trial")
    with pytest.raises(SearchError, match="another `matex tune` goes on with this search"):
        setup.run_search(where, space="search:\n  --y: {float: [0, 1]}\n", trials=7)
    found = setup.open_search(where)[1]
    assert (found.space, found.settings["trials"], records(where)[0].state) == (fakes.SPACE, 50, "running")
    child.terminate()
    child.communicate(timeout=60)
    assert child.returncode == 143


@pytest.mark.parametrize("folder", ["", "new", "mine"])
def test_a_database_that_cannot_be_opened_leaves_the_folders_as_they_were(folder):
    Path("mine").mkdir()
    Path("runs").mkdir()
    Path("x.db").mkdir()
    before = sorted(Path().rglob("*"))
    with pytest.raises(DatabaseError):
        setup.create_search(
            ["train.py"], fakes.SPACE, Settings(source=os.getcwd(), name="space.yaml"), "x.db", folder
        )  # fmt: skip
    assert sorted(Path().rglob("*")) == before


REFUSES = "import sys\nprint('usage: train.py [--lr LR]')\nsys.exit('error: unrecognized arguments: ' + sys.argv[1])\n"


def test_if_the_first_three_fail_alike_it_stops_and_shows_why():
    Path("train.py").write_text(REFUSES)
    asked = Settings(source=os.getcwd(), name="space.yaml")
    where = setup.create_search(["train.py"], fakes.SPACE, asked, folder="two words")
    with pytest.raises(
        SearchError, match=r"(?s)trials 1, 2, 3 have failed alike \(exit code 1\).*unrecognized arguments: --x"
    ):
        setup.run_search(where)
    assert [(one.state, one.why) for one in records(where)] == [("failed", "exit code 1")] * 3
    assert "unrecognized arguments" in records(where)[0].tail
    ended = tune("--resume", where)
    assert ended.returncode == 1 and "Once that is mended: matex tune --resume 'two words', " in ended.stderr


SOME_FAIL = """
import os, sys
x = float(sys.argv[1].split("=")[1])
print("loss", "nan" if x > 0.9 else x)
sys.exit(3 if x < 0.4 else 0)
"""


def test_failures_are_recorded_and_count_as_the_worst(monkeypatch):
    Path("train.py").write_text(SOME_FAIL)
    told = []
    monkeypatch.setattr("matex_tf.tune.engines.random_search.RandomSearch.tell", lambda _, *what: told.append(what))
    where, found = search("objective: {regex: 'loss (.*)'}\n" + fakes.SPACE, trials=14)
    all_of = records(where)
    by_x = {one.config["--x"]: one for one in all_of}
    assert {one.why for x, one in by_x.items() if x < 0.4} == {"exit code 3"}
    assert {one.why for x, one in by_x.items() if x > 0.9} == {"value is nan"}
    good = [one for one in all_of if one.state == "done"]
    assert found.best == min(good, key=lambda one: one.value) and len(told) == 14
    costs = {config["--x"]: cost for config, cost in told}
    assert all(costs[one.config["--x"]] == one.value for one in good)
    until_now = [0.0]
    for one in all_of:
        until_now.append(one.value if one.state == "done" else until_now[-1])
        worst = max((good for good in until_now[1:] if good), default=0.0)
        assert one.state == "done" or not worst or costs[one.config["--x"]] == worst, "as much as the worst until then"


def test_none_comes_to_a_value():
    Path("train.py").write_text("import sys, os\nsys.exit(int(os.getpid()) % 100 + 1)\n")
    ended = tune("--search", "space.yaml", "--trials", "2", "train.py")
    assert ended.returncode == 1 and "no trial has come to a value" in ended.stdout


def test_engines_get_seeds_that_numpy_takes(monkeypatch):
    seeds = []
    monkeypatch.setattr(
        setup.engine, "load_engine", lambda _: lambda space, seed: seeds.append(seed) or RandomSearch(space, seed)
    )
    search(trials=1, seed=-1)
    assert seeds == [2**32 - 1]


def test_a_small_space_is_tried_whole(capfd):
    _, found = search("search:\n  --x: {choice: [0.1, 0.2, 0.7]}\n", trials=50)
    assert found.trials == 3 and found.best.config == {"--x": "0.2"}
    assert "every configuration there is was tried: 3" in capfd.readouterr().err


def test_a_full_disk_loses_only_the_trials_under_way(monkeypatch):
    plain, count = Database.update_trial, []

    def end(self, *what):
        count.append(1)
        if len(count) == 3:
            pages = self._file.execute("pragma page_count").fetchone()[0]
            self._file.execute(f"pragma max_page_count = {pages}")
            what = (what[0], dataclasses.replace(what[1], tail="x" * 100_000))
        plain(self, *what)

    monkeypatch.setattr(Database, "update_trial", end)
    where = setup.create_search(["train.py"], fakes.SPACE, Settings(trials=5, source=os.getcwd(), name="space.yaml"))
    with pytest.raises(DatabaseError, match="full"):
        setup.run_search(where)
    monkeypatch.setattr(Database, "update_trial", plain)
    assert [one.state for one in records(where)] == ["done", "done", "running"]
    assert setup.run_search(where).trials == 5 and [one.number for one in records(where)] == [1, 2, 3, 4, 5]


# Warm starts, placeholders, other ways


def test_a_search_begins_with_what_one_of_an_alike_task_has_found(capfd):
    first, found = search(trials=5)
    capfd.readouterr()
    second, _ = search(trials=3, seed=7)
    assert f"goes on with the best of {first.absolute()}, whose tasks are alike" in capfd.readouterr().err
    assert [one.origin for one in records(second)] == ["engine", "warm", "engine"]
    assert records(second)[1].config == found.best.config
    third, _ = search(trials=3, seed=8, warm_start=False)
    other, _ = search("objective: {maximize: val_loss}\n" + fakes.SPACE, trials=3, seed=9)
    assert {one.origin for where in (third, other) for one in records(where)} == {"engine"}


def test_a_task_that_an_earlier_start_has_logged_is_known():
    where = setup.create_search(
        ["train.py"], fakes.SPACE, Settings(trials=1, rungs=(5,), source=os.getcwd(), name="space.yaml")
    )
    database, found = setup.open_search(where)
    database.add_trial(found.id, {"--x": 0.5}, "engine")
    (where / "trial-1" / "state").mkdir(parents=True)
    (where / "trial-1" / "noted.jsonl").write_text('{"task": {"rows": 100}}\n')
    Path("train.py").write_text(
        "import os\nopen(os.environ['MATEX_TRIAL'], 'a').write('{\"epoch\": 1, \"logs\": {\"val_loss\": 1}}\\n')\n"
    )
    assert setup.run_search(where).best.value == 1
    assert database.read_task(found.id)["rows"] == 100


def test_variables_and_files():
    Path("conf.json").write_text('{"rate": {{rate}}}')
    Path("train.py").write_text(
        "import json, os\nprint('value', json.load(open('conf.json'))['rate'] + float(os.environ['SHIFT']))\n"
    )
    space = (
        "objective: {maximize: value, regex: 'value (.*)'}\nfiles: [conf.json]\n"
        "search:\n  rate: {float: [0, 1]}\n  $SHIFT: [1, 2, 3]\n"
    )
    where, found = search(space, trials=4, ranks=3, run=("--strategy sharded",))
    best = found.best
    assert best.value == pytest.approx(best.config["rate"] + float(best.config["$SHIFT"]))
    assert found.command == f"SHIFT={best.config['$SHIFT']} matex run -n 3 --strategy sharded train.py"
    assert Path(found.files[0]).read_text() == f'{{"rate": {best.config["rate"]}}}'
    Path("conf.json").write_text("{}")
    with pytest.raises(SearchError, match=r"\{\{rate\}\} is searched, but is in none of conf.json"):
        setup.run_search(where, trials=5)
    assert [one.state for one in records(where)] == ["done"] * 4 + ["running"]


def test_in_a_terminal_the_table_is_drawn_in_place():
    full = {**launch.environment({"TERM": "xterm", "SLEEP": "0.7"}), "XDG_DATA_HOME": os.environ["XDG_DATA_HOME"]}
    words = [sys.executable, FAKES, "--search", "space.yaml", "--trials", "3", "train.py"]
    found = launch.in_terminal(words, full, (30, 120))
    assert found.returncode == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.stdout).replace("\r", "")
    assert re.search(r"1 +- +- +runs", shown) and re.search(r"\d +[\d.e-]+ +2 +best", shown)
    assert (
        re.search(r"3 of 3 trials, best val_loss [\d.e-]+ \(trial \d\)", shown) and "matex run -n 1 train.py" in shown
    )


def test_choices_with_brackets_are_shown_as_they_are(capsys):
    spec = space_file.read_space("search:\n  --x: ['[relu]', '[/relu]']\n", "space.yaml")
    screen = Screen(spec.space, spec.objective, 2, 1)
    for number, choice in enumerate(spec.space.parameters[0].values, 1):
        screen.show_end(Record(number, {"--x": choice}, "engine", state="done", value=1.0), None)
    capsys.readouterr()
    screen._console.print(screen.draw_table(20))
    shown = capsys.readouterr().out
    assert "[relu]" in shown and "[/relu]" in shown


def test_from_python():
    found = matex_tf.tune(
        "train.py", ["--fixed=1"], search={"--x": {"float": [0.0, 1.0]}, "--flag": [True, False, None], "--y": ["😀"]},
        objective={"minimize": "val_loss"}, trials=3, folder="mine",
    )  # fmt: skip
    assert found.folder == "mine" and found.best.config["--flag"] in ("True", "False", "None")
    words = r"train.py --fixed=1 --x=[\d.e-]+ --flag=(True|False|None) '--y=😀'"
    assert re.fullmatch(f"matex run -n 1 {words}", found.command)
    one = {"trials": np.int64(1), "parallel": np.int8(1), "ranks": np.int64(1), "seed": np.int64(3)}
    assert matex_tf.tune("train.py", search="space.yaml", rungs=[np.int64(1)], **one).trials == 1
    for wrong, error, message in (
        ({"search": {"--x": {"flaot": [0, 1]}}}, ValueError, "search, line 4: --x: there is no word flaot"),
        ({"search": {}, "trials": 0}, ValueError, "expected trials to be a whole number, 1 or more"),
        ({"search": {}, "engine": "forest"}, ValueError, "engine has to be one of random, smac, tpe"),
        ({"search": {}, "limit": "1:00"}, TypeError, "expected limit to be a number"),
        ({"search": "space.yaml", "objective": {"minimize": "x"}}, TypeError, "the objective stands in space.yaml"),
    ):
        with pytest.raises(error, match=message):
            matex_tf.tune("train.py", **wrong)
    with pytest.raises(FileNotFoundError, match="there is no file no.py"):
        matex_tf.tune("no.py", search={})
    assert callable(matex_tf.launch) and matex_tf.tune.space
