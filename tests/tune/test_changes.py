"""A search that goes on with a file that was mended: what may change is taken from it, the rest is refused."""

from __future__ import annotations

import os
from pathlib import Path

import fake_trials as fakes
import pytest

from matex_tf.launch import cli
from matex_tf.tune import setup
from matex_tf.tune.changes import list_changes
from matex_tf.tune.engines.random_search import RandomSearch
from matex_tf.tune.space_file import read_space

pytestmark = pytest.mark.waits


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(setup, "find_own_command", lambda: fakes.command(tmp_path))
    fakes.prepare(tmp_path)


def write(text):
    Path("space.yaml").write_text(text)


def tune(capfd, *words):
    code = cli.main(["tune", *words])
    return code, "".join(capfd.readouterr())


def list_trials():
    database, found = setup.open_search(Path("runs/tune-train-1"))
    return database.list_trials(found.id)


def test_a_file_that_was_wrong_is_mended(capfd):
    """Of the flag, and of the objective, each of which no trial comes through."""
    write("objective: {minimize: lost}\nsearch:\n  --y: {float: [0, 1]}\n")
    code, text = tune(capfd, "--search", "space.yaml", "--trials", "8", "train.py")
    assert code == 1 and "trials 1, 2, 3 have failed alike" in text and "with --search SPACE.yaml" in text
    write("objective: {minimize: lost}\nsearch:\n  --x: {float: [0, 1]}\n")
    code, text = tune(capfd, "--resume", "runs/tune-train-1")
    assert code == 1 and "trials 4, 5, 6 have failed alike" in text
    assert "space.yaml is not as it was; the search goes on as it began (--search space.yaml takes it)" in text
    code, text = tune(capfd, "--resume", "runs/tune-train-1", "--search", "space.yaml", "--trials", "9")
    assert code == 1 and "trials 7, 8, 9 have failed alike" in text and "lost" in text
    assert "--y: {float: [0, 1]}, now not there; --x: not there, now {float: [0, 1]}" in text
    write(fakes.SPACE)
    code, text = tune(capfd, "--resume", "runs/tune-train-1", "--search", "space.yaml", "--trials", "11")
    assert code == 0 and "best of 11 trials" in text and "objective: {minimize: lost" in text
    trials = list_trials()
    assert [one.state for one in trials] == ["failed"] * 9 + ["done"] * 2
    assert [*trials[0].config, *trials[-1].config] == ["--y", "--x"]
    assert cli.main(["report", "runs/tune-train-1"]) == 0
    assert "2 done, of 11" in Path("runs/tune-train-1/report.html").read_text(), "what was changed is recorded"
    code, text = tune(capfd, "--resume", "runs/tune-train-1")
    assert code == 0 and "best of 11 trials" in text and "is not as it was" not in text


def test_ranges_may_change_and_what_trials_are_told_apart_by_may_not(capfd, monkeypatch):
    told = []
    monkeypatch.setattr(RandomSearch, "tell", lambda self, config, cost: told.append(config["--x"]))
    write("search:\n  --x: {float: [0, 0.1]}\n")
    assert tune(capfd, "--search", "space.yaml", "--trials", "2", "train.py")[0] == 0
    for text, said in (
        ("objective: {maximize: val_loss}\nsearch:\n  --x: {float: [0, 1]}\n",
         "objective: {minimize: val_loss}, now {maximize: val_loss}"),
        ("search:\n  --x: {float: [0, 0.1]}\n  --z: [a, b]\n", "--z: not there, now [a, b]"),
    ):  # fmt: skip
        write(text)
        code, text = tune(capfd, "--resume", "runs/tune-train-1", "--search", "space.yaml", "--trials", "4")
        assert code == 2 and said in text and "Ranges and choices may change" in text
        assert len(list_trials()) == 2
    write("search:\n  --x: {float: [0.2, 0.4]}\n")
    code, text = tune(capfd, "--resume", "runs/tune-train-1", "--search", "space.yaml", "--trials", "4")
    assert code == 0 and "--x: {float: [0, 0.1]}, now {float: [0.2, 0.4]}" in text
    values = [one.config["--x"] for one in list_trials()]
    assert told == values, "those of the first range are no news to an engine that knows another"
    assert max(values[:2]) <= 0.1 and min(values[2:]) >= 0.2 and max(values[2:]) <= 0.4
    assert cli.main(["report", "runs/tune-train-1"]) == 0


def test_a_trial_that_had_not_ended_is_not_made_with_words_that_are_gone(capfd):
    where = setup.create_search(
        ["train.py"], "search:\n  --y: {int: [1, 9]}\n", setup.Settings(source=os.getcwd(), trials=2)
    )
    database, found = setup.open_search(where)
    database.add_trial(found.id, {"--y": 3}, "engine")
    database.close()
    assert tune(capfd, "--resume", str(where), "--search", "space.yaml")[0] == 0
    assert [(one.state, *one.config) for one in list_trials()] == [("failed", "--y"), ("done", "--x")]


ALL = "objective: {{maximize: a}}\nsearch:\n  --x: {}\n  --k: [a, b]\n  --f: flag\n  --d: {{int: [1, 3]{}}}\n"


@pytest.mark.parametrize(
    "x, when, ranges, others",
    [
        ("{log: [1e-4, 1]}", "", [], []),
        ("{log: [1e-4, 2]}", "", ["--x: {log: [1e-4, 1]}, now {log: [1e-4, 2]}"], []),
        ("{float: [1e-4, 1]}", "", ["--x: {log: [1e-4, 1]}, now {float: [1e-4, 1]}"], []),
        ("[p, q]", "", ["--x: {log: [1e-4, 1]}, now [p, q]"], []),
        ("{log: [1e-4, 1]}", ", when: {--k: a}", [], ["--d: {int: [1, 3]}, now {int: [1, 3], when: {--k: a}}"]),
    ],
)
def test_what_has_changed(x, when, ranges, others):
    before = read_space(ALL.format("{log: [1e-4, 1]}", ""), "a.yaml")
    assert list_changes(before, read_space(ALL.format(x, when), "a.yaml")) == (ranges, others)


def test_a_parameter_may_be_named_as_a_part_of_the_file():
    text = "objective: {{minimize: {}}}\nfiles: [config.yaml]\nsearch:\n  objective: {}\n  files: [c, d]\n"
    before = read_space(text.format("a", "[x, y]"), "a.yaml")
    assert list_changes(before, read_space(text.format("b", "[x, z]"), "a.yaml")) == (
        ["objective: [x, y], now [x, z]"],
        ["objective: {minimize: a}, now {minimize: b}"],
    )
