"""Engines: what they propose is allowed and never the same twice, however many trials run; slow ones think ahead."""

from __future__ import annotations

import importlib.util
import math
import random
import subprocess
import sys
import threading
import time
from statistics import median

import pytest

from matex_tf.tune import space_file
from matex_tf.tune.engines import engine
from matex_tf.tune.engines.proposals import ENGINE, WARM, ExhaustedError, Proposals
from matex_tf.tune.space import make_key

SPACE = space_file.read_space(
    "search: {--lr: {log: [1e-5, 1e-1]}, --units: {log_int: [8, 256]}, --o: [adam, sgd], "
    "--m: {float: [0, 1], when: {--o: sgd}}, --f: flag}",
    "space.yaml",
).space
SMALL = space_file.read_space("search: {--a: [x, y, z], --b: {int: [1, 3], when: {--a: x}}}", "space.yaml").space
LIBRARIES = {"random": "random", "smac": "smac", "tpe": "optuna"}
NAMES = [
    pytest.param(
        name, marks=pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")
    )
    for name, library in LIBRARIES.items()
]


def cost(config):
    return (math.log10(config["--lr"]) + 2.7) ** 2 + (0.3 if config["--o"] == "sgd" else 0.0)


def take(proposals):
    until = time.monotonic() + 60
    while (found := proposals.take_next()) is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


def make(name, space=SPACE, seen=()):
    return Proposals(engine.load_engine(name)(space, 0), space, 0, seen)


@pytest.mark.parametrize("name", NAMES)
def test_no_configuration_comes_twice_whatever_runs_or_is_told_from_elsewhere(name):
    other = {"--lr": 0.002, "--units": 64, "--o": "adam", "--f": "on"}
    proposals, seen, running, draw = make(name, seen=[other]), [make_key(other)], [], random.Random(0)
    proposals.tell(other, cost(other))
    for _ in range(25):
        config, origin = take(proposals)
        assert SPACE.allows(config) and origin == ENGINE
        seen.append(make_key(config))
        running.append(config)
        while len(running) > 3:  # trials end in any order
            ended = running.pop(draw.randrange(len(running)))
            proposals.tell(ended, cost(ended))
    proposals.close()
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("removed", [0, 5])
def test_every_configuration_of_a_small_space_comes_once(name, removed):
    """Also after the search was resumed with other choices than before, of which `removed` were tried."""
    proposals, found = make(name, SMALL, seen=[{"--a": f"removed {number}"} for number in range(removed)]), []
    for _ in range(5):
        config, _ = take(proposals)
        found.append(make_key(config))
        proposals.tell(config, 1.0)
    assert set(found) == {make_key(config) for config in SMALL.all} and len(found) == 5
    with pytest.raises(ExhaustedError):
        take(proposals)
    proposals.close()


@pytest.mark.parametrize("name", NAMES[1:])
def test_what_is_learnt_is_used(name):
    proposals = make(name)
    costs = []
    for _ in range(30):
        config, _ = take(proposals)
        costs.append(cost(config))
        proposals.tell(config, costs[-1])
    proposals.close()
    draw = random.Random(0)
    by_chance = median(cost(SPACE.sample_config(draw)) for _ in range(500))
    assert median(costs[-10:]) < by_chance / 2


def test_a_random_search_that_goes_on_proposes_what_it_would_have():
    whole = [take(proposals)[0] for proposals in [make("random")] for _ in range(60)]
    second = make("random", seen=whole[:45])
    assert [take(second)[0] for _ in range(15)] == whole[45:]


class Slow:
    slow = True

    def __init__(self):
        self.asked, self.told, self.free = 0, [], threading.Event()

    def ask(self):
        self.free.wait(30)
        self.asked += 1
        return {"--a": "x", "--b": self.asked}

    def tell(self, config, value):
        if value < 0:
            raise ArithmeticError("the forest is gone")
        self.told.append((config, value))


def test_a_slow_engine_is_asked_ahead_in_a_thread_and_its_errors_are_not_lost():
    slow = Slow()
    proposals = Proposals(slow, SMALL, 0)
    assert proposals.take_next() is None and slow.asked == 0
    slow.free.set()
    assert take(proposals)[0] == {"--a": "x", "--b": 1}
    until = time.monotonic() + 30
    while slow.asked < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert slow.asked == 2, "the second was asked for before it was needed"
    proposals.tell({"--a": "x", "--b": 1}, 2.0)
    proposals.tell({"--a": "x", "--b": 1}, -1.0)
    with pytest.raises(ArithmeticError):
        for _ in range(500):
            proposals.take_next()
            time.sleep(0.01)
    assert slow.told == [({"--a": "x", "--b": 1}, 2.0)]
    proposals.close()


def test_an_engine_that_insists_is_passed_over():
    class Stubborn(Slow):
        slow = False

        def ask(self):
            return {"--a": "y"}

    stubborn = Stubborn()
    proposals = Proposals(stubborn, SMALL, 0)
    proposals.tell({"--a": "y"}, 3.0)
    found = [take(proposals)[0] for _ in range(5)]
    assert {make_key(config) for config in found} == {make_key(config) for config in SMALL.all}
    assert stubborn.told.count(({"--a": "y"}, 3.0)) > 1, "it is told again what it asks again"


def test_what_is_begun_with_comes_first_and_once():
    proposals = make("random", SMALL, seen=[{"--a": "z"}])
    assert proposals.put_first([{"--a": "y"}, {"--a": "z"}]) == 1
    assert take(proposals) == ({"--a": "y"}, WARM)
    assert all(take(proposals)[0]["--a"] == "x" for _ in range(3))


@pytest.mark.parametrize("name, package", [("smac", "SMAC3"), ("tpe", "Optuna")])
def test_a_missing_library_is_said_with_the_command_that_gets_it(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, {"smac": "ConfigSpace", "tpe": "optuna"}[name], None)
    monkeypatch.delitem(sys.modules, f"matex_tf.tune.engines.{engine.NAMES[name]}", raising=False)
    with pytest.raises(
        engine.EngineMissingError, match=rf"--engine {name} needs {package}.*pip install 'matex_tf\[tune\]'"
    ):
        engine.load_engine(name)


def test_a_script_that_trains_loads_none_of_it():
    program = (
        "import matex_tf, sys; "
        "assert not {'yaml', 'sqlite3', 'optuna', 'smac'} & sys.modules.keys(); "
        "assert not [name for name in sys.modules if name.startswith('matex_tf.tune')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_random_search_loads_no_library():
    program = (
        "import sys; from matex_tf.tune.engines import engine; engine.load_engine('random'); "
        "assert not {'optuna', 'smac', 'ConfigSpace'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
