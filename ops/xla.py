"""XLA: whether functions with collective ops can be compiled. The ops' XLA kernels are built and loaded at first use.

A function with an op that has no XLA kernel runs uncompiled; `find_obstacle` gives the reason.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable

from matex_tf import errors, settings
from matex_tf.lazy import tf

from . import build
from .collectives import OP_TYPES
from .overlap import OP_TYPES as OVERLAPPED

KERNELS = ("MatexAllreduce", "MatexBroadcast", "MatexBarrier", "MatexReduceGradients")
"""The ops with XLA kernels. An all-gather has none: its output shape is known only after it has run."""

_loaded: ctypes.CDLL | None = None


def find_obstacle(types: Iterable[str]) -> str:
    """Why XLA cannot compile a function with ops of these types; "" if it can. Not a collective.

    For the first function with a collective op, the kernels are built, if they are not in the cache, and loaded.
    """
    collectives = sorted(set(types) & {*OP_TYPES, *OVERLAPPED})
    missing_kernels = [name for name in collectives if name not in KERNELS]
    if missing_kernels:
        return f"XLA has no kernel for {', '.join(missing_kernels)}"
    return _load_kernels() if collectives else ""


def forget_variable(variable: int) -> None:
    """Forget a deleted variable, given by its number.

    The library of the kernels keeps a description, or request, of each collective in a compiled step (custom_call.cc).
    This drops the requests that name the variable.
    """
    if _loaded is not None:
        _loaded.matex_xla_forget(ctypes.c_int64(variable))


@functools.cache
def _load_kernels() -> str:
    """Load the kernels; returns "" or the reason why they cannot be loaded."""
    global _loaded
    if settings.get_settings().xla == "off":
        return "MATEX_XLA=off"
    if tf.config.list_physical_devices("GPU"):
        return "the collectives have XLA kernels for CPUs only"
    try:
        _loaded = ctypes.CDLL(str(build.build_xla()))
    except (errors.BuildError, OSError) as error:
        return str(error).splitlines()[0]
    return ""
