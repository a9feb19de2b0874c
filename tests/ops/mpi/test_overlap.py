"""Updates that are overlapped: gradients handed over in any order, the same sums, and errors on every rank."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import ops, settings
from matex_tf.world import world

pytestmark = pytest.mark.mpi

RANK, SIZE = world.get_world().rank, world.get_world().size
SHAPES = [(300, 40), (5,), (), (0, 4), (2000,), (3, 3), (70_000,)]
NAMES = [f"variable {index}" for index in range(len(SHAPES))]


@pytest.fixture(autouse=True)
def overlapped(monkeypatch):
    monkeypatch.setattr(settings.get_settings(), "overlap", "on")


def late(seconds):
    """An identity function that takes so many seconds."""

    def wait(x):
        time.sleep(float(seconds))
        return x

    return lambda x: tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype, stateful=False), x.shape)


def gradients(rank, turn):
    random = np.random.default_rng([rank, turn])
    return [random.integers(-4, 4, shape).astype(np.float64) for shape in SHAPES]


def kinds(function, *args):
    return [op.type for op in function.get_concrete_function(*args).graph.get_operations()]


def test_gradients_that_come_in_an_order_of_each_ranks_own():
    delays = np.random.default_rng(RANK).permutation(len(SHAPES)) * 0.003

    @tf.function
    def step(*tensors):
        ready = [late(delay)(tensor) for delay, tensor in zip(delays, tensors)]
        reduced = ops.reduce_gradients(ready[:4], NAMES[:4], 2.0, "first")
        return reduced + ops.reduce_gradients(ready[4:], NAMES[4:], [2.0, 8.0], "second")

    before = ops.count_updates()
    for turn in range(10):
        everyone = [gradients(rank, turn) for rank in range(SIZE)]
        results = step(*map(tf.constant, everyone[RANK]))
        for index, result in enumerate(results):
            np.testing.assert_array_equal(result, 2 * sum(one[index] for one in everyone))
    assert ops.count_updates() == before + 20 * (SIZE > 1)
    found = kinds(step, *map(tf.constant, gradients(RANK, 0)))
    assert SIZE == 1 or (found.count("MatexHandOverGradient"), found.count("MatexAnnounceUpdate")) == (7, 2)


def test_other_collectives_in_the_same_step():
    """The communication thread uses its own communicator, so collectives of the step may run at the same time."""

    @tf.function
    def step(x):
        (first,) = ops.reduce_gradients([late(0.01 * RANK)(x)], ["first"], 1.0)
        mean = ops.allreduce(late(0.01 * (SIZE - RANK))(x) + 1.0, "mean")
        (second,) = ops.reduce_gradients([mean * x], ["second"], 1.0)
        return first, mean, second

    for _ in range(5):
        first, mean, second = step(tf.constant([1.0, 2.0]))
        np.testing.assert_allclose(first, np.array([1, 2]) * SIZE)
        np.testing.assert_allclose(mean, [2, 3])
        np.testing.assert_allclose(second, np.array([2, 6]) * SIZE)


def test_seconds_in_which_a_rank_is_blocked():
    """Simultaneous waits count once, and no time counts before the last gradient of this rank is ready."""
    naps = (0.0, 0.6) if RANK == SIZE - 1 else (0.3, 0.0)

    @tf.function
    def step(x):
        (reduced,) = ops.reduce_gradients([late(naps[0])(x)], ["first"], 1.0)
        return reduced, ops.allreduce(late(naps[1])(x) + 1.0, "mean")

    x = tf.constant([1.0, 2.0])
    for _ in range(2):
        ops.barrier()
        before, start = ops.get_blocked_seconds(), time.perf_counter()
        step(x)
        took, blocked = time.perf_counter() - start, ops.get_blocked_seconds() - before
    if SIZE == 1:
        assert blocked == 0
    else:
        # The sum may wait while a thread sleeps. On busy cores the end of a wait is noticed late.
        assert blocked <= took - naps[0] + 0.1
        assert blocked > 0.05 or RANK == SIZE - 1


def test_an_update_is_announced_after_the_collectives_on_which_its_gradients_depend():
    """Otherwise ranks at different places could wait for each other (docs/protocol.md)."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = x * ops.allreduce(x, "mean")
        (first,) = ops.reduce_gradients([tape.gradient(loss, x)], ["x"], 1.0)
        return ops.reduce_gradients([first * ops.allreduce(x, "sum")], ["again"], 1.0)

    def before(op):
        found, pending = set(), [op]
        while pending:
            one = pending.pop()
            inputs = [*(tensor.op for tensor in one.inputs), *one.control_inputs]
            pending += [each for each in inputs if each not in found]
            found.update(inputs)
        return found

    if SIZE == 1:
        return
    operations = step.get_concrete_function(tf.constant(1.0)).graph.get_operations()
    gradients = [op for op in operations if op.type == "MatexHandOverGradient"]
    announced = {ticket: before(ticket) for ticket in (op.inputs[1].op for op in gradients)}
    assert len(announced) == 2
    for op in gradients:
        made_of = before(op.inputs[0].op) | {op.inputs[0].op}
        met = {one for one in made_of if one.type in ("MatexAllreduce", "MatexAnnounceUpdate")}
        assert met and met <= announced[op.inputs[1].op] | {op.inputs[1].op}
    np.testing.assert_allclose(step(tf.constant(1.0))[0], 2.0 * SIZE**3)


def test_ranks_that_trace_at_different_times_choose_their_buckets_together():
    """Measurements belong to a layout, which is equal on all ranks, and not to a trace of the step."""

    @tf.function
    def step(rows):
        mine = tf.reduce_sum(rows, axis=0)
        return ops.reduce_gradients([mine, tf.tile(mine, [10_000])], ["x", "y"], 1.0, "a step of several traces")

    for turn in range(40):
        rows = [1 + turn % (rank + 1) for rank in range(SIZE)]
        for got in step(tf.ones([rows[RANK], 4])):
            np.testing.assert_array_equal(got, np.full(got.shape, sum(rows)))


