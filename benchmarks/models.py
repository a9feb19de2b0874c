"""The models whose steps are timed: many small gradients, few large ones, and two in between."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model to time: its title, input shape, batch, steps of a round, what builds it, its optimizer in Keras."""

    title: str
    shape: tuple[int, ...]
    batch: int
    steps: int
    build: Callable[[Any, tuple[int, ...]], Any]
    optimizer: str = "SGD"  # with momentum


def mlp(keras: Any, shape: tuple[int, ...]) -> Any:
    """42 layers of 256 units: 84 gradients, 2.7 million parameters."""
    hidden = [keras.layers.Dense(256, activation="relu") for _ in range(41)]
    return keras.Sequential([keras.Input(shape), *hidden, keras.layers.Dense(10)])


def cnn(keras: Any, shape: tuple[int, ...]) -> Any:
    """Two convolutions and a dense layer: 1.2 million parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def resnet20(keras: Any, shape: tuple[int, ...], normalises: bool = True) -> Any:
    """He et al. 2016, section 4.2, n = 3: 0.27 million parameters."""
    layers = keras.layers

    def normalised(x: Any, filters: int, strides: int = 1, size: int = 3) -> Any:
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=not normalises)(x)
        return layers.BatchNormalization()(x) if normalises else x

    inputs = keras.Input(shape)
    x = layers.ReLU()(normalised(inputs, 16))
    for filters in (16, 32, 64):
        for block in range(3):
            strides = 2 if filters > 16 and block == 0 else 1
            y = layers.ReLU()(normalised(x, filters, strides))
            y = normalised(y, filters)
            shortcut = x if strides == 1 else normalised(x, filters, strides, size=1)
            x = layers.ReLU()(layers.Add()([y, shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def _end_alexnet(layers: Any, stride: int) -> list[Any]:
    """The layers from the third convolution on. stride: of the last pooling."""
    return [
        layers.Conv2D(384, 3, padding="same", activation="relu"),
        layers.Conv2D(384, 3, padding="same", activation="relu"),
        layers.Conv2D(256, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(3, stride),
        layers.Flatten(),
        layers.Dense(4096, activation="relu"),
        layers.Dense(4096, activation="relu"),
        layers.Dense(10),
    ]


def alexnet(keras: Any, shape: tuple[int, ...]) -> Any:
    """The layers of Krizhevsky et al. 2012 in one tower: 60 million parameters, most in three large gradients."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(96, 11, 4, activation="relu"),
            layers.MaxPooling2D(3, 2),
            layers.Conv2D(256, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(3, 2),
            *_end_alexnet(layers, stride=2),
        ]
    )


