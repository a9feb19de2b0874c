"""HTC's architectures as text, for `matex simulate --layers`.

For example, 224x224x3 conv:11/4+2:96 pool:3/2 ... dense:4096,4096,1000 takes images of 224 x 224 with 3 channels. Its
first layer has 96 filters of 11 x 11, stride 4 and padding 2.
"""

from __future__ import annotations

import re

from matex_tf.planner.papers import htc

FORM = "WIDTHxHEIGHTxDEPTH, then conv:EXTENT/STRIDE+PADDING:FILTERS and pool:EXTENT/STRIDE, last dense:NEURONS,..."
_ENTRY = re.compile(r"(\d+)x(\d+)x(\d+)")
_LAYER = re.compile(r"(conv|pool):(\d+)(?:/(\d+))?(?:\+(\d+))?(?::(\d+))?")
_DENSE = re.compile(r"dense:(\d+(?:,\d+)*)")


def parse_architecture(text: str) -> htc.Architecture:
    """Parse an architecture (`FORM`). The number of inputs of its first dense layer is computed here.

    Raises:
        ValueError: a word is invalid, or in an invalid position.
    """
    words = text.split()
    entry = _ENTRY.fullmatch(words[0]) if words else None
    dense = _DENSE.fullmatch(words[-1]) if words else None
    if not entry or not dense:
        raise ValueError(f"expected {FORM}; given {text!r}")
    layers = [_parse_layer(word) for word in words[1:-1]]
    if not any(layer.filters for layer in layers):
        raise ValueError("expected one convolution or more: the choice is between their algorithms")
    shape = htc.Shape(*map(int, entry.groups()))
    if shape.width != shape.height or min(shape.width, shape.depth) < 1:
        raise ValueError(f"expected a square input with channels, as the algorithms are counted; given {words[0]}")
    neurons = [int(one) for one in dense[1].split(",")]
    features = htc.shapes(htc.Architecture(shape, layers, neurons))[-1].size
    return htc.Architecture(shape, tuple(layers), (features, *neurons))


def _parse_layer(word: str) -> htc.Layer:
    match = _LAYER.fullmatch(word)
    if match:
        kind, extent, stride, padding, filters = match[1], *(int(number or 0) for number in match.groups()[1:])
        # The extent and a given stride are above 0. A convolution has filters, and a pooling has none.
        if extent and match[3] != "0" and (kind == "conv") == (filters > 0):
            return htc.Layer(extent, stride or 1, padding, filters)
    raise ValueError(f"expected conv:EXTENT/STRIDE+PADDING:FILTERS or pool:EXTENT/STRIDE; given {word!r}")


def format_architecture(architecture: htc.Architecture) -> str:
    """The text of `architecture`, as `parse_architecture` takes it."""
    entry = architecture.entry
    return " ".join(
        [f"{entry.width}x{entry.height}x{entry.depth}", *map(_format_layer, architecture.layers)]
        + ["dense:" + ",".join(map(str, architecture.dense[1:]))]
    )


def _format_layer(layer: htc.Layer) -> str:
    stride = f"/{layer.stride}" if layer.stride != 1 else ""
    padding = f"+{layer.padding}" if layer.padding else ""
    if layer.filters:
        return f"conv:{layer.extent}{stride}{padding}:{layer.filters}"
    return f"pool:{layer.extent}{stride}{padding}"
