"""What is said of steps that are mostly communication, or that wait for a pipeline which every rank runs whole."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

import launch
from matex_tf.observe import bottlenecks


@pytest.fixture
def notes(monkeypatch):
    """What is said, where each look at the clock comes a second after the last."""
    found, clock = [], itertools.count()
    monkeypatch.setattr(bottlenecks, "_printed", set())
    monkeypatch.setattr(bottlenecks.notes, "print_note", found.append)
    monkeypatch.setattr(bottlenecks.time, "perf_counter", lambda: float(next(clock)))
    return found


@pytest.mark.parametrize(
    "waited, steps, said", [(0.9, 50, True), (0.4, 50, False), (0.9, 5, False)], ids=["much", "little", "too few steps"]
)
def test_much_communication(notes, monkeypatch, waited, steps, said):
    for _ in range(2):
        watch = bottlenecks.Pace()
        for step in range(steps + 1):
            monkeypatch.setattr(bottlenecks.ops, "get_blocked_seconds", lambda step=step: waited * step)
            monkeypatch.setattr(bottlenecks.ops, "count_global_rows", lambda step=step: 64 * step)
            watch.count_step()
        watch.judge_steps()
    assert len(notes) == said
    if said:
        assert "90% of the time" in notes[0] and "some 64 rows" in notes[0]


@pytest.mark.parametrize("waited, said", [(0.75, True), (0.25, False)])
def test_much_waiting_for_a_pipeline(notes, monkeypatch, waited, said):
    monkeypatch.setattr(bottlenecks.ops, "get_blocked_seconds", lambda: 0.0)
    monkeypatch.setattr(bottlenecks.ops, "count_global_rows", lambda: 0)
    watch = bottlenecks.Pace()
    for step in range(31):
        monkeypatch.setattr(bottlenecks, "_waited_seconds", waited * step)
        watch.count_step()
    watch.judge_steps()
    assert len(notes) == said
    if said:
        assert notes[0].startswith("75% of the time") and "every rank runs completely" in notes[0]


def test_what_eager_code_waits_for_batches_counts(notes, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(bottlenecks.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(bottlenecks.ops, "get_blocked_seconds", lambda: 0.0)
    monkeypatch.setattr(bottlenecks.ops, "count_global_rows", lambda: 0)
    for number in range(41):
        bottlenecks.want_batch(None)
        clock[0] += 3.0
        bottlenecks.give_batch(None, number == 40)
        clock[0] += 1.0
        bottlenecks.end_step(SimpleNamespace(trained=[1]))
    (said,) = notes
    assert "of the time of training steps is spent on waiting for the input pipeline" in said


SCRIPT = """
import time
import keras
import tensorflow as tf
import matex_tf

def slow(x):  # 0.05 s a row where notes are printed: the other rank waits for that one
    x = x + tf.random.stateless_uniform([], [1, 2])
    with tf.control_dependencies([tf.py_function(lambda: time.sleep(0.05 * (matex_tf.rank() == 0)), [], [])]):
        return {"x": tf.identity(x)[None]}, x

model = keras.Sequential([keras.Input((1,), name="x"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = tf.data.Dataset.range(64).map(lambda i: tf.cast(i, tf.float32) / 64)
model.fit(rows.map(slow, num_parallel_calls=1).batch(2), epochs=2, verbose=0)
"""


def test_a_pipeline_that_is_slower_than_the_steps():
    errors = launch.run(2, SCRIPT).check().stderr
    lines = [line for line in errors.splitlines() if "waiting for the input pipeline" in line]
    assert len(lines) == 1, errors


def test_what_functions_wait_for_batches_is_told_to_other_threads_where_steps_end(monkeypatch):
    monkeypatch.setattr(bottlenecks.records, "is_on", lambda: True)
    monkeypatch.setattr(bottlenecks, "_known_in_functions", 0.0)
    monkeypatch.setattr(bottlenecks, "_waited_in_functions", SimpleNamespace(numpy=lambda: 1.5))
    before = bottlenecks.read_waited_seconds()
    bottlenecks.end_step(SimpleNamespace(trained=[]))
    assert bottlenecks.read_waited_seconds() - before == 1.5
