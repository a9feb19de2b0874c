"""An overlapped update is announced before its gradients, after the last collective on which they depend."""

from __future__ import annotations

import gc
import weakref

import pytest
import tensorflow as tf

from matex_tf.ops import announcing, overlap, readiness
from matex_tf.ops.library import get_library
from matex_tf.ops.order import list_order_handles
from matex_tf.ops.overlap import OP_TYPES


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(readiness, "count_threads", lambda: 1)


@pytest.fixture
def weights():
    return [tf.Variable(2.0), tf.Variable(3.0), tf.Variable(5.0)]


def collective(x, place):
    return get_library().ops.matex_allreduce(x=x, order=list_order_handles(), reduction="sum", place=place)


def normalized(x):
    """A layer with one collective in the forward pass and one in the backward pass."""

    @tf.custom_gradient
    def layer(x):
        return collective(x, "forwards"), lambda dy: collective(dy, "backwards")

    return layer(x)


def update(found, weight=1.0, place="update"):
    names = [f"gradient {index}" for index in range(len(found))]
    return overlap.reduce_gradients(found, names, tf.convert_to_tensor(weight, tf.float64), place, False, [])


def make_before(graph):
    """A function that returns the set of ops of `graph` that run before an op. Checks that no op waits for itself."""
    known, path = {}, set()

    def before(op):
        if op not in known:
            assert op not in path, f"{op.name} waits for itself"
            path.add(op)
            known[op] = set()
            for other in [*(tensor.op for tensor in op.inputs), *op.control_inputs]:
                known[op] |= before(other) | {other}
            path.remove(op)
        return known[op]

    for op in graph.get_operations():
        before(op)
    return before


def list_waits(step):
    """For the graph of a function: `make_before`, the announcement, and the gradients in the order of the update."""
    graph = step.get_concrete_function().graph
    (announcement,) = [op for op in graph.get_operations() if op.type == OP_TYPES[0]]
    gradients = [op.inputs[0].op for op in graph.get_operations() if op.type == OP_TYPES[1]]
    return make_before(graph), announcement, gradients


def sequence(step):
    """The places of the collectives of a function in the order in which they run. An announcement has also the numbers
    of its gradients, and "..." if further parts follow.

    Checks that the order is unique, and that no gradient depends on a collective after its announcement.
    """
    graph = step.get_concrete_function().graph
    before = make_before(graph)
    collectives = {op for op in graph.get_operations() if op.type in ("MatexAllreduce", OP_TYPES[0])}
    found = sorted(collectives, key=lambda op: len(before(op) & collectives))
    for number, op in enumerate(found):
        assert before(op) & collectives == set(found[:number])
    for op in graph.get_operations():
        if op.type == OP_TYPES[1]:
            needed = before(op.inputs[0].op) & collectives
            assert needed <= {op.inputs[1].op} | before(op.inputs[1].op)
    texts = []
    for op in found:
        text = op.get_attr("place").decode()
        if op.type == OP_TYPES[0]:
            numbers = [name.decode().removeprefix("gradient ") for name in op.get_attr("names")]
            text += " " + " ".join(numbers) + " ..." * op.get_attr("more")
        texts.append(text)
    return texts


def test_it_comes_before_the_gradients_and_after_what_is_no_gradient(weights):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = normalized(weights[0] * 1.0) * weights[1] * weights[2]
        return update([*tape.gradient(loss, weights)[::-1], loss])

    before, announcement, (last, middle, first, _) = list_waits(step)
    # Only the gradient of the first layer depends on the collective of the backward pass.
    assert announcement in before(first) and announcement not in before(middle) and announcement not in before(last)
    places = {op.get_attr("place") for op in before(announcement) if op.type == "MatexAllreduce"}
    assert places == {b"forwards", b"backwards"}


def test_without_collectives_it_comes_before_all_gradients(weights):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1] * weights[2]
        return update([*tape.gradient(loss, weights)[::-1], loss])

    before, announcement, gradients = list_waits(step)
    assert all(announcement in before(gradient) for gradient in gradients)


def test_it_waits_for_the_ancestors_of_its_weight(weights):
    """The weight is read after a gradient is assigned to its variable: this gradient cannot wait for the update."""
    share = tf.Variable(1.0, dtype=tf.float64)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1]
        found = tape.gradient(loss, weights[:2])
        share.assign(tf.cast(found[1], tf.float64))
        return update(found, share.read_value())

    before, announcement, (_, second) = list_waits(step)
    assert second in before(announcement)


def test_with_several_threads_nothing_waits_for_it(weights, monkeypatch):
    monkeypatch.setattr(readiness, "count_threads", lambda: 2)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1]
        return update(tape.gradient(loss, weights[:2]))

    before, announcement, gradients = list_waits(step)
    assert not any(announcement in before(gradient) for gradient in gradients)


@pytest.fixture(params=[1, 4])
def any_threads(request, monkeypatch):
    monkeypatch.setattr(readiness, "count_threads", lambda: request.param)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(announcing, "_LEAST_BYTES", 1)


def network(weights):
    """Three layers, each with a collective in the forward pass and one in the backward pass."""
    x = tf.constant(1.5)
    for weight in weights:
        x = normalized(x) * weight
    return x


FORWARDS = ["forwards"] * 3


def test_in_parts_between_the_collectives_of_the_backward_pass(weights, any_threads, small_parts):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights)
        return update([*tape.gradient(loss, weights)[::-1], loss])

    # The input of the first layer needs no gradient, so this layer has no collective in the backward pass.
    assert sequence(step) == [
        *FORWARDS, "update 0 3 ...", "backwards", "update 1 ...", "backwards", "update 2",
    ]  # fmt: skip


