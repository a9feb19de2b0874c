"""Makes ConcreteFunctions for the library itself, and recognizes them: their calls in eager code are not steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf

_OWN = "a function of the library"


def trace_own(function: Callable[..., Any], *specs: Any, **options: Any) -> Any:
    """Return the ConcreteFunction of a Python function, for arguments of these specs. `options`: of `tf.function`."""
    traced = tf.function(function, autograph=False, **options).get_concrete_function(*specs)
    tags.set_tag(traced, _OWN, True)
    return traced


def is_own(function: Any) -> bool:
    """Whether `trace_own` made this ConcreteFunction."""
    return bool(tags.get_tag(function, _OWN, False))