def small_alexnet(keras: Any, shape: tuple[int, ...]) -> Any:
    """AlexNet for images of 32 x 32: as many parameters, a third of the computation."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(96, 5, 2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, 2),
            layers.Conv2D(256, 5, padding="same", activation="relu"),
            *_end_alexnet(layers, stride=1),
        ]
    )


def dense(keras: Any, shape: tuple[int, ...]) -> Any:
    """16 layers of 1 MiB, and next to nothing to compute of a few rows."""
    return keras.Sequential([keras.Input(shape), *(keras.layers.Dense(*shape, use_bias=False) for _ in range(16))])


def resnet50(keras: Any, shape: tuple[int, ...]) -> Any:
    """He et al. 2016, as Keras has it: 23.5 million parameters."""
    return keras.applications.ResNet50(weights=None, input_shape=shape, classes=10, classifier_activation=None)


def unet(keras: Any, shape: tuple[int, ...]) -> Any:
    """Ronneberger et al. 2015, with four floors and few filters; a mean over the image stands for its last layer."""
    layers = keras.layers

    def twice(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        return x

    x = inputs = keras.Input(shape)
    kept = []
    for filters in (16, 32, 64, 128):
        kept.append(twice(x, filters))
        x = layers.MaxPooling2D()(kept[-1])
    x = twice(x, 256)
    for beside in reversed(kept):
        x = layers.Conv2DTranspose(beside.shape[-1], 2, 2)(x)
        x = twice(layers.Concatenate()([x, beside]), beside.shape[-1])
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


DEVICE = 100e9  # floating-point operations a second of the device that `on_device` stands for


def on_device(case: Case, normalises: bool = False) -> Case:
    """Gradients of the sizes of those of `case`, a chain of layers, computed by a device, which here is sleep.

    Where it `normalises`, BatchNormalization of ten numbers comes before each layer.
    Each layer takes as long as its multiplications and additions take a device of `DEVICE` operations a second, a third
    of them forwards and two thirds backwards, and none of the processor's time.
    """

    def built(keras: Any, shape: tuple[int, ...]) -> Any:
        import numpy as np
        import tensorflow as tf

        def after(x: Any, seconds: float) -> Any:
            """x, after so many seconds for each of its rows: a rank's, though tf.shape(x) is that of the batch."""

            def pause(rows: Any) -> Any:
                time.sleep(seconds * len(rows))
                return rows

            waited = tf.numpy_function(pause, [x], x.dtype)
            waited.set_shape(x.shape)
            return waited

        def sums(x: Any, value: Any) -> Any:
            """A gradient of the size of `value`, over the rows of x: of an op of its own type, PyFuncStateless.

            It is zero, and takes no time of the processor: the array is made once, where a tensor needs no copy of it.
            """
            count = math.prod(value.shape)
            memory = np.full(count + 16, 0, np.float32)
            gradient = memory[-memory.ctypes.data % 64 // 4 :][:count].reshape(value.shape)
            made = tf.numpy_function(lambda rows: gradient, [x], x.dtype, stateful=False)
            made.set_shape(value.shape)
            return made

        def begin(x: Any, seconds: float, values: Any) -> Any:
            with tf.control_dependencies(values):  # a device, too, has a layer's weights before it computes the layer
                return after(x, seconds)

        class OnDevice(keras.layers.Layer):
            def __init__(self, shapes: list[tuple[int, ...]], operations: float):
                super().__init__()
                self.shapes, self.operations = shapes, operations

            def build(self, _: Any) -> None:
                self.values = [self.add_weight(shape=one, initializer="zeros") for one in self.shapes]

            def call(self, x: Any) -> Any:
                seconds = self.operations / DEVICE

                @tf.custom_gradient
                def compute(x: Any, *values: Any) -> Any:
                    def backwards(upstream: Any) -> Any:
                        upstream = after(upstream, 2 * seconds)
                        return upstream, *(sums(upstream, one) for one in values)

                    return begin(x, seconds, values), backwards

                return compute(x, *map(tf.convert_to_tensor, self.values))

        layers = [layer for layer in case.build(keras, case.shape).layers if layer.weights]
        steps = []
        for layer in layers:
            kernel, *_ = shapes = [tuple(one.shape) for one in layer.weights]
            places = math.prod(layer.output.shape[1:-1])
            steps += [keras.layers.BatchNormalization()] * normalises
            steps.append(OnDevice(shapes, 2.0 * math.prod(kernel) * places))
        first = keras.layers.Dense(*shape, use_bias=False)  # ranks share steps that compute on rows, which sleep is not
        return keras.Sequential([keras.Input(shape), first, *steps])

    return replace(case, title=f"{case.title}, on a device", shape=(10,), build=built)


CASES = {
    "mlp": Case("MLP of 84 small gradients", (256,), 256, 40, mlp),
    "cnn": Case("small CNN", (28, 28, 1), 64, 20, cnn),
    "resnet20": Case("ResNet-20", (32, 32, 3), 32, 12, resnet20),
    "resnet20-plain": Case(
        "  without normalisation", (32, 32, 3), 32, 12, functools.partial(resnet20, normalises=False)
    ),
    "alexnet": Case("AlexNet-like", (227, 227, 3), 32, 3, alexnet),
    "alexnet32": Case("AlexNet-like, 32 x 32", (32, 32, 3), 32, 6, small_alexnet),
    "alexnet32-adam": Case("  with Adam", (32, 32, 3), 32, 6, small_alexnet, "Adam"),
}
ON_DEVICE = {
    "alexnet-device": on_device(CASES["alexnet"]),
    "normalised-device": on_device(CASES["alexnet"], normalises=True),
}
EXCHANGED = {"dense": Case("16 layers of 1 MiB", (512,), 1, 7, dense)}
LARGE = {
    "unet": Case("U-Net", (128, 128, 3), 32, 3, unet),
    "resnet50": Case("ResNet-50", (112, 112, 3), 32, 3, resnet50),
}
