"""The report of a search: every trial and parameter is in it, it asks nothing of a network, and names what matters."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import fake_trials as fakes
import pytest
from html_page import CHROMIUM, Page, assert_asks_for_nothing, charts_of, click_on, curves_of, shown_in

from matex_tf.launch import cli
from matex_tf.tune import setup, space_file
from matex_tf.tune.database import Record
from matex_tf.tune.objective import Point
from matex_tf.tune.report import coordinates, importance, page
from matex_tf.tune.settings import Settings

TEXT = """
objective: {minimize: val_loss}
search:
  --lr: {log: [1e-4, 1e-1]}
  --units: {int: [1, 64]}
  --o: [adam, sgd]
  --momentum: {float: [0, 1], when: {--o: sgd}}
"""
SPACE = space_file.read_space(TEXT, "space.yaml").space
LR, UNITS, CHOICE, MOMENTUM = SPACE.parameters


def drawn(count):
    draw = random.Random(0)
    return [SPACE.sample_config(draw) for _ in range(count)]


def importances(configs):
    return {one.name: importance.measure_importance(one, configs) for one in SPACE.parameters}


def test_what_decides_has_the_greatest_importance():
    by_lr = importances(sorted(drawn(80), key=lambda one: (importance_of(one) - 0.4) ** 2))
    assert by_lr["--lr"] > 0.6 and max(by_lr["--units"], by_lr["--o"], by_lr["--momentum"]) < 0.25
    by_choice = importances(sorted(drawn(80), key=lambda one: (one["--o"], one["--units"])))
    assert by_choice["--o"] > 0.6 > by_choice["--units"] > by_choice["--lr"]
    active = [one for one in drawn(80) if "--momentum" in one]
    by_momentum = importances(sorted(active, key=lambda one: one["--momentum"]))
    assert by_momentum["--momentum"] > 0.8 and by_momentum["--o"] is None, "there is one choice only"
    assert set(importances(drawn(7)).values()) == {None}


def test_equal_values_are_one_group_and_values_of_an_earlier_file_are_in_none():
    draw = random.Random(1)
    few = space_file.read_space("search:\n  --n: {int: [1, 2]}\n  --c: [x, y, z]\n", "a").space
    now = space_file.read_space("search:\n  --n: {int: [1, 2]}\n  --c: [x, y]\n", "a").space
    configs = [few.sample_config(draw) for _ in range(60)]
    assert max(importance.measure_importance(one, configs) for one in few.parameters) < 0.1, "it is by chance"
    valid = [config for config in configs if config["--c"] != "z"]
    found, want = (importance.measure_importance(now.parameters[1], some) for some in (configs, valid))
    assert found == want < 0.1
    (number,) = space_file.read_space("search:\n  --c: {int: [1, 9]}\n", "a").space.parameters
    assert importance.measure_importance(number, configs) is None


def importance_of(config):
    return coordinates.compute_position(LR, config["--lr"])


def test_places_on_axes():
    assert [round(coordinates.compute_position(LR, value), 3) for value in (1e-4, 1e-3, 1e-1)] == [0, 0.333, 1]
    assert [coordinates.compute_position(UNITS, value) for value in (1, 64)] == [0, 1]
    assert [coordinates.compute_position(CHOICE, value) for value in ("adam", "sgd")] == [0, 1]


def search(tmp_path, trials, **settings):
    """A search of which these are written down."""
    where = setup.create_search(
        ["train.py", "--data", "<b>"], TEXT,
        Settings(source=str(tmp_path), name="space.yaml", rungs=(1,), **settings),
        database=str(tmp_path / "tune.db"), folder=str(tmp_path / "search"),
    )  # fmt: skip
    database, found = setup.open_search(where)
    for config, became in zip(drawn(len(trials)), trials):
        record = database.add_trial(found.id, config, "engine")
        if became:
            database.update_trial(found.id, Record(record.number, config, "engine", **became))
    return where


def ended(value, epochs=3, state="done", **more):
    curve = tuple(Point(epoch + 1, value + 1 / (epoch + 1)) for epoch in range(epochs))
    return {"state": state, "value": value, "seconds": 2.0, "rungs": (value + 1,), "curve": curve, **more}


TRIALS = [
    *(ended(0.5 + number / 10) for number in range(10)), ended(0.1, 1, "paused"), ended(1e9),
    {"state": "failed", "why": "exit code <3>", "seconds": 1.0}, None,
]  # fmt: skip


def test_the_page_has_every_trial_and_parameter(tmp_path):
    where = search(tmp_path, TRIALS)
    text = page.format_page(where)
    read = Page(text)
    assert_asks_for_nothing(text, read)
    assert len(text) < 150_000 and len(read.of("svg")) == 1 and len(read.of("figure")) == 3
    lines = [one["data-of"] for one in read.of("path") if one.get("data-of", "").startswith("trial ")]
    lines += curves_of(text, "val_loss")
    assert list(curves_of(text, "best so far")) == ["best so far"]
    # Curves and parameters; the one that failed has no curve, the one that runs is in neither.
    assert {name: lines.count(name) for name in lines} == {
        **{f"trial {number}": 2 for number in range(1, 13)}, "trial 13": 1
    }  # fmt: skip
    assert re.findall(r"<tr><td>(\d+)<td>", text) == [*map(str, [*range(1, 11), 12, 11, 13])], "best first, then paused"
    assert "12 paused" not in text and "11 done, 1 paused, 1 failed, 1 running, of 50" in text
    assert "matex run -n 1 train.py --data &#x27;&lt;b&gt;&#x27; --lr=" in text and "exit code &lt;3&gt;" in text
    for name in ("--lr", "--units", "--o", "--momentum"):
        assert f'text-anchor="middle">{name}</text>' in text and f"<th>{name}" in text
    assert len(read.of("button")) == 12 and "val_loss 0.5, trial 1" in text


def test_values_that_have_diverged_leave_the_others_to_be_seen(tmp_path):
    text = page.format_page(search(tmp_path, TRIALS))
    chart = charts_of(text)["charts"][0]
    assert chart["most"] < 10 and max(max(one["values"][0]) for one in chart["curves"]) > 1e8


def test_a_search_that_has_just_begun_has_a_page(tmp_path):
    for number, trials in enumerate(([], [None], [{"state": "failed", "why": "exit code 1"}])):
        (tmp_path / str(number)).mkdir()
        text = page.format_page(search(tmp_path / str(number), trials))
        Page(text)
        assert "no trial has come to a value" in text and "Fewer than 8 trials: not computed" in text


def test_the_command_knows_a_search_by_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(setup, "find_own_command", lambda: fakes.command(tmp_path))
    fakes.prepare(tmp_path)
    where = setup.create_search(["train.py"], fakes.SPACE, Settings(trials=3, source=os.getcwd(), name="space.yaml"))
    setup.run_search(where)
    capsys.readouterr()
    assert cli.main(["report", str(where)]) == 0
    assert capsys.readouterr().out == f"{where / 'report.html'}\n"
    assert Page((where / "report.html").read_text()).of("button")
    assert cli.main(["report", str(where), "--plan", "plan.json"]) == 2
    assert "--plan goes with the report of a run; this is a search" in capsys.readouterr().err
    Path("data/matex/tune-3.db").unlink()
    assert cli.main(["report", str(where)]) == 1 and "is not in" in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_a_browser_brings_out_a_trial_in_all_pictures(tmp_path):
    shown = shown_in(CHROMIUM, page.format_page(search(tmp_path, TRIALS)), tmp_path, click_on("trial 2"))
    lines = [one for one in shown.of("path") if one.get("data-of", "").startswith("trial ")]
    assert sum("picked" in one["class"] for one in lines) == 1
    assert all(("dim" in one["class"].split()) == (one["data-of"] != "trial 2") for one in lines)
