"""Ranks take turns at the items of a `PyDataset`, where an item is a function of its number; results are alone's."""

import inspect
import math
import threading
import time
from multiprocessing import dummy
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from comparing import differences, stored
from resilience.test_elastic import run

import launch
from matex_tf.input import items, turns
from matex_tf.steps import batches

pytestmark = pytest.mark.skipif(not hasattr(keras.utils, "PyDataset"), reason="Keras 2 has no PyDataset")
CASES = Path(__file__).with_name("turns_cases.py")
ITEMS = 23
BY_TURNS = ("plain", "tested", "ordered", "threads", "structured", "classes", "eager")
BY_ALL = {"draws globally": "DrawsGlobally", "draws sometimes": "DrawsSometimes", "draws elsewhere": "DrawsElsewhere"}
BY_ALL |= {"counts": "Counts", "notes": "Notes", "two steps at once": ""}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_the_results_are_those_of_the_script_alone_and_each_item_is_made_by_one_rank(tmp_path, ranks):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    launch.run_alone(CASES, alone).check()
    result = launch.run(ranks, CASES, together, env=launch.ALL_FILES, timeout=300).check()
    want, found = stored(alone)[0], stored(together, ranks)
    results = {name: array for name, array in want.items() if not name.endswith(("|made", "|gathered", "|text"))}
    wrong = differences(results, found)
    assert not wrong, "\n".join(wrong)
    for name in BY_TURNS:
        made, total = [int(one[f"{name}|made"]) for one in found], int(want[f"{name}|made"])
        compared = 3 * (len(items.FIRST) + 1) + 2 * math.log2(total)  # of fit, evaluate and predict
        assert sum(made) >= total and max(made) <= total / ranks + compared, (name, made)
    passes = 2 * 2 + 1 + 1  # of fit with its validation, evaluate and predict
    assert all(0 < one["tested|gathered"] <= passes + 4 * math.log2(passes * ITEMS) for one in found)
    for name, kind in BY_ALL.items():
        made, total = [int(one[f"{name}|made"]) for one in found], int(want[f"{name}|made"])
        assert made[0] == total <= min(made) and max(made) <= total + len(items.FIRST), (name, made)
        assert result.stderr.count(f"every rank makes all items of {kind}:") == bool(kind)
    # From Keras 3.16 on the number of the epoch decides on the order, and no draw of Python's random.
    from keras.src.trainers.data_adapters import py_dataset_adapter

    by_epoch = "epoch" in inspect.signature(py_dataset_adapter.OrderedEnqueuer.start).parameters
    assert result.stderr.count("the items of Items into different orders") == (not by_epoch)
    assert result.stderr.count("of Remembers, at whose items ranks take turns") == 1
    for one in found:
        text = str(one["told|text"])
        assert "item 9 of Fails" in text and "rank " in text and "no file of item 9" in text, text


class Breaks(keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else object):
    """Item 3 fails."""

    def __len__(self):
        return 6

    def __getitem__(self, number):
        if number == 3:
            raise FileNotFoundError("no file of item 3")
        return np.full((2, 1), number), np.zeros((2, 1))


