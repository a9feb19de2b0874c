"""How much memory, how many GPUs and servers: HTC (Zou et al., 2017).

The paper is "Distributed Training Large-Scale Deep Architectures". Equations 1 to 5 (section 3.1.3) are in bytes where
it counts bits; lemmas 3.1 (3.2) and 3.2 (3.3).
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
"""What `memory` mends in equations 2 to 4. Input pipeline, workspaces and BatchNormalization stay uncounted in both."""


@dataclass(frozen=True)
class Layer:
    """A convolution of `filters` filters, or with 0 a pooling: F_i, S_i, P_i and K_i of the paper."""

    extent: int
    stride: int = 1
    padding: int = 0
    filters: int = 0


@dataclass(frozen=True)
class Shape:
    """Of what goes into a layer or comes out: B_i x H_i x D_i."""

    width: int
    height: int
    depth: int

    @property
    def size(self) -> int:
        return self.width * self.height * self.depth


@dataclass(frozen=True)
class Architecture:
    """Convolutions and poolings, then dense layers of `dense` neurons, the first of them the flattened features."""

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
"""Without groups, the example of section 3.1.3."""


@dataclass(frozen=True)
class Memory:
    """Bytes of feature maps (M_FM), of convolutions' parameters (M_MP) and of the classifier (M_C)."""

    features: int
    parameters: int
    classifier: int

    def left(self, device: float) -> float:
        """M_bound, equation 5: what convolution algorithms may use of `device` bytes; below 0 nothing fits."""
        return device - self.features - self.parameters - self.classifier


def shapes(architecture: Architecture) -> list[Shape]:
    """What goes into the first layer and comes out of each, equation 1; a window that does not fit is left out."""
    found = [architecture.entry]
    for layer in architecture.layers:
        last = found[-1]
        width, height = (
            (side - layer.extent + 2 * layer.padding) // layer.stride + 1 for side in (last.width, last.height)
        )
        if width < 1 or height < 1:
            raise ValueError(
                f"a window of {layer.extent} with a padding of {layer.padding} does not fit what is {last.width} wide"
            )
        found.append(Shape(width, height, layer.filters or last.depth))
    return found


def memory_printed(architecture: Architecture, rows: int) -> Memory:
    """Equations 2, 3 and 4 as printed, with their mistakes."""
    rows = arguments.check_whole_number("memory_printed", "rows", rows)
    dense = architecture.dense
    classifier = sum(dense) + _KEPT * (_count_dense_weights(dense) + len(dense) - 1)
    features = sum(shape.size for shape in shapes(architecture)) * rows
    return Memory(FLOAT * features, FLOAT * _KEPT * _count_convolution_parameters(architecture), FLOAT * classifier)


def memory(architecture: Architecture, rows: int, slots: int = 0) -> Memory:
    """Equations 2, 3 and 4 with `MISTAKES` mended; the optimizer has `slots` numbers for each parameter.

    No bound: measured peaks lie from a quarter above to a half below such counts. A planner measures.
    """
    rows = arguments.check_whole_number("memory", "rows", rows)
    slots = arguments.check_whole_number("memory", "slots", slots, least=0)
    dense = architecture.dense
    entry, *outputs = shapes(architecture)
    features = rows * (entry.size + 2 * sum(shape.size for shape in outputs))
    # The first dense layer's input is the last feature map, which has been counted.
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
    """alpha of lemma 3.1 (equation 13), for `overhead` R_O = T_O / T_C, measured on one GPU and the same on any number.

    It is Amdahl's law with the parallel part T_C / (T_C + T_O).
    """
    gpus = arguments.check_whole_number("efficiency", "gpus", gpus)
    if not 0 <= overhead < math.inf:
        raise ValueError(f"efficiency: expected an overhead of 0 or more; given {overhead}")
    return (1 + overhead) / (1 + gpus * overhead)


def overhead(gpus: int, efficiency: float) -> float:
    """R_O that leaves `efficiency` on `gpus` (equation 12). Raises ValueError where none does: alpha <= 1 / G."""
    gpus = arguments.check_whole_number("overhead", "gpus", gpus)
    if not 1 / gpus < efficiency <= 1:
        raise ValueError(f"overhead: expected an efficiency above 1/{gpus} and at most 1; given {efficiency}")
    return (1 - efficiency) / (efficiency * gpus - 1)


def gpus_for(speedup: float, overhead: float) -> int | None:
    """The fewest GPUs with a speedup of alpha G (lemma 3.1); None where overhead forbids it on any number."""
    check_positive("gpus_for", speedup=speedup)
    if overhead * speedup >= 1 + overhead:
        return None
    return max(1, math.ceil(speedup / (1 + overhead - overhead * speedup) - 1e-9))


def servers(workers: int, parameter_bytes: float, bandwidth: float, compute: float) -> Estimate:
    """N_ps of lemma 3.2 (equation 8): as many as hide pull and push behind `compute` seconds; `bandwidth` bytes/s each.

    It assumes that the load is even and that all transfers hide behind computation. A worker's own link is not in it:
    if that alone needs longer than the computation, no number of servers hides it.
    """
    workers = arguments.check_whole_number("servers", "workers", workers)
    check_positive("servers", parameter_bytes=parameter_bytes, bandwidth=bandwidth, compute=compute)
    transfer = 2 * parameter_bytes / bandwidth
    outside = f"a worker transfers for {transfer:.3g} s and computes for {compute:.3g} s" if transfer > compute else ""
    return Estimate(max(1, math.ceil(workers * transfer / compute - 1e-9)), outside)
