"""The variables of TensorFlow behind those of Keras."""

from __future__ import annotations

from typing import Any


def find_inner(variable: Any) -> Any:
    """The variable of TensorFlow behind one of Keras, also where that casts what is read."""
    for name in ("_value", "_variable"):
        behind = getattr(variable, name, None)
        variable = behind if behind is not None and hasattr(behind, "assign") else variable
    return variable
