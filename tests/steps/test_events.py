"""Every step that trains is told to the extras, in whatever style it is written; nothing else is."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import launch
from matex_tf.steps import events

CASE = """
import json
import numpy as np, tensorflow as tf, matex_tf
from matex_tf.steps import events

keras = tf.keras
told = []


def describe(plan):
    return "eager" if plan is None else "whole" if plan.why_whole else "shared"


events.step_trained.add_listener(lambda plan: told.append(describe(plan)))
x, y = np.random.default_rng(0).random((12, 3), np.float32), np.ones((12, 1), np.float32)
weights = tf.Variable(tf.ones([3, 1]))
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
found = {}


def note(name, act):
    told.clear()
    act()
    found[name] = list(told)


@tf.function
def shared(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ weights - b) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))


@tf.function
def decay():
    weights.assign(0.9 * weights)


@tf.function
def look(a):
    return tf.reduce_sum(a @ weights)


def eager():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.constant(x) @ weights - y) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))


def session(make_rows):
    with tf.Graph().as_default(), tf.compat.v1.Session() as run:
        rows, feeds = make_rows()
        value = tf.compat.v1.get_variable("value", [3, 1], use_resource=True)
        loss = tf.reduce_mean((rows @ value) ** 2)
        train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        count = tf.compat.v1.get_variable("count", [], trainable=False, use_resource=True)
        run.run(tf.compat.v1.global_variables_initializer())
        run.run(train, feeds)
        run.run(loss, feeds)
        run.run(count.assign_add(loss), feeds)


def feed(rows):
    given = tf.compat.v1.placeholder(tf.float32, [rows, 3])
    return given, {given: x}


def iterate(drop_remainder):
    data = tf.data.Dataset.from_tensor_slices(x).repeat().batch(6, drop_remainder)
    return tf.compat.v1.data.make_one_shot_iterator(data).get_next(), {}


note("shared", lambda: shared(tf.constant(x), tf.constant(y)))
note("decay", decay)
note("look", lambda: look(tf.constant(x)))
note("eager", eager)
note("session", lambda: session(lambda: feed(None)))
note("session with a fixed shape", lambda: session(lambda: feed(12)))
note("session on an iterator", lambda: session(lambda: iterate(False)))
note("session on an iterator of a fixed shape", lambda: session(lambda: iterate(True)))
note("session on constants", lambda: session(lambda: (tf.constant(x), {})))
note("fit", lambda: model.fit(x, y, batch_size=6, epochs=2, verbose=0))
note("batch", lambda: model.train_on_batch(x, y))
note("evaluate", lambda: model.evaluate(x, y, verbose=0))
note("predict", lambda: model.predict(x, verbose=0))
print("FOUND" + json.dumps(found))
"""


def test_steps_that_train_are_told():
    found = json.loads(launch.run(2, CASE).check().stdout.partition("FOUND")[2])
    assert found == {
        "shared": ["shared"],
        "decay": ["whole"],
        "look": [],
        "eager": ["eager"],
        "session": ["eager"],
        "session with a fixed shape": ["eager"],
        "session on an iterator": ["eager"],
        "session on an iterator of a fixed shape": ["eager"],
        "session on constants": ["eager"],
        "fit": ["shared"] * 4,
        "batch": ["shared"],
        "evaluate": [],
        "predict": [],
    }


def test_each_event_is_raised_and_heard():
    raised, named = [], []
    for path in Path(events.__file__).parents[1].rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        of_events = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "events"]
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        raised += [node.attr for node in of_events if id(node) in called]
        named += [node.attr for node in of_events if id(node) not in called]
    declared = {name for name, value in vars(events).items() if isinstance(value, events.Event)}
    assert not declared.difference(raised) and not declared.difference(named)
