"""Which tensors of a trace are gradients, and of which variables: known where they are taken."""

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
_FINITE = ("IsFinite", "IsInf", "IsNan")
_count = itertools.count(1)


class Label(NamedTuple):
    """Of the gradient of a variable. number: from 1, the variable's as long as it lives, and of no other one."""

    name: str
    number: int


def note_gradients(found: Any, sources: Any) -> None:
    """Label gradients that were taken in a graph, one for each of `sources`, which may be variables."""
    for gradient, source in zip(tf.nest.flatten(found), tf.nest.flatten(sources)):
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        owner = _find_owner(source)
        if owner is not None and tf.is_symbolic_tensor(values):
            labels.set_label(values, make_label(owner))


def _find_owner(source: Any) -> Any:
    """The variable that `source` is, or its op where TensorFlow 1 refers to it without a resource; None: neither."""
    variable = getattr(source, "_value", source)  # of Keras' own kind
    if hasattr(variable, "handle"):
        return variable
    return source.op if getattr(getattr(source, "dtype", None), "_is_ref_dtype", False) else None


def make_label(variable: Any) -> Label:
    def make() -> Label:
        number = next(_count)
        weakref.finalize(variable, xla.forget_variable, number).atexit = False
        return Label(str(variable.name).removesuffix(":0"), number)

    return tags.get_or_make_tag(variable, _LABEL, make)


def are_checked(program: Program) -> bool:
    """Whether gradients that are no finite numbers are an error: not where the step looks for such, to skip them."""
    return settings.get_settings().check_numerics and not labels.are_looked_at(program, _FINITE)


def name_sums(tensors: Sequence[Any], found: Sequence[Label | None]) -> tuple[list[str], list[int]]:
    """Names and numbers of sums; the number of a variable is given once."""
    numbers = [0 if one is None else one.number for one in found]
    numbers = [0 if number in numbers[:index] else number for index, number in enumerate(numbers)]
    return [tensor.op.name if one is None else one.name for tensor, one in zip(tensors, found)], numbers
