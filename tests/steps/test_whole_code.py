"""What differs between ranks in code that every rank computes whole is found.

(What such code gives is in `sameness/cases/whole_code.py`.)
"""

import pytest

import launch

START = """
import numpy as np, tensorflow as tf, sys
rank = sys.modules["matex_tf"].rank()
x = np.random.RandomState(1).randn(12, 3)

def say(text):
    print(f"@ {text}", file=sys.stderr, flush=True)

def make_step():
    w = tf.Variable(np.ones([3, 3]))

    @tf.function
    def step(a):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(a @ w))
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    return step, w

def make_dataset(values):
    return tf.data.Dataset.from_tensor_slices(values).batch(6)
"""
NOTES = """
w = tf.Variable(np.ones([3, 3]))
for _ in range(2):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.constant(x + rank) @ w))
    w.assign_sub(0.01 * tape.gradient(loss, w))
say("arguments")
step, _ = make_step()
step(tf.constant(x))
step(tf.constant(x + rank))
say("iterators")
_, shared = make_step()

@tf.function
def train(iterator):
    a = next(iterator)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(a @ shared))
    shared.assign_sub(0.01 * tape.gradient(loss, shared))

for epoch in range(4):
    iterator = iter(make_dataset(x + rank * (epoch == 3)))
    for _ in range(2):
        train(iterator)
say("loops")
_, looped = make_step()

@tf.function
def train_all(dataset):
    for a in dataset:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(a @ looped))
        looped.assign_sub(0.01 * tape.gradient(loss, looped))

train_all(make_dataset(x))
train_all(make_dataset(np.concatenate([x[:6] + rank, x[6:]])))
say("weights")
step, w = make_step()
for turn in range(64):
    if turn == 1 and rank == 1:
        w.assign_add(np.ones([3, 3]))
    step(tf.constant(x))
say("unreached")
"""
ROWS = """
step, _ = make_step()
for _ in range(int(sys.argv[1])):
    step(tf.constant(x))
step(tf.constant(x[: 12 - 2 * rank]))
say("unreached")
"""


@pytest.mark.timeout(200)
def test_what_differs_between_ranks_is_found():
    result = launch.run(2, START + NOTES, env={"MATEX_EXPLAIN": "1"})  # so that notes name their step
    whole, arguments, iterators, loops, weights = result.stderr.split("@ ")
    assert "differ between ranks" in whole
    assert all("different rows in the same step" in part for part in (arguments, iterators, loops))
    assert "matex_tf.MismatchError" in weights
    assert result.returncode != 0


@pytest.mark.timeout(200)
@pytest.mark.parametrize("before", [0, pytest.param(1, marks=pytest.mark.more), 2])
def test_batches_with_other_numbers_of_rows_are_an_error(before):
    """One rank plans the step for its batch, while the other plans, too, compares its batch, or computes."""
    result = launch.run(2, START + ROWS, before)
    assert result.returncode != 0
    assert "different numbers of rows" in result.output and "12 on rank 0" in result.output
    assert "unreached" not in result.output
