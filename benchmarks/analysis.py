"""What proving a training step costs beside tracing it: python benchmarks/analysis.py

For ResNet-50 and a transformer of 12 layers, one process, no MPI: seconds to trace forward and backward pass, and
seconds to interpret the graph for its loss, its gradients' factors and all that it assigns.
"""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from keras import layers

from matex_tf.analysis import declarations, interpreter, verdict
from matex_tf.analysis.placement import ROWS


def resnet():
    return keras.applications.ResNet50(weights=None, classes=10, input_shape=(64, 64, 3)), (64, 64, 3)


def transformer():
    inputs = keras.Input((32, 64))
    found = inputs
    for _ in range(12):
        attended = layers.MultiHeadAttention(4, 16)(found, found)
        found = layers.LayerNormalization()(found + layers.Dropout(0.1)(attended))
        wide = layers.Dense(64)(layers.Dense(256, "gelu")(found))
        found = layers.LayerNormalization()(found + layers.Dropout(0.1)(wide))
    outputs = layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(found))
    return keras.Model(inputs, outputs), (32, 64)


def measure(name, make):
    model, shape = make()
    loss_of, optimizer = keras.losses.SparseCategoricalCrossentropy(), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    start = time.perf_counter()
    graph = step.get_concrete_function(tf.TensorSpec([None, *shape]), tf.TensorSpec([None], tf.int64)).graph
    traced = time.perf_counter() - start
    for tensor in graph.inputs[:2]:
        declarations.declare_placement(tensor, ROWS)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        found = interpreter.make_interpreter(graph)
        loss = found.find_placement(graph.outputs[0])
        verdict.find_side_effect(found, graph.get_operations())
        times.append(time.perf_counter() - start)
    proved = sorted(times)[2]
    assert (loss.kind, loss.power) == ("partial", 1), loss
    operations = len(graph.get_operations())
    print(f"{name:<14}{operations:>12}{traced:>12.2f}{proved:>12.3f}{proved / traced:>12.1%}")


if __name__ == "__main__":
    print(f"{'model':<14}{'operations':>12}{'traced s':>12}{'proved s':>12}{'share':>12}")
    measure("ResNet-50", resnet)
    measure("transformer", transformer)
