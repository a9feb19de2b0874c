"""Whether an item of a Python object draws random numbers is seen, and the draws are taken back."""

import random
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from matex_tf.input import items, items_ahead, object_states

OF_KERAS = hasattr(keras, "random")  # Keras 3


class Holder:
    """As a `PyDataset` holds generators."""

    def __init__(self):
        self.layers = [{"numpy": np.random.default_rng(1), "legacy": np.random.RandomState(1)}]
        self.python, self.tensorflow = random.Random(1), tf.random.Generator.from_seed(1)
        self.keras = keras.random.SeedGenerator(1) if OF_KERAS else None
        within = np.random.default_rng(2)
        self.augment = lambda: within.normal()
        self.array = np.zeros(5)
        self.itself = self


of_module = np.random.default_rng(3)
DRAWS = {
    "numpy": lambda it: it.layers[0]["numpy"].normal(),
    "legacy": lambda it: it.layers[0]["legacy"].normal(),
    "python": lambda it: it.python.random(),
    "tensorflow": lambda it: float(it.tensorflow.normal([])),
    **({"keras": lambda it: float(keras.random.normal((), seed=it.keras))} if OF_KERAS else {}),
    "a function": lambda it: it.augment(),
    "the module": lambda it: of_module.normal(),
    "NumPy's own": lambda it: np.random.normal(),
    "Python's own": lambda it: random.random(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_seen_and_can_be_taken_back(name):
    holder, draw = Holder(), DRAWS[name]
    before = object_states.State(holder)
    assert not before.is_drawn_from()
    first = draw(holder)
    assert before.is_drawn_from()
    before.restore()
    assert not before.is_drawn_from() and draw(holder) == first


class Mixes:
    """Each item is mixed with the one before."""

    num_batches, last = 3, 0.0

    def __getitem__(self, number):
        found, self.last = np.array([number, self.last]), float(number)
        return (found,)


def test_an_object_that_changes_is_afterwards_as_alone(monkeypatch):
    alone, here = Mixes(), Mixes()
    want = [alone[number] for number in items.FIRST]
    monkeypatch.setattr(items.world, "get_world", lambda: type("", (), {"rank": 1, "hosts": [], "is_active": False}))
    found = items.compare_items(here, "it")
    assert found.why and here.last == alone.last
    np.testing.assert_array_equal(found.items, want)


CHANGES = {
    "a counter": lambda it: setattr(it, "count", getattr(it, "count", 0) + 1),
    "a list": lambda it: it.layers.append(1),
    "a dictionary within": lambda it: it.layers[0].update(new=1),
    "an array": lambda it: it.array.__setitem__(2, 5.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_object_is_seen(name):
    holder = Holder()
    before = object_states.State(holder)
    assert [draw(holder) for draw in DRAWS.values()] and not before.find_changed(object_states.State(holder))
    CHANGES[name](holder)
    now = object_states.State(holder)
    assert before.find_changed(now) in {"count", "layers", "array"}
    assert not now.find_changed(object_states.State(holder))


class Items:
    """Item 3 waits until it may be made."""

    workers, use_multiprocessing, max_queue_size = 1, False, 10

    def __init__(self):
        self.made, self.may_continue = [], threading.Event()

    def __getitem__(self, number):
        self.made.append(number)
        assert number != 3 or self.may_continue.wait(60)
        return number


def test_few_items_are_made_ahead_and_none_after_the_end():
    whole = Items()
    ahead = items_ahead.ItemsAhead(whole, [1, 3, 4, 5])
    given = ahead.give_items()
    assert next(given) == 1
    given.close()  # while item 3 is being made
    whole.may_continue.set()
    for thread in ahead._pool._pool:
        thread.join(60)
    assert whole.made in ([1], [1, 3])


@pytest.mark.parametrize("limit", [0, -1, 1, 10])
def test_all_items_are_made_with_any_size_of_the_queue(limit):
    """From 0 down, Keras' queue has no limit."""
    whole = Items()
    whole.workers, whole.max_queue_size = 2, limit
    ahead = items_ahead.ItemsAhead(whole, [5, 1, 4, 2])
    assert list(ahead.give_items()) == [5, 1, 4, 2]
    for thread in ahead._pool._pool:
        thread.join(60)
        assert not thread.is_alive()


class Plain:
    """Item 2 fails."""

    max_queue_size = 10

    def __init__(self, workers, use_multiprocessing):
        self.workers, self.use_multiprocessing = workers, use_multiprocessing

    def __getitem__(self, number):
        return {"one": 1, "three": 3}[{1: "one", 3: "three"}.get(number, "no")]


@pytest.mark.parametrize("workers, uses_processes", [(0, False), (2, False), (2, True)])
def test_an_error_is_raised_in_its_turn(workers, uses_processes):
    given = items_ahead.ItemsAhead(Plain(workers, uses_processes), [1, 3, 2, 1]).give_items()
    assert [next(given), next(given)] == [1, 3]
    with pytest.raises(KeyError, match="no"):
        next(given)
    assert not list(given)


class Exhausted(Plain):
    def __getitem__(self, number):
        return next(iter(range(number)))


def test_an_item_that_raises_stop_iteration_is_an_error_and_no_end():
    """As in a generator of Keras."""
    given = items_ahead.ItemsAhead(Exhausted(0, False), [1, 0, 1]).give_items()
    assert next(given) == 0
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(given)
