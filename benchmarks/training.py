"""For benchmarks: training steps with one thread, of a plain loop and of Keras' `fit`; the memory of a process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from models import ON_DEVICE, Case
from peers import Alone


def use_one_thread(beside: int = 0) -> None:
    """Before TensorFlow computes anything. `beside`: threads more, for ops that wait for a device."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1 + beside)


def _model_and_data(case: Case, rows: int, peer: Alone) -> tuple[Any, Any, Any, tuple[Any, Any]]:
    """The model of `case`, its optimizer and loss, and `rows` images with labels."""
    tf.keras.utils.set_random_seed(1)
    with peer.scope():
        model = case.build(tf.keras, case.shape)
        momentum = {"momentum": 0.9} if case.optimizer == "SGD" else {}
        optimizer = getattr(tf.keras.optimizers, case.optimizer)(0.001, **momentum)
    images = tf.random.stateless_normal([rows, *case.shape], seed=[1, 2])
    labels = tf.random.stateless_uniform([rows], seed=[1, 2], maxval=10, dtype=tf.int32)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, optimizer, loss, (images, labels)


def prepared(
    case: Case, rows: int, xla: bool = False, peer: Alone | None = None, updates: bool = True
) -> tuple[Any, tuple[Any, Any], Callable[[Any, Any], Any]]:
    """The model of `case`, `rows` images with labels, and a step on a batch of such, which returns its rows.

    updates: whether the step updates the model, after it has computed the gradients.
    """
    use_one_thread(beside=int(case in ON_DEVICE.values()))
    peer = peer or Alone()
    model, optimizer, _, data = _model_and_data(case, rows, peer)
    losses_of = tf.keras.losses.sparse_categorical_crossentropy
    used = tf.Variable(0.0, trainable=False)  # the use of gradients that update nothing, so that they are computed

    def step(x, y):
        with tf.GradientTape() as tape:
            # By a function: under its strategy TensorFlow refuses an object that takes the mean.
            loss = tf.reduce_mean(losses_of(y, model(x, training=True), from_logits=True))
        gradients = peer.share_tape(tape).gradient(loss, model.trainable_variables)
        if updates:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        else:
            used.assign(tf.add_n([tf.reshape(gradient, [-1])[0] for gradient in gradients]))
        return tf.shape(x)[0]

    return model, data, tf.function(peer.share_step(step), jit_compile=xla or None)


def fitted(case: Case, rows: int, xla: bool = False, peer: Alone | None = None) -> tuple[Any, tuple[Any, Any]]:
    """The compiled model of `case`, and `rows` images with labels."""
    use_one_thread()
    peer = peer or Alone()
    model, optimizer, loss, data = _model_and_data(case, rows, peer)
    with peer.scope():
        model.compile(peer.share_optimizer(optimizer), loss, jit_compile=xla or "auto")
    return model, data


def check_rows(number: int, rows: int, batch: int) -> None:
    """Raises SystemExit if a step did not compute the batches of all ranks.

    number: of the step, from 0; the first batch is computed as the script alone does. rows: what the step returned.
    batch: rows of a rank's own batch (`MATEX_SCALING=weak`).
    """
    expected = batch * (sys.modules["matex_tf"].size() if "matex_tf" in sys.modules else 1)
    if number and rows != expected:
        raise SystemExit(f"{rows} rows were computed in a step of all ranks, {expected} were to be")


def read_memory(file: str, name: str) -> int:
    """The bytes that a line of a file of /proc tells of this process."""
    return next(int(line.split()[1]) << 10 for line in Path(f"/proc/self/{file}").open() if line.startswith(name))
