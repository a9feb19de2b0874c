"""Memory of a convolutional network, and the number of servers: HTC (Zou et al., 2017).

The paper is "Distributed Training Large-Scale Deep Architectures": equations 1 to 5 (section 3.1.3), here in bytes
instead of bits, and lemma 3.2 (section 3.3).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf import arguments
from matex_tf.planner.papers.domain import Estimate, check_positive

FLOAT = 4
"""Bytes of a number."""
_COPIES = 3  # numbers for each parameter: its value, its gradient for one row, and its gradient for the batch
FORM = "WIDTHxHEIGHTxDEPTH, then conv:EXTENT/STRIDE+PADDING:FILTERS and pool:EXTENT/STRIDE, last dense:NEURONS,..."
"""The form of an architecture as text, for `matex simulate --layers`."""
_ENTRY = re.compile(r"(\d+)x(\d+)x(\d+)")
_LAYER = re.compile(r"(conv|pool):(\d+)(?:/(\d+))?(?:\+(\d+))?(?::(\d+))?")
_DENSE = re.compile(r"dense:(\d+(?:,\d+)*)")


@dataclass(frozen=True)
class Layer:
    """A convolution, or a pooling if `filters` is 0. The fields are F_i, S_i, P_i and K_i of the paper."""

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
    """A network for images: convolutions and poolings, then dense layers."""

    entry: Shape
    """The shape of an input."""
    layers: Sequence[Layer]
    """Convolutions and poolings."""
    dense: Sequence[int]
    """The number of flattened features, then the neurons of each dense layer."""


@dataclass(frozen=True)
class Memory:
    """Bytes of feature maps (M_FM), of convolutions' parameters (M_MP) and of the classifier (M_C: dense layers)."""

    features: int
    parameters: int
    classifier: int

    def left(self, device: float) -> float:
        """M_bound, equation 5: bytes that remain on a device of `device` bytes for convolution algorithms.

        Negative if the network does not fit.
        """
        return device - self.features - self.parameters - self.classifier


def shapes(architecture: Architecture) -> list[Shape]:
    """The shape of the input and of each layer's output. Equation 1: B_{i+1} = floor((B_i - F_i + 2 P_i) / S_i) + 1."""
    all_shapes = [architecture.entry]
    for layer in architecture.layers:
        previous = all_shapes[-1]
        width, height = (
            (side - layer.extent + 2 * layer.padding) // layer.stride + 1 for side in (previous.width, previous.height)
        )
        if width < 1 or height < 1:
            raise ValueError(
                f"a window of {layer.extent} with a padding of {layer.padding} does not fit an input of width "
                f"{previous.width}"
            )
        all_shapes.append(Shape(width, height, layer.filters or previous.depth))
    return all_shapes


def parse_architecture(text: str) -> Architecture:
    """Parse an architecture (`FORM`). The number of inputs of its first dense layer is computed here.

    For example, 224x224x3 conv:11/4+2:96 pool:3/2 ... dense:4096,4096,1000 takes images of 224 x 224 with 3 channels.
    Its first layer has 96 filters of 11 x 11, stride 4 and padding 2.

    Raises:
        ValueError: a word is invalid, or in an invalid position.
    """
    words = text.split()
    entry_match = _ENTRY.fullmatch(words[0]) if words else None
    dense_match = _DENSE.fullmatch(words[-1]) if words else None
    if not entry_match or not dense_match:
        raise ValueError(f"expected {FORM}; given {text!r}")
    layers = [_parse_layer(word) for word in words[1:-1]]
    if not any(layer.filters for layer in layers):
        raise ValueError("expected one convolution or more: the choice is between their algorithms")
    shape = Shape(*map(int, entry_match.groups()))
    if shape.width != shape.height or min(shape.width, shape.depth) < 1:
        raise ValueError(f"expected a square input with channels, as the algorithms are counted; given {words[0]}")
    neurons = [int(count) for count in dense_match[1].split(",")]
    features = shapes(Architecture(shape, layers, neurons))[-1].size
    return Architecture(shape, tuple(layers), (features, *neurons))


def _parse_layer(word: str) -> Layer:
    match = _LAYER.fullmatch(word)
    if match:
        kind, extent, stride, padding, filters = match[1], *(int(number or 0) for number in match.groups()[1:])
        # The extent must be above 0, and the stride if it is given. A convolution has filters, and a pooling has none.
        if extent and match[3] != "0" and (kind == "conv") == (filters > 0):
            return Layer(extent, stride or 1, padding, filters)
    raise ValueError(f"expected conv:EXTENT/STRIDE+PADDING:FILTERS or pool:EXTENT/STRIDE; given {word!r}")


ALEXNET_LAYERS = (
    "224x224x3 conv:11/4+2:96 pool:3/2 conv:5+2:256 pool:3/2 conv:3+1:384 conv:3+1:384 conv:3+1:256 pool:3/2 "
    "dense:4096,4096,1000"
)
ALEXNET = parse_architecture(ALEXNET_LAYERS)
"""AlexNet without groups, the example of section 3.1.3."""


def memory_printed(architecture: Architecture, rows: int) -> Memory:
    """Equations 2, 3 and 4 as printed, with their mistakes: for example, equation 4 (the classifier) ignores `rows`."""
    rows = arguments.check_whole_number("memory_printed", "rows", rows)
    all_shapes, dense = shapes(architecture), architecture.dense
    features = sum(shape.size for shape in all_shapes) * rows
    parameters = sum(  # weights and biases of convolutions
        layer.filters * (layer.extent**2 * input_shape.depth + 1)
        for layer, input_shape in zip(architecture.layers, all_shapes)
    )
    dense_weights = sum(inputs * outputs for inputs, outputs in zip(dense, dense[1:]))
    classifier = sum(dense) + _COPIES * (dense_weights + len(dense) - 1)
    return Memory(FLOAT * features, FLOAT * _COPIES * parameters, FLOAT * classifier)


def servers(workers: int, parameter_bytes: float, bandwidth: float, compute: float) -> Estimate:
    """N_ps of lemma 3.2 (equation 8): servers that hide the pull and the push of a step behind its `compute` seconds.

    Each server has `bandwidth` bytes a second. The lemma assumes that the servers have equal loads, and that all
    transfers can hide behind computation. It ignores a worker's own link: if that link takes longer than the
    computation, no number of servers hides the transfers.
    """
    workers = arguments.check_whole_number("servers", "workers", workers)
    check_positive("servers", parameter_bytes=parameter_bytes, bandwidth=bandwidth, compute=compute)
    transfer = 2 * parameter_bytes / bandwidth
    outside = f"a worker transfers for {transfer:.3g} s and computes for {compute:.3g} s" if transfer > compute else ""
    # A quotient that rounding has put just above a whole number counts as this number.
    return Estimate(max(1, math.ceil(workers * transfer / compute - 1e-9)), outside)
