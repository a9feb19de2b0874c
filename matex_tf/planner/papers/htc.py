"""Memory, and numbers of GPUs and servers: HTC (Zou et al., 2017).

The paper is "Distributed Training Large-Scale Deep Architectures": equations 1 to 5 (section 3.1.3), here in bytes
instead of bits; lemmas 3.1 (section 3.2) and 3.2 (section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf import arguments
from matex_tf.planner.papers.domain import Estimate, check_positive

FLOAT = 4
_KEPT = 3  # a parameter, its gradient of one row and its gradient of the batch

MISTAKES = (
    "equation 4 counts the outputs of dense layers once, not for each row of the batch",
    "equation 4 counts one bias for each dense layer, not for each neuron",
    "the gradients of activations are not counted",
    "the optimizer's slots are not counted",
)
"""Mistakes in equations 2 to 4 that `memory` corrects. Neither counts input pipelines, workspaces,
BatchNormalization.
"""


@dataclass(frozen=True)
class Layer:
    """A convolution with `filters` filters, or a pooling if 0: F_i, S_i, P_i and K_i of the paper."""

    extent: int
    stride: int = 1
    padding: int = 0
    filters: int = 0


@dataclass(frozen=True)
class Shape:
    """The input or output of a layer: B_i x H_i x D_i."""

    width: int
    height: int
    depth: int

    @property
    def size(self) -> int:
        return self.width * self.height * self.depth


@dataclass(frozen=True)
class Architecture:
    """Convolutions and poolings, then dense layers of `dense` neurons; the first of these are the
    flattened features.
    """

    entry: Shape
    layers: Sequence[Layer]
    dense: Sequence[int]


ALEXNET = Architecture(
    Shape(224, 224, 3),
    (
        Layer(11, 4, 2, 96),
        Layer(3, 2),
        Layer(5, 1, 2, 256),
        Layer(3, 2),
        Layer(3, 1, 1, 384),
        Layer(3, 1, 1, 384),
        Layer(3, 1, 1, 256),
        Layer(3, 2),
    ),
    (9216, 4096, 4096, 1000),
)
"""AlexNet without groups, the example of section 3.1.3."""


@dataclass(frozen=True)
class Memory:
    """Bytes of feature maps (M_FM), of convolutions' parameters (M_MP) and of the classifier (M_C)."""

    features: int
    parameters: int
    classifier: int

    def left(self, device: float) -> float:
        """M_bound, equation 5: bytes left for convolution algorithms on a device of `device` bytes; negative: nothing
        fits.
        """
        return device - self.features - self.parameters - self.classifier


def shapes(architecture: Architecture) -> list[Shape]:
    """Equation 1: the shape of the input, and of each layer's output, with incomplete windows omitted."""
    found_shapes = [architecture.entry]
    for layer in architecture.layers:
        previous = found_shapes[-1]
        width, height = (
            (side - layer.extent + 2 * layer.padding) // layer.stride + 1 for side in (previous.width, previous.height)
        )
        if width < 1 or height < 1:
            raise ValueError(
                f"a window of {layer.extent} with a padding of {layer.padding} does not fit an input of width "
                f"{previous.width}"
            )
        found_shapes.append(Shape(width, height, layer.filters or previous.depth))
    return found_shapes


def memory_printed(architecture: Architecture, rows: int) -> Memory:
    """Equations 2, 3 and 4 as printed, with their mistakes."""
    rows = arguments.check_whole_number("memory_printed", "rows", rows)
    dense = architecture.dense
    classifier = sum(dense) + _KEPT * (_count_dense_weights(dense) + len(dense) - 1)
    features = sum(shape.size for shape in shapes(architecture)) * rows
    return Memory(FLOAT * features, FLOAT * _KEPT * _count_convolution_parameters(architecture), FLOAT * classifier)


def memory(architecture: Architecture, rows: int, slots: int = 0) -> Memory:
    """Equations 2, 3 and 4 with `MISTAKES` corrected; the optimizer has `slots` numbers for each parameter.

    Not a bound: measured peaks range from 25% above to 50% below these counts. The planner measures instead.
    """
    rows = arguments.check_whole_number("memory", "rows", rows)
    slots = arguments.check_whole_number("memory", "slots", slots, least=0)
    dense = architecture.dense
    entry, *outputs = shapes(architecture)
    features = rows * (entry.size + 2 * sum(shape.size for shape in outputs))
    # The input of the first dense layer is the last feature map, which is already counted.
    outputs_of_dense = 2 * rows * sum(dense[1:])
    parameters = (_KEPT + slots) * _count_convolution_parameters(architecture)
    classifier = outputs_of_dense + (_KEPT + slots) * (_count_dense_weights(dense) + sum(dense[1:]))
    return Memory(FLOAT * features, FLOAT * parameters, FLOAT * classifier)


def _count_convolution_parameters(architecture: Architecture) -> int:
    return sum(
        layer.filters * (layer.extent**2 * entry.depth + 1)
        for layer, entry in zip(architecture.layers, shapes(architecture))
    )


def _count_dense_weights(dense: Sequence[int]) -> int:
    return sum(here * there for here, there in zip(dense, dense[1:]))


def efficiency(gpus: int, overhead: float) -> float:
    """alpha of lemma 3.1 (equation 13). `overhead` R_O = T_O / T_C is measured on one GPU and assumed constant.

    It is Amdahl's law with the parallel fraction T_C / (T_C + T_O).
    """
    gpus = arguments.check_whole_number("efficiency", "gpus", gpus)
    if not 0 <= overhead < math.inf:
        raise ValueError(f"efficiency: expected an overhead of 0 or more; given {overhead}")
    return (1 + overhead) / (1 + gpus * overhead)


def overhead(gpus: int, efficiency: float) -> float:
    """R_O that results in `efficiency` on `gpus` (equation 12). Raises ValueError if there is none: alpha <= 1 / G."""
    gpus = arguments.check_whole_number("overhead", "gpus", gpus)
    if not 1 / gpus < efficiency <= 1:
        raise ValueError(f"overhead: expected an efficiency above 1/{gpus} and at most 1; given {efficiency}")
    return (1 - efficiency) / (efficiency * gpus - 1)


def gpus_for(speedup: float, overhead: float) -> int | None:
    """The fewest GPUs with a speedup of alpha G (lemma 3.1); None if the overhead makes it impossible."""
    check_positive("gpus_for", speedup=speedup)
    if overhead * speedup >= 1 + overhead:
        return None
    return max(1, math.ceil(speedup / (1 + overhead - overhead * speedup) - 1e-9))


def servers(workers: int, parameter_bytes: float, bandwidth: float, compute: float) -> Estimate:
    """N_ps of lemma 3.2 (equation 8): servers that hide pull and push behind `compute` seconds; `bandwidth` bytes/s
    each.

    It assumes an even load, and that all transfers can hide behind computation. It ignores a worker's own link: if that
    link needs longer than the computation, no number of servers hides the transfers.
    """
    workers = arguments.check_whole_number("servers", "workers", workers)
    check_positive("servers", parameter_bytes=parameter_bytes, bandwidth=bandwidth, compute=compute)
    transfer = 2 * parameter_bytes / bandwidth
    outside = f"a worker transfers for {transfer:.3g} s and computes for {compute:.3g} s" if transfer > compute else ""
    return Estimate(max(1, math.ceil(workers * transfer / compute - 1e-9)), outside)
