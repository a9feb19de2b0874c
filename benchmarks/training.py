"""The training steps that are timed, with one thread: those of a plain loop, and those of Keras' `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from models import Case


def _model_and_data(case: Case, rows: int) -> tuple[Any, Any, Any, tuple[Any, Any]]:
    """The model of `case`, its optimizer and loss, and `rows` images with labels."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(1)
    model = case.build(tf.keras, case.shape)
    images = tf.random.stateless_normal([rows, *case.shape], seed=[1, 2])
    labels = tf.random.stateless_uniform([rows], seed=[1, 2], maxval=10, dtype=tf.int32)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, tf.keras.optimizers.SGD(0.001, momentum=0.9), loss, (images, labels)


def prepared(case: Case, rows: int, xla: bool = False) -> tuple[Any, tuple[Any, Any], Callable[[Any, Any], Any]]:
    """The model of `case`, `rows` images with labels, and a step on a batch of such, which returns its rows."""
    model, optimizer, loss_of, data = _model_and_data(case, rows)

    @tf.function(jit_compile=xla or None)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return tf.shape(x)[0]

    return model, data, step


def fitted(case: Case, rows: int, xla: bool = False) -> tuple[Any, tuple[Any, Any]]:
    """The compiled model of `case`, and `rows` images with labels."""
    model, optimizer, loss, data = _model_and_data(case, rows)
    model.compile(optimizer, loss, jit_compile=xla or "auto")
    return model, data
