"""Which tensors of a trace are gradients, and of which variables: recorded where the script computes them.

Labels name the sums of gradients in messages, and number them for the engine.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf import settings, tags
from matex_tf.lazy import tf
from matex_tf.ops import xla
from matex_tf.rewrite import labels
from matex_tf.rewrite.programs import Program

_LABEL = "label of gradients"
_FINITE = ("IsFinite", "IsInf", "IsNan")  # ops by which a step itself finds gradients that are not finite
_count = itertools.count(1)


class Label(NamedTuple):
    """The label of a gradient: the name of its variable, and a number from 1 that only this variable has."""

    name: str
    number: int


def note_gradients(computed: Any, sources: Any) -> None:
    """Label gradients that were computed in a graph, one for each of `sources`, which may be variables."""
    for gradient, source in zip(tf.nest.flatten(computed), tf.nest.flatten(sources)):
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        owner = _find_owner(source)
        if owner is not None and tf.is_symbolic_tensor(values):
            labels.set_label(values, make_label(owner))


def _find_owner(source: Any) -> Any:
    """The object that gets the label: a variable, or the op of a reference variable of TensorFlow 1; else None."""
    variable = getattr(source, "_value", source)  # a variable of Keras
    if hasattr(variable, "handle"):
        return variable
    return source.op if getattr(getattr(source, "dtype", None), "_is_ref_dtype", False) else None


def make_label(variable: Any) -> Label:
    def make() -> Label:
        number = next(_count)
        # Compiled steps keep prepared requests by these numbers.
        weakref.finalize(variable, xla.forget_variable, number).atexit = False
        return Label(str(variable.name).removesuffix(":0"), number)

    return tags.get_or_make_tag(variable, _LABEL, make)


def are_checked(program: Program) -> bool:
    """Whether gradients that are not finite are an error: not if the step handles them itself, as loss scaling does."""
    return settings.get_settings().check_numerics and not labels.checks_labelled(program, _FINITE)


def name_sums(tensors: Sequence[Any], labels_of_sums: Sequence[Label | None]) -> tuple[list[str], list[int]]:
    """Names and numbers of sums. The first sum of a variable gets the variable's number, any other sum 0.

    By the number, the engine keeps what belongs to one gradient, such as the residual of its compression.
    """
    numbers = [0 if label is None else label.number for label in labels_of_sums]
    numbers = [0 if number in numbers[:index] else number for index, number in enumerate(numbers)]
    names = [tensor.op.name if label is None else label.name for tensor, label in zip(tensors, labels_of_sums)]
    return names, numbers