def test_a_pass_without_turns_ends_with_an_item_that_fails():
    """As Keras' generator does."""
    from keras.src.trainers.data_adapters import py_dataset_adapter

    adapter = py_dataset_adapter.PyDatasetAdapter(Breaks())
    source = turns.Source(adapter, "Breaks", 0.1)
    source.start_sharing(adapter.get_tf_dataset())
    source.choice.is_shared = False
    iterator = source.iterate(iter)
    whole_pass = batches.find_shared_batches(iterator)
    assert [int(whole_pass.take().take_whole()[0][0, 0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(tf.errors.OpError, match="no file of item 3"):
        whole_pass.take()
    with pytest.raises(tf.errors.OutOfRangeError):
        whole_pass.take()


class Counts(Breaks):
    """No item fails."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __len__(self):
        return 99

    def __getitem__(self, number):
        self.made.append(number)
        return np.full((2, 1), float(number)), np.zeros((2, 1))


def makers():
    return [thread for thread in threading.enumerate() if isinstance(thread, dummy.DummyProcess)]


def wait_until(holds):
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


def test_items_are_made_ahead_until_their_iterator_is_dropped():
    from keras.src.trainers.data_adapters import py_dataset_adapter

    made = Counts()
    adapter = py_dataset_adapter.PyDatasetAdapter(made)
    source = turns.Source(adapter, "Counts", 0.1)
    source.start_sharing(adapter.get_tf_dataset())
    source.iterate(iter)
    del made.made[:]
    wait_until(lambda: not makers())
    iterator = source.make_ahead(range(1, 99, 2))
    wait_until(lambda: len(made.made) > 2)  # although none was taken
    assert [source.take_from(iterator)[0].numpy()[0, 0] for _ in range(3)] == [1, 3, 5]
    assert makers() and len(made.made) < 12
    del iterator
    wait_until(lambda: not makers())


LOST = """
import os, posix, signal, sys
import keras, numpy as np
from matex_tf.input import passes
from matex_tf.world import world

mark, place, at = sys.argv[1:]
keras.utils.set_random_seed(1)
keras.backend.set_floatx("float64")
passes._MEASURED_ITEMS = float("inf")
exchanged = []

def lose(original):
    def call(turn, *args):
        exchanged.append(0)
        holds = (turn._tensors is not None) == (place == "maker")
        if holds and len(exchanged) >= int(at) and world.get_world().rank and not posix.access(mark, posix.F_OK):
            posix.close(posix.open(mark, os.O_CREAT | os.O_WRONLY))
            os.kill(os.getpid(), signal.SIGKILL)
        return original(turn, *args)
    return call

class Items(keras.utils.PyDataset):
    def __len__(self):
        return 7
    def __getitem__(self, number):
        rows = np.random.default_rng(number).normal(size=(6, 4))
        return rows, rows[:, :1] * 2 + 1

if "mpi4py" in sys.modules:
    passes.SentItem._exchange = lose(passes.SentItem._exchange)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
print("LOSSES", *model.fit(Items(), epochs=3, verbose=0).history["loss"], *model.predict(Items(), verbose=0)[:, 0])
"""


PROCESSES = """
import keras, numpy as np

class Items(keras.utils.PyDataset):
    def __len__(self):
        return 40
    def __getitem__(self, number):
        rows = np.random.default_rng(number).normal(size=(6, 4))
        return rows, rows[:, :1] * 2 + 1

keras.utils.set_random_seed(1)
items = Items(workers=2, use_multiprocessing=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(items, epochs=1, verbose=0)
model.fit(items, steps_per_epoch=3, shuffle=False, verbose=0)  # its processes are still at work at the end
print("LOSS", model.evaluate(items, verbose=0))
"""


@pytest.mark.timeout(300)
def test_a_run_whose_state_is_saved_ends_the_processes_that_make_items(tmp_path):
    """They are forks of a rank, and handle no signals as it does."""
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    want, found = (
        [float(line.split()[1]) for line in one.check().stdout.splitlines() if line.startswith("LOSS")]
        for one in (
            launch.run_alone(script),
            launch.matex_run(2, script, env={"MATEX_STATE": str(tmp_path / "state")}, timeout=120),
        )
    )
    assert len(want) == len(found) == 1 and np.allclose(found, want, rtol=1e-5)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "place, at",
    [
        ("maker", 9),
        pytest.param("other", 9, marks=pytest.mark.more),
        pytest.param("maker", 23, marks=pytest.mark.more),
    ],
)
def test_the_item_of_a_lost_rank_is_made_by_another(tmp_path, place, at):
    script = tmp_path / "script.py"
    script.write_text(LOST)
    want = launch.run_alone(script, tmp_path / "mark", place, at).check()
    found = run(3, script, [tmp_path / "mark", place, at], tmp_path / "state").check()
    assert "2 go on without it" in found.stderr and "restart" not in found.stderr, found.output
    got, losses = (
        np.array([line.split()[1:] for line in one.stdout.splitlines() if line.startswith("LOSSES")], float)
        for one in (found, want)
    )
    assert got.shape == losses.shape == (1, 45) and np.allclose(got, losses, rtol=1e-10)
