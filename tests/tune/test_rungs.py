"""Rungs: who goes on, that no epoch is made twice, whatever ends the search, and what cannot pause runs to its end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_trials as fakes
import pytest
from fake_trials import PLAYS

import launch
from matex_tf.tune import rungs, setup
from matex_tf.tune.database import Record
from matex_tf.tune.objective import Objective, Point
from matex_tf.tune.settings import Settings

LOSS = Objective()
HALVING = rungs.Rungs((1, 3, 9), LOSS)


def at(number, *values, state="paused"):
    return Record(number, {}, "engine", values, state=state, value=values[-1] if values else None)


def test_the_best_third_of_a_rung_goes_on_without_waiting():
    two = [at(1, 0.3), at(2, 0.2)]
    assert HALVING.choose_promoted(two) is None
    assert HALVING.choose_promoted([*two, at(3, 0.5)]) == at(2, 0.2)
    gone_on = [at(1, 0.3), at(2, 0.2, state="running"), at(3, 0.5)]
    assert HALVING.choose_promoted(gone_on) is None, "one of three has gone on"
    assert HALVING.choose_promoted([*gone_on, at(4, 0.9), at(5, 0.9), at(6, 0.1)]).number == 6
    higher = [at(4, 0.1, 0.4), at(5, 0.1, 0.3), at(6, 0.1, 0.5)]
    assert HALVING.choose_promoted([*gone_on, *higher, at(7, 0.05)]).number == 5
    assert HALVING.choose_promoted([*gone_on, *higher[:2], at(7, 0.05)]).number == 7
    assert rungs.Rungs((1,), Objective(maximize=True)).choose_promoted([at(1, 0.3), at(2, 0.2), at(3, 0.5)]).number == 3
    failed = at(4, 0.1, state="failed")
    assert HALVING.choose_promoted([*two, at(3, 0.5), failed]) is None, "what went on counts, also if it failed"


def test_the_last_is_the_best_of_the_highest_rung():
    trials = [at(1, 0.1), at(2, 0.3, 0.4), at(3, 0.5, 0.2), at(4, 0.2, 0.1, state="failed"), Record(5, {}, "engine")]
    assert HALVING.choose_promoted([trials[0], trials[2]], is_end=True).number == 3
    assert HALVING.choose_promoted(trials[3:], is_end=True) is None
    done = at(6, 0.9, state="done")
    assert [one.number for one in rungs.sort_trials([*trials[:3], done], LOSS)] == [6, 3, 2, 1]


@pytest.mark.parametrize("text", ["", "1,3,", "a", "1,-3", "0,1", "3,3", "3,1", "1.5"])
def test_wrong_rungs_are_refused(text):
    with pytest.raises(ValueError, match="expected rungs to be epochs"):
        rungs.read_rungs(text)


def test_an_epoch_that_came_again_counts_once():
    def line(epoch, value, **more):
        return {"epoch": epoch, "logs": {"val_loss": value}, **more}

    lines = [line(1, 3.0, call=0), line(2, 2.0, call=0), line(1, 9.0, call=1), line(2, 2.5, call=0), line(None, 1.0)]
    assert LOSS.read_curve(lines) == [Point(1, 3.0), Point(2, 2.5), Point(1, 9.0), Point(4, 1.0)]


# Whole searches, with trials that are small Pythons


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(setup, "find_own_command", lambda: fakes.command(tmp_path))
    fakes.prepare(tmp_path, PLAYS)


def search(space=fakes.SPACE, **settings):
    asked = Settings(**{"source": os.getcwd(), "name": "space.yaml", "rungs": (1, 3), **settings})
    where = setup.create_search(["train.py"], space, asked)
    return where, setup.run_search(where)


def records(where):
    database, found = setup.open_search(where)
    return database.list_trials(found.id)


def made(where, number):
    return list(map(int, (where / f"trial-{number}" / "place" / "made").read_text().split()))


def test_a_search_makes_no_epoch_twice_and_its_best_has_come_to_its_end(here, capfd):
    where, found = search(trials=18, parallel=2)
    all_of = records(where)
    assert found.best.state == "done" and found.best.value == min(one.value for one in all_of if one.state == "done")
    for one in all_of:
        epochs = {"done": 9, "paused": (1, 3)[len(one.rungs) - 1], "failed": 3}[one.state]
        assert made(where, one.number) == list(range(1, epochs + 1)) == [point.epoch for point in one.curve]
        assert (where / f"trial-{one.number}" / "state").exists() == (one.state == "paused"), "it may be promoted yet"
        if one.state == "failed":
            assert one.config["--x"] > 0.9 and one.why == "val_loss is nan"
        else:
            assert one.rungs == tuple(one.curve[rung - 1].value for rung in (1, 3)[: len(one.rungs)])
    went_on = [one for one in all_of if len(one.rungs) > 1 or one.state == "failed"]
    assert 6 <= len(went_on) <= 10 and min(all_of, key=lambda one: one.rungs[0]) in went_on
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert len(lines) == 1 + sum(len(one.rungs) + (one.state != "paused") for one in all_of)
    assert {line[3] for line in lines[1:]} <= {"paused", "best", "done", "failed:"}
    assert sum(line[3] == "paused" for line in lines) == sum(len(one.rungs) for one in all_of)
    assert setup.run_search(where, trials=27).trials == 27, "and further"
    assert all(made(where, one.number) == list(range(1, len(one.curve) + 1)) for one in records(where))


def test_of_trials_too_few_for_a_third_the_best_goes_on(here):
    where, found = search(trials=2)
    assert found.best.state == "done" and sorted(one.state for one in records(where)) == ["done", "paused"]


def test_the_objective_may_be_printed(here):
    prints = PLAYS.replace("    if epoch == pause", '    print("loss", value, flush=True)\n    if epoch == pause')
    Path("train.py").write_text(prints)
    _, found = search("objective: {regex: 'loss (.*)'}\nsearch:\n  --x: {float: [0, 0.8]}\n", trials=4)
    assert found.best.state == "done" and len(found.best.curve) == 9


def start(*words, **environment):
    full = {**launch.environment(environment), "XDG_DATA_HOME": os.environ["XDG_DATA_HOME"]}
    return subprocess.Popen(
        [sys.executable, fakes.__file__, *words], env=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ended_at_any_moment_it_goes_on_from_where_each_trial_was(here, how):
    draw, where = random.Random(0), Path("runs/tune-train-1")
    words = ["--search", "space.yaml", "--trials", "9", "--parallel", "2", "--rungs", "1,3", "train.py"]
    child = start(*words, SLEEP="0.05")
    until = time.monotonic() + 60
    while not (where / "search.json").exists() and time.monotonic() < until:
        time.sleep(0.01)
    for _ in range(4):
        time.sleep(draw.uniform(0.3, 0.8))
        child.send_signal(how)
        child.communicate()
        child = start("--resume", str(where), SLEEP="0.05")
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    all_of = records(where)
    assert [one.number for one in all_of] == list(range(1, 10)) and "done" in {one.state for one in all_of}
    twice = 0
    for one in all_of:
        epochs = made(where, one.number)
        assert sorted(set(epochs)) == list(range(1, len(one.curve) + 1)), "each epoch is there, and once in the curve"
        twice += len(epochs) - len(set(epochs))
    assert twice <= 2 * 4, "what comes again is the epoch that was under way in each slot"


def test_what_cannot_pause_says_so_and_runs_to_its_end(here, capfd):
    fakes.prepare(Path.cwd())  # which notes no call of fit
    where, _ = search(trials=3)
    assert {one.state for one in records(where)} == {"done"}
    said = capfd.readouterr().err
    assert said.count("has run to its end: trials pause in Keras' fit only, and no epoch of fit has ended") == 1
    Path("train.py").write_text(PLAYS.replace("if epoch == pause", "if False"))
    where, _ = search(trials=3)
    assert {one.state for one in records(where)} <= {"done", "failed"}
    assert capfd.readouterr().err.count("the state of its fit could not be saved (") == 1


def test_where_nothing_is_known_at_a_rung_trials_do_not_pause(here, capfd):
    Path("train.py").write_text(PLAYS.replace('"val_loss":', '"val_loss" if epoch > 4 else "loss":'))
    where, _ = search("search:\n  --x: {float: [0, 0.8]}\n", trials=3)
    assert [one.state for one in records(where)] == ["done"] * 3
    assert all(made(where, number) == list(range(1, 10)) for number in (1, 2, 3))
    said = capfd.readouterr().err
    assert said.count("trials run to their ends, as after 1 epochs there is nothing to judge them by") == 1


def test_a_trial_that_another_asked_to_end_goes_on(here):
    Path("train.py").write_text(PLAYS.replace("if epoch == pause", "if epoch in (2, pause)"))
    where, found = search("search:\n  --x: {float: [0, 0.8]}\n", trials=2)
    assert found.best.state == "done" and made(where, found.best.number) == list(range(1, 10))


# Real runs

REAL = """
import os, posix, sys
import numpy as np, keras
keras.backend.set_floatx("float64")
x = np.random.default_rng(0).normal(size=(64, 8)); y = x.sum(1, keepdims=True)
class Count(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        file = posix.open(sys.argv[1], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        posix.write(file, b"%d " % epoch)
        posix.close(file)
def fit(units, epochs):
    # Without an Input its weights are made in fit, after the seed of its Dropout.
    model = keras.Sequential([keras.layers.Dense(units, "tanh"), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.CosineDecay(0.05, epochs * 3)
    model.compile(keras.optimizers.Adam(rate), "mse")
    count = [Count()] if "matex_tf" not in sys.modules or sys.modules["matex_tf"].rank() == 0 else []
    model.fit(x, y, epochs=epochs, batch_size=16, validation_split=0.25, verbose=0, callbacks=count)
fit(4, 2)
fit(6, 4)
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks, pauses", [(2, (1, 4, 0)), pytest.param(1, (1, 2, 4, 0), marks=pytest.mark.more)])
def test_a_run_pauses_after_so_many_epochs_and_goes_on(tmp_path, ranks, pauses):
    script = launch.script_file("import keras\nkeras.utils.set_random_seed(3)\n" + REAL)
    curves = {}
    for name, started, ends in (("whole", 1, (0,)), ("paused", ranks, pauses)):
        counted, noted = tmp_path / f"{name}-epochs", tmp_path / f"{name}.jsonl"
        for pause in ends:
            env = {"MATEX_TRIAL": str(noted), "MATEX_STATE": str(tmp_path / "state"), "MATEX_PAUSE": str(pause)}
            ended = launch.matex_run(started, script, counted, env=env)
            assert ended.returncode == (75 if pause else 0), ended.output
            assert not pause or len(counted.read_text().split()) == pause
            assert not pause or f"the rung of {pause} epochs: saved at the end of" in ended.stderr
        assert counted.read_text() == "0 1 0 1 2 3 " and not (tmp_path / "state").exists()
        curves[name] = Objective().read_curve(map(json.loads, noted.read_text().splitlines()))
        assert [point.epoch for point in curves[name]] == [1, 2, 1, 2, 3, 4]
    whole, paused = ([point.value for point in curves[name]] for name in ("whole", "paused"))
    assert paused == pytest.approx(whole, rel=1e-10)