def test_a_gradient_that_nobody_uses_is_handed_over_all_the_same():
    @tf.function
    def step(x):
        return ops.reduce_gradients([x, 2.0 * x], ["used", "unused"], 1.0)[0]

    for _ in range(3):
        np.testing.assert_allclose(step(tf.constant([3.0])), [3.0 * SIZE])


def test_in_a_loop_and_in_a_branch():
    @tf.function
    def steps(x):
        for _ in tf.range(4):
            if tf.reduce_sum(x) > 0:
                x = ops.reduce_gradients([x], ["x"], 1.0 / SIZE)[0] + 1.0
        return x

    np.testing.assert_allclose(steps(tf.constant([1.0])), [5.0], rtol=1e-6)


def test_what_xla_compiles_and_what_has_no_known_shape_is_reduced_at_once():
    from matex_tf.ops import overlap

    def step(x):
        return ops.reduce_gradients([x], ["x"], 1.0)[0]

    anything = tf.function(step, input_signature=[tf.TensorSpec(None)])
    np.testing.assert_allclose(anything(tf.ones([3])), np.full(3, SIZE))
    with overlap.is_for_xla.set():
        found = kinds(tf.function(step), tf.ones([3]))
    assert "MatexHandOverGradient" not in found + kinds(anything, tf.ones([3]))


def test_gradient_of_a_reduced_gradient():
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            (y,) = ops.reduce_gradients([x * x], ["x"], 0.5)
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, x)

    np.testing.assert_allclose(step(tf.constant([3.0])), [3.0 * SIZE])


def test_a_step_that_fails_on_all_ranks_leaves_nothing_behind():
    @tf.function
    def step(x):
        with tf.control_dependencies([tf.debugging.assert_greater(x, 0.0)]):
            checked = tf.identity(x)
        return ops.reduce_gradients([checked], ["x"], 1.0)[0]

    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(tf.constant(-1.0))
        assert step(tf.constant(1.0)).numpy() == SIZE


def test_a_step_that_fails_on_one_rank_fails_on_all():
    @tf.function
    def step(x):
        first = tf.fill([70_000], x)
        with tf.control_dependencies([tf.debugging.assert_greater(late(0.1)(x), 0.0)]):
            checked = tf.identity(x)
        return ops.reduce_gradients([first, checked], ["first", "x"], 1.0, "a test")[1]

    for _ in range(3):
        if RANK == SIZE - 1:
            with pytest.raises(tf.errors.InvalidArgumentError):
                step(tf.constant(-1.0))
        else:
            with pytest.raises(tf.errors.FailedPreconditionError, match=f"rank {SIZE - 1} has given up a test"):
                step(tf.constant(1.0))
        assert step(tf.constant(1.0)).numpy() == SIZE


def test_collectives_in_backward_passes(monkeypatch):
    """Two updates in one step, each with collectives in its backward pass, as of two normalized networks."""
    from matex_tf.ops import overlap

    monkeypatch.setattr(settings.get_settings(), "overlap", "auto")

    def made(way):
        @tf.function
        def step(x):
            weights = [tf.constant(value, tf.float64) for value in (2.0, 3.0, 5.0)]
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(weights)
                first = ops.allreduce(x * weights[0] * weights[1], "sum")
                second = ops.allreduce(first * weights[2], "mean")
            found = []
            for number, loss in enumerate((first, second)):
                with overlap.trace_as(way):
                    present = [one for one in tape.gradient(loss, weights) if one is not None]
                    names = NAMES[: len(present)]
                    found += ops.reduce_gradients(present, names, 1.0 / SIZE, f"update {number}")
            return [*found, ops.allreduce(second, "max")]

        return step

    overlapped, inline = made(True), made(False)
    x = tf.constant(float(RANK + 1), tf.float64)
    types = kinds(overlapped, x)
    assert types.count("MatexAnnounceUpdate") == 2 * (SIZE > 1)
    for _ in range(5):
        before = ops.count_updates()
        found = overlapped(x)
        assert ops.count_updates() == before + 2 * (SIZE > 1)
        for one, other in zip(found, inline(x)):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_the_gradient_of_a_broadcast():
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            hidden = 2.0 * x
            loss = ops.broadcast(hidden, SIZE - 1) * x
        return ops.reduce_gradients([tape.gradient(loss, x), hidden], ["x", "hidden"], 1.0)

    for _ in range(2):
        gradient, hidden = step(tf.constant(3.0))
        np.testing.assert_allclose(gradient, (6.0 + 6.0) * SIZE)
        np.testing.assert_allclose(hidden, 6.0 * SIZE)


def test_a_backward_pass_that_tensorflow_makes_for_eager_code_has_one_order():
    """Two of its collectives are independent and look alike, and another one could run first on each rank."""

    def late_backwards(seconds):
        return tf.custom_gradient(lambda x: (tf.identity(x), late(seconds)))

    @tf.function
    def forward(x, y):
        one, other = ops.allreduce(x, "sum", "a layer") * 2.0, ops.allreduce(y, "sum", "a layer") * 3.0
        return late_backwards(0.01 * (RANK % 2))(one), late_backwards(0.01 * ((RANK + 1) % 2))(other)

    for turn in range(20):
        x, y = tf.constant(1.0 + turn), tf.constant(2.0 + turn)
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            loss = tf.add_n(forward(x, y))
        found = tape.gradient(loss, [x, y])
        np.testing.assert_allclose(found, [2.0 * SIZE, 3.0 * SIZE])
