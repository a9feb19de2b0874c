"""The search space: what a file may ask for, what a wrong one is answered, and what is drawn from it."""

from __future__ import annotations

import math
import random

import pytest

from matex_tf.tune import space_file
from matex_tf.tune.objective import Objective, Point
from matex_tf.tune.space import Choice, Number, format_value, make_key

FULL = """\
objective: {maximize: val_accuracy, take: best}
files: [conf.yaml]
search:
  --momentum: {float: [0.8, 0.99], when: {--optimizer: sgd}}
  --lr: {log: [1e-5, 1e-1]}
  --units: {log_int: [16, 512]}
  --layers: {int: [1, 3]}
  --optimizer: [adam, sgd, rmsprop]
  --batch: {choice: [32, 64]}
  --augment: flag
  $SEED: [1, 2, 3]
  rate: {float: [0, 1], when: {--augment: "on"}, otherwise: none}
"""


def read(text):
    return space_file.read_space(text, "space.yaml")


def search(*lines):
    return read("search:\n" + "".join(f"  {line}\n" for line in lines))


def test_what_a_file_asks_for():
    asked = read(FULL)
    found = {one.name: one for one in asked.space.parameters}
    assert found["--lr"] == Number("--lr", 1e-5, 0.1, log=True)
    assert found["--units"] == Number("--units", 16, 512, log=True, whole=True)
    assert found["--momentum"].when == (("--optimizer", ("sgd",)),)
    assert found["--augment"] == Choice("--augment", ("off", "on"), is_flag=True)
    assert found["$SEED"].choices == ("1", "2", "3") and found["--batch"].choices == ("32", "64")
    assert list(found).index("--optimizer") < list(found).index("--momentum")
    assert asked.objective == Objective("val_accuracy", maximize=True, take="best")
    assert asked.files == ("conf.yaml",) and found["rate"].otherwise == "none"


def test_texts_are_told_as_they_are_written():
    (choice,) = search("--x: [1e-3, True, no, 007]").space.parameters
    assert choice.choices == ("1e-3", "True", "no", "007")


