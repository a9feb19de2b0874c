"""Models in eager code that mix or read rows, from the start or later: they are called with whole batches."""

import os
import tempfile

import corpus_run
import keras
import numpy as np
import tensorflow as tf
from keras import layers

X = tf.constant(np.random.RandomState(1).randn(12, 3))
results = {}


class Model(keras.Model):
    def __init__(self, reads=False):
        super().__init__()
        self.inner, self.mixes, self.reads, self.seen = layers.Dense(1), False, reads, 0.0

    def call(self, inputs):
        if self.reads and hasattr(inputs, "numpy"):
            self.seen = max(self.seen, float(np.abs(inputs.numpy()).max()))
        if self.mixes:
            inputs = 0.5 * inputs + 0.5 * inputs[::-1]
        return self.inner(inputs)


def train(name, model, mixes_at=None):
    optimizer, losses = keras.optimizers.SGD(0.1), []
    for turn in range(8):
        model.mixes = turn == mixes_at
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(X)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        losses.append(float(loss))
    results[name] = np.array([*losses, model.seen])


def list_new_notes(before):
    return [note for note in corpus_run.list_notes() if note not in before]


train("begins to mix", Model(), mixes_at=5)
train("mixes from the start", Model(), mixes_at=0)
notes = corpus_run.list_notes()
train("reads", Model(reads=True))
shared = [note for note in list_new_notes(notes) if "'model" in note and "is sharded" in note]
corpus_run.expect(not shared, f"a model that reads its rows is shared: {shared}")

notes = corpus_run.list_notes()
first = keras.Sequential([keras.Input((3,)), layers.Dense(2)], name="first")
whole = keras.Sequential([keras.Input((2,)), layers.Dense(1, activity_regularizer="l2")])
weights, optimizer = first.trainable_variables + whole.trainable_variables, keras.optimizers.SGD(0.1)
for _ in range(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(whole(first(X))) + tf.add_n(whole.losses)
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
results["one of two is shared"] = np.array(float(loss))
said = list_new_notes(notes)
corpus_run.expect(any("the call of 'first' is sharded" in note for note in said), f"one of two is not shared: {said}")
whole_steps = [note for note in said if "cannot be sharded:" in note]
corpus_run.expect(not whole_steps, f"a step of which one model is shared is said to be whole: {whole_steps}")

with tempfile.TemporaryDirectory() as folder:
    for number in range(4):
        with open(os.path.join(folder, str(number)), "w") as file:
            file.write(f"0.{number}")
    model = Model()

    @tf.function
    def train_at_rate(batch, number):
        """A step that computes the path of a file: ranks other than 0 find their files by ops of their own."""
        rate = tf.strings.to_number(tf.io.read_file(tf.strings.join([folder, "/", tf.strings.as_string(number)])))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(batch)))
        for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            variable.assign_sub(tf.cast(rate, gradient.dtype) * gradient)
        return loss

    results["reads files"] = np.array([float(train_at_rate(X, tf.constant(number))) for number in range(4)])
