"""Equations 2 to 4 of HTC, the memory of a network, without their mistakes."""

from __future__ import annotations

from matex_tf.planner.papers import htc

MISTAKES = (
    "equation 4 counts the outputs of dense layers once, not for each row of the batch",
    "equation 4 counts one bias for each dense layer, not for each neuron",
    "the gradients of activations are not counted",
    "the optimizer's slots are not counted",
)
"""Mistakes in equations 2 to 4. `memory` corrects them; it does not count input pipelines, workspaces and
BatchNormalization.
"""


def memory(architecture: htc.Architecture, rows: int, slots: int = 0) -> htc.Memory:
    """Equations 2, 3 and 4 with `MISTAKES` corrected; the optimizer has `slots` numbers for each parameter.

    The result is no bound: measured peaks range from 25% above to 50% below it. The planner measures instead.
    """
    copies = 3 + slots  # numbers for each parameter: its value, and its gradients for one row and for the batch
    entry, *outputs = htc.shapes(architecture)
    features = rows * (entry.size + 2 * sum(shape.size for shape in outputs))  # twice: with their gradients
    parameters = htc.memory_printed(architecture, rows).parameters * copies // 3
    dense = architecture.dense  # dense[0] is the last feature map, which is already counted
    weights, biases = sum(inputs * neurons for inputs, neurons in zip(dense, dense[1:])), sum(dense[1:])
    classifier = 2 * rows * sum(dense[1:]) + copies * (weights + biases)
    return htc.Memory(htc.FLOAT * features, parameters, htc.FLOAT * classifier)
