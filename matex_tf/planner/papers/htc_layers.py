"""HTC's architectures as text: 224x224x3 conv:11/4+2:96 pool:3/2 ... dense:4096,4096,1000."""

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
    first, *middle, last = [*text.split(), "", ""][: max(len(text.split()), 2)]
    entry, dense = _ENTRY.fullmatch(first), _DENSE.fullmatch(last)
    if not entry or not dense:
        raise ValueError(f"expected {FORM}; given {text!r}")
    layers = [_parse_layer(word) for word in middle]
    if not any(layer.filters for layer in layers):
        raise ValueError("expected one convolution or more: the choice is between their algorithms")
    shape = htc.Shape(*map(int, entry.groups()))
    if shape.width != shape.height or min(shape.width, shape.depth) < 1:
        raise ValueError(f"expected a square input with channels, as the algorithms are counted; given {first}")
    neurons = [int(one) for one in dense[1].split(",")]
    features = htc.shapes(htc.Architecture(shape, layers, neurons))[-1].size
    return htc.Architecture(shape, tuple(layers), (features, *neurons))


def _parse_layer(word: str) -> htc.Layer:
    found = _LAYER.fullmatch(word)
    is_whole = found is not None and (found[1] == "conv") == bool(int(found[5] or 0))
    if found is None or not is_whole or not int(found[2]) or found[3] == "0":
        raise ValueError(f"expected conv:EXTENT/STRIDE+PADDING:FILTERS or pool:EXTENT/STRIDE; given {word!r}")
    return htc.Layer(int(found[2]), int(found[3] or 1), int(found[4] or 0), int(found[5] or 0))


def format_architecture(architecture: htc.Architecture) -> str:
    """The text of `architecture`, as `parse_architecture` takes it."""
    entry = architecture.entry
    return " ".join(
        [f"{entry.width}x{entry.height}x{entry.depth}", *map(_format_layer, architecture.layers)]
        + ["dense:" + ",".join(map(str, architecture.dense[1:]))]
    )


def _format_layer(layer: htc.Layer) -> str:
    text = f"{'conv' if layer.filters else 'pool'}:{layer.extent}"
    text += f"/{layer.stride}" * (layer.stride != 1) + f"+{layer.padding}" * bool(layer.padding)
    return text + f":{layer.filters}" * bool(layer.filters)
