"""Pieces that stand in the places of whole variables while an optimizer updates them.

The optimizer finds variables by identity, name and place, which stay: their handles and shapes are exchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

_FLAT = {"_shape": (None,), "_ndim": 1}


def find_inner(variable: Any) -> Any:
    """The variable of TensorFlow behind one of Keras, also where that casts what is read."""
    for name in ("_value", "_variable"):
        behind = getattr(variable, name, None)
        variable = behind if behind is not None and hasattr(behind, "assign") else variable
    return variable


def find_handle(variable: Any) -> Any:
    """The handle of a variable of TensorFlow, which need not be whole for it."""
    return vars(variable)["_handle"]


def put_value(variable: Any, value: Any) -> None:
    """Assign to a variable whatever its shape is now."""
    import tensorflow as tf

    tf.raw_ops.AssignVariableOp(resource=find_handle(variable), value=value, validate_shape=False)


@contextlib.contextmanager
def swap_variables(pairs: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Within it each variable, of Keras or TensorFlow, has what the piece beside it had, and the other way round."""
    known = [(vars(variable), dict(vars(variable))) for variable, _ in pairs if find_inner(variable) is not variable]
    _exchange_values(pairs)
    for having, before in known:  # what Keras knows of the variable behind its own
        having.update({name: value for name, value in _FLAT.items() if name in before})
    try:
        yield
    finally:
        for having, before in known:
            having.update({name: before[name] for name in _FLAT if name in before})
        _exchange_values(pairs)


def _exchange_values(pairs: Sequence[tuple[Any, Any]]) -> None:
    for variable, piece in pairs:
        whole = find_inner(variable)
        mine, its = vars(whole), vars(piece)
        object.__setattr__(whole, "__dict__", its)
        object.__setattr__(piece, "__dict__", mine)