def test_the_objective_is_the_validation_loss_unless_told():
    assert search("--x: [a, b]").objective == Objective("val_loss")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "it is empty"),
        ("search: {--x: [a, b}", r"space.yaml, line 1: .*It is read as YAML"),
        ("serach:\n  --x: [a, b]", "line 1: the file: there is no word serach; did you mean search"),
        ("objective: {minimize: a}", "there is no `search:`"),
        ("search:\n  --lr: {lgo: [1, 2]}", "line 2: --lr: there is no word lgo; did you mean log"),
        ("search:\n  --lr: {log: [0.1, 1e-5]}", "line 2: --lr: expected the least first"),
        ("search:\n  --lr: {log: [0, 1]}", "--lr: log needs numbers above 0; given 0"),
        ("search:\n  --lr: {log: [a, 1]}", "--lr: expected a number; given 'a'"),
        ("search:\n  --lr: {float: [nan, 1]}", "--lr: expected a number; given 'nan'"),
        ("search:\n  --n: {int: [1, 2.5]}", "--n: expected a whole number; given 2.5"),
        ("search:\n  --n: {int: [1]}", r"--n: expected int: \[LEAST, MOST\]"),
        ("search:\n  --n: {int: [1, 2], float: [1, 2]}", "expected one of .*; given int, float"),
        ("search:\n  --n: {when: {--m: a}}", "expected one of .*; given none"),
        ("search:\n  --n: 3", "--n: expected a list of choices, or a range"),
        ("search:\n  --n: [16, 512]", r"may be a range or two choices: write \{float: \[16, 512\]\}"),
        ("search:\n  --n: []", "--n: expected a list"),
        ("search:\n  --n: [a, a]", "--n: a is given twice"),
        ("search:\n  --n: [[a], b]", "--n: expected a single value"),
        ("search:\n  --n: [a, b]\n  --n: [a, c]", "line 3: search: --n is given twice"),
        ("search:\n  two words: [a, b]", "two words: expected a flag"),
        ("search:\n  x: [a, b]", r"x is a placeholder, \{\{x\}\}, but no file that contains it is named"),
        ("files: a.yaml\nsearch:\n  --x: [a, b]", "files are named, but no searched parameter"),
        ("search:\n  $X: flag", "only an option of the command line, as --X, may be a flag"),
        (
            "search:\n  --o: [a, b]\n  --m: {int: [1, 2], when: {--p: a}}",
            "line 3: .*no parameter --p; did you mean --o",
        ),
        ("search:\n  --o: [adam, b]\n  --m: {int: [1, 2], when: {--o: adma}}", "no choice adma; did you mean adam"),
        ("search:\n  --o: {int: [1, 2]}\n  --m: {int: [1, 2], when: {--o: 1}}", "--o is a range"),
        (
            "search:\n  --a: {choice: [x, y], when: {--b: x}}\n  --b: {choice: [x, y], when: {--a: x}}",
            "line 2: --a: its condition depends, through others, on itself",
        ),
        (
            "search:\n  --a: [x, y]\n  --b: {int: [1, 2], when: {--a: x}, otherwise: z}",
            "`otherwise` applies to placeholders",
        ),
        ("files: f\nsearch:\n  --a: [x, y]\n  b: {int: [1, 2], when: {--a: x}}", "its text where"),
        ("objective: {minimise: a}\nsearch:\n  --a: [x, y]", "no word minimise; did you mean minimize"),
        ("objective: {minimize: a, maximize: b}\nsearch:\n  --a: [x, y]", "minimize or maximize, not both"),
        ("objective: {take: best}\nsearch:\n  --a: [x, y]", "expected minimize, maximize or regex"),
        ("objective: {minimize: a, take: lst}\nsearch:\n  --a: [x, y]", "no word for take lst; did you mean last"),
        ("objective: {regex: '('}\nsearch:\n  --a: [x, y]", r"regex '\(': "),
        ("objective: {regex: '(a)(b)'}\nsearch:\n  --a: [x, y]", "several groups"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(text, message):
    with pytest.raises(space_file.SpaceError, match=message):
        read(text)


def test_what_is_drawn_is_allowed_and_conditions_hold():
    space, draw = read(FULL).space, random.Random(0)
    drawn = [space.sample_config(draw) for _ in range(300)]
    assert all(space.allows(config) for config in drawn)
    assert all(("--momentum" in config) == (config["--optimizer"] == "sgd") for config in drawn)
    assert {config["--layers"] for config in drawn} == {1, 2, 3}
    assert 0.4 < sum(config["--lr"] < 1e-3 for config in drawn) / 300 < 0.6, "as many below the middle by logarithm"
    one = drawn[0]
    assert not space.allows({**one, "--new": 1}) and not space.allows({**one, "--layers": 4})
    assert not space.allows({name: value for name, value in one.items() if name != "--lr"})
    assert not space.allows({**one, "--layers": 2.0}) and not space.allows({**one, "--layers": True})


def test_each_whole_number_is_drawn_as_often():
    number = Number("n", 1, 4, whole=True)
    places = [number.compute_value((place + 0.5) / 1000) for place in range(1000)]
    assert [places.count(value) for value in (1, 2, 3, 4)] == [250] * 4


@pytest.mark.parametrize(
    "low, high, log", [(1e-5, 0.1, True), (0.9, 0.9999, False), (0.9, 0.91, True), (-3, 1e4, False)]
)
def test_rounded_numbers_are_short_stay_within_and_are_told_apart(low, high, log):
    number = Number("x", low, high, log=log)
    values = [number.compute_value(place / 500) for place in range(501)]
    assert values[0] == low and values[-1] == high and values == sorted(set(values))
    assert all(number.allows(value) and float(format_value(value)) == value for value in values)
    assert all(len(format_value(value)) <= 12 for value in values)
    assert all(number.round_value(value) == value for value in values)


def test_all_there_is_of_a_small_space():
    space = search("--o: [a, b]", "--m: {int: [1, 3], when: {--o: a}}").space
    assert {make_key(config) for config in space.all} == {
        *(make_key({"--o": "a", "--m": number}) for number in (1, 2, 3)), make_key({"--o": "b"})
    }  # fmt: skip
    assert search("--o: [a, b]", "--m: {float: [1, 3]}").space.all is None
    assert search(*(f"--m{place}: {{int: [1, 30]}}" for place in range(3))).space.all is None


LINES = [{"epoch": 1, "logs": {"loss": 2.0, "val_loss": 1.0}}, {"task": {}}, {"epoch": 2, "logs": {"val_loss": 3.0}}]


def test_the_curve_of_what_is_logged():
    curve = Objective().read_curve(LINES)
    assert curve == [Point(1, 1.0), Point(2, 3.0)]
    assert Objective().choose_value(curve) == 3.0 and Objective(take="best").choose_value(curve) == 1.0
    assert (
        Objective(maximize=True, take="best").choose_value(curve) == 3.0
        and Objective(maximize=True).compute_cost(3.0) == -3.0
    )
    assert Objective(take="best").choose_value([Point(1, 1.0), Point(2, math.nan)]) == 1.0
    assert math.isnan(Objective().choose_value([Point(1, 1.0), Point(2, math.nan)]))
    assert Objective("loss").read_curve([{"epoch": None, "logs": {"loss": 1.0}}]) == [Point(1, 1.0)]


def test_the_curve_of_what_is_printed():
    output = "test loss 9\r\ntest loss 7\rtest loss 5.5\r\nand nothing\r\n"
    assert Objective(regex=r"test loss ([\d.]+)").read_curve([], output) == [Point(1, 9.0), Point(2, 5.5)]
    assert Objective(regex=r"loss (\S+)").read_curve([], "loss 3\rloss 2\r") == [Point(1, 2.0)], "nothing follows"
    assert Objective(regex=r"loss (\S+)").read_curve([], "x" * 1_000_000 + "\nloss 2\n") == [Point(1, 2.0)]
    assert Objective(regex=r"^\d+$").read_curve([], "a 1\r\n2\r\n") == [Point(1, 2.0)]
    with pytest.raises(ValueError, match="matched 'abc', which is not a number"):
        Objective(regex="loss (.*)").read_curve([], "loss abc\n")


def test_why_the_objective_is_missing():
    assert "no epoch of Keras' fit ended" in Objective().explain_missing([])
    assert "fit has no validation data" in Objective().explain_missing([{"logs": {"loss": 1.0}}])
    assert "did you mean val_accuracy" in Objective("val_acuracy").explain_missing([{"logs": {"val_accuracy": 1.0}}])
    assert "nothing in its output" in Objective(regex="a").explain_missing(LINES)
