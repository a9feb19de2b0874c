"""An overlapped update is announced before its gradients, right after the last collective that they are made of."""

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


def normalised(x):
    """Something with a collective forwards and one backwards."""

    @tf.custom_gradient
    def layer(x):
        return collective(x, "forwards"), lambda dy: collective(dy, "backwards")

    return layer(x)


def update(found, weight=1.0, place="update"):
    names = [f"gradient {index}" for index in range(len(found))]
    return overlap.reduce_gradients(found, names, tf.convert_to_tensor(weight, tf.float64), place, False, [])


def what_is_before(graph):
    """Of an op of `graph`: the set of those that run before it, as a function. No op is before itself."""
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


def waits(step):
    """Of a function: what waits for what, as a function; its announcement; the gradients in the order given."""
    graph = step.get_concrete_function().graph
    (announcement,) = [op for op in graph.get_operations() if op.type == OP_TYPES[0]]
    gradients = [op.inputs[0].op for op in graph.get_operations() if op.type == OP_TYPES[1]]
    return what_is_before(graph), announcement, gradients


def sequence(step):
    """The collectives of a function in the order in which they run, each by its place, announcements with the names of
    their gradients; no two may run in either order, and no gradient after a collective that follows its announcement.
    """
    graph = step.get_concrete_function().graph
    before = what_is_before(graph)
    collectives = {op for op in graph.get_operations() if op.type in ("MatexAllreduce", OP_TYPES[0])}
    found = sorted(collectives, key=lambda op: len(before(op) & collectives))
    for number, op in enumerate(found):
        assert before(op) & collectives == set(found[:number])
    for op in graph.get_operations():
        if op.type == OP_TYPES[1]:
            made_of = before(op.inputs[0].op) & collectives
            assert made_of <= {op.inputs[1].op} | before(op.inputs[1].op)
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
            loss = normalised(weights[0] * 1.0) * weights[1] * weights[2]
        return update([*tape.gradient(loss, weights)[::-1], loss])

    before, announcement, (last, middle, first, _) = waits(step)
    # The first layer's gradient alone comes after the collective backwards.
    assert announcement in before(first) and announcement not in before(middle) and announcement not in before(last)
    places = {op.get_attr("place") for op in before(announcement) if op.type == "MatexAllreduce"}
    assert places == {b"forwards", b"backwards"}


def test_without_collectives_it_comes_before_all_gradients(weights):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1] * weights[2]
        return update([*tape.gradient(loss, weights)[::-1], loss])

    before, announcement, gradients = waits(step)
    assert all(announcement in before(gradient) for gradient in gradients)


def test_it_waits_for_what_its_weight_is_made_of(weights):
    """The weight is read after the backward pass has written to its variable: that gradient cannot wait for it."""
    share = tf.Variable(1.0, dtype=tf.float64)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1]
        found = tape.gradient(loss, weights[:2])
        share.assign(tf.cast(found[1], tf.float64))
        return update(found, share.read_value())

    before, announcement, (_, second) = waits(step)
    assert second in before(announcement)


def test_with_several_threads_nothing_waits_for_it(weights, monkeypatch):
    monkeypatch.setattr(readiness, "count_threads", lambda: 2)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = weights[0] * weights[1]
        return update(tape.gradient(loss, weights[:2]))

    before, announcement, gradients = waits(step)
    assert not any(announcement in before(gradient) for gradient in gradients)


@pytest.fixture(params=[1, 4])
def any_threads(request, monkeypatch):
    monkeypatch.setattr(readiness, "count_threads", lambda: request.param)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(announcing, "_LEAST_BYTES", 1)


def network(weights):
    """Three layers, each normalised before its weight: a collective forwards and one backwards."""
    x = tf.constant(1.5)
    for weight in weights:
        x = normalised(x) * weight
    return x


FORWARDS = ["forwards"] * 3


def test_in_parts_between_the_collectives_of_the_backward_pass(weights, any_threads, small_parts):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights)
        return update([*tape.gradient(loss, weights)[::-1], loss])

    # The first layer's input needs no gradient, so that there is no collective for it.
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
    """As those of a GAN: both tapes before both updates, or one after the other."""
    others = [tf.Variable(7.0), tf.Variable(11.0)]

    @tf.function
    def step():
        with tf.GradientTape() as tape, tf.GradientTape() as other_tape:
            loss, other = network(weights[:2]), network(others)
        gradients = tape.gradient(loss, weights[:2])[::-1]
        first = None if together else update(gradients, place="first")
        other_gradients = other_tape.gradient(other, others)[::-1]
        return [*(first or update(gradients, place="first")), *update(other_gradients, place="second")]

    # The first passes what only the second network needs.
    assert sequence(step) == [
        "forwards", "forwards", "first 0 ...", "forwards", "forwards", "backwards", "first 1",
        "second 0 ...", "backwards", "second 1",
    ]  # fmt: skip


def test_no_part_is_announced_before_what_its_weight_is_made_of(weights, any_threads, small_parts):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights)
        gradients = tape.gradient(loss, weights)
        return update(gradients[::-1], weight=tf.cast(gradients[1], tf.float64))

    assert sequence(step) == [*FORWARDS, "backwards", "update 0 1 ...", "backwards", "update 2"]


def test_it_comes_after_the_forward_pass(weights, any_threads):
    """If it could come at the start of a step as well, a rank that is there would wait for the other's forward pass."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights)
        return update([*tape.gradient(loss, weights)[::-1], loss])

    before, announcement, gradients = waits(step)
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


def test_what_is_made_of_the_first_update_comes_after_it(weights, any_threads, small_parts):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(weights)
        head, *others = tape.gradient(loss, weights)[::-1]
        (reduced,) = update([head], place="head")
        return update([gradient * reduced for gradient in others], place="others")

    assert sequence(step)[3:] == ["head 0", "backwards", "others 0 ...", "backwards", "others 1"]


def test_ranks_with_one_thread_and_with_several_announce_the_same(weights, small_parts, monkeypatch):
    """Two heads: on one thread the second's gradients would wait for the first's, and for the collective of those."""

    @tf.custom_gradient
    def scaled(x):
        return x * 2.0, lambda dy: tf.tanh(dy) * 2.0

    def step():
        with tf.GradientTape() as tape:
            x = tf.constant(1.5)
            plain = scaled(scaled(x * weights[2]) * weights[1])
            loss = plain + normalised(x * weights[0])
        return update([*tape.gradient(loss, weights), loss])

    found = []
    for threads in (1, 2):
        monkeypatch.setattr(readiness, "count_threads", lambda threads=threads: threads)
        found.append(sequence(tf.function(step)))
    assert found[0] == found[1] == ["update 1 2 ...", "forwards", "update 3 ...", "backwards", "update 0"]


@pytest.mark.parametrize("first", range(3))
def test_updates_of_networks_that_share_an_input(weights, any_threads, small_parts, first):
    """An actor and two critics, whose gradients are all taken before their updates."""

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