def test_parts_are_of_some_bytes_and_not_too_many(any_threads, small_parts, monkeypatch):
    weights = [tf.Variable(1.0) for _ in range(40)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights)
        return update(tape.gradient(loss, weights)[::-1])

    def parts():
        return [text for text in sequence(step) if text.startswith("update")]

    assert [len(text.split()) for text in parts()] == [5] * 13 + [2]  # three of 4 bytes, since 160 // 16 is 10
    monkeypatch.setattr(announcing, "_LEAST_BYTES", 4 * 15)
    step = tf.function(step.python_function)
    assert [len(text.split()) for text in parts()] == [17, 17, 11]
    monkeypatch.setattr(announcing, "_LEAST_BYTES", 4 * 40)
    step = tf.function(step.python_function)
    assert sequence(step)[-1] == "update " + " ".join(map(str, range(40)))


@pytest.mark.parametrize("together", [True, False])
def test_updates_of_two_networks_keep_their_order(weights, any_threads, small_parts, together):
    """As in a GAN: both tapes before both updates, or one after the other."""
    others = [tf.Variable(7.0), tf.Variable(11.0)]

    @tf.function
    def step():
        with tf.GradientTape() as tape, tf.GradientTape() as other_tape:
            loss, other = network(weights[:2]), network(others)
        gradients = tape.gradient(loss, weights[:2])[::-1]
        first = None if together else update(gradients, place="first")
        other_gradients = other_tape.gradient(other, others)[::-1]
        return [*(first or update(gradients, place="first")), *update(other_gradients, place="second")]

    # The first update does not wait for collectives that only the second network needs.
    assert sequence(step) == [
        "forwards", "forwards", "first 0 ...", "forwards", "forwards", "backwards", "first 1",
        "second 0 ...", "backwards", "second 1",
    ]  # fmt: skip


def test_no_part_is_announced_before_the_ancestors_of_its_weight(weights, any_threads, small_parts):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights)
        gradients = tape.gradient(loss, weights)
        return update(gradients[::-1], weight=tf.cast(gradients[1], tf.float64))

    assert sequence(step) == [*FORWARDS, "backwards", "update 0 1 ...", "backwards", "update 2"]


def test_it_comes_after_the_forward_pass(weights, any_threads):
    """At the start of a step, a rank would wait in the announcement for the forward pass of the others."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights)
        return update([*tape.gradient(loss, weights)[::-1], loss])

    before, announcement, gradients = list_waits(step)
    assert announcement not in before(gradients[-1]) or readiness.count_threads() == 1
    assert {tensor.op for tensor in gradients[-1].inputs} <= before(announcement)


def test_it_passes_collectives_that_no_gradient_needs(weights, any_threads):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights[:1])
        mean = collective(loss, "a mean")
        return [mean, *update(tape.gradient(loss, weights[:1]))]

    assert sequence(step) == ["forwards", "update 0", "a mean"]


def test_an_update_that_depends_on_another_update_comes_after_it(weights, any_threads, small_parts):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights)
        head, *others = tape.gradient(loss, weights)[::-1]
        (reduced,) = update([head], place="head")
        return update([gradient * reduced for gradient in others], place="others")

    assert sequence(step)[3:] == ["head 0", "backwards", "others 0 ...", "backwards", "others 1"]


def test_ranks_with_one_thread_and_with_several_announce_the_same(weights, small_parts, monkeypatch):
    """Two heads: with one thread, gradients of the second would wait for those of the first and their collective."""

    @tf.custom_gradient
    def scaled(x):
        return x * 2.0, lambda dy: tf.tanh(dy) * 2.0

    def step():
        with tf.GradientTape() as tape:
            x = tf.constant(1.5)
            plain = scaled(scaled(x * weights[2]) * weights[1])
            loss = plain + normalized(x * weights[0])
        return update([*tape.gradient(loss, weights), loss])

    found = []
    for threads in (1, 2):
        monkeypatch.setattr(readiness, "count_threads", lambda threads=threads: threads)
        found.append(sequence(tf.function(step)))
    assert found[0] == found[1] == ["update 1 2 ...", "forwards", "update 3 ...", "backwards", "update 0"]


@pytest.mark.parametrize("first", range(3))
def test_updates_of_networks_that_share_an_input(weights, any_threads, small_parts, first):
    """An actor and two critics; all gradients are computed before the updates."""

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            losses = [network([weight]) for weight in weights]
        actor, *critics = [(losses[number], weights[number]) for number in (first, first - 1, first - 2)]
        one = tape.gradient(*actor)
        two = [tape.gradient(*critic) for critic in critics[::-1]]
        return [*update([one], place="actor"), *update(two, place="critics")]

    updates = [text.split()[0] for text in sequence(step) if text != "forwards"]
    assert updates[0] == "actor" and set(updates[1:]) == {"critics"}


def test_nothing_keeps_the_graph_of_a_function(weights, small_parts):
    def traced():
        @tf.function
        def step():  # without tf.custom_gradient, whose graphs TensorFlow keeps
            found = [weights[0] * 1.0]
            for _ in range(2):
                found.append(collective(found[-1], "a layer"))
            return update(found)

        assert sequence(step) == ["update 0 ...", "a layer", "update 1 ...", "a layer", "update 2"]
        return weakref.ref(step.get_concrete_function().graph)

    graph = traced()
    gc.collect()
    assert graph() is None
