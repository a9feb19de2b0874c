"""What is known of a variable: its name, its age, and the variable of TensorFlow behind one of Keras."""

from __future__ import annotations

from typing import Any


def find_tf_variable(variable: Any) -> Any:
    """The TensorFlow variable behind a Keras variable; any other is its own."""
    inner = getattr(variable, "_value", None)
    return inner if inner is not None and hasattr(inner, "assign") else variable


def find_name(variable: Any) -> str:
    """The name by which a variable is known in messages and in the layout."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "unnamed")


def find_birth(variable: Any) -> int:
    """A number that grows from one variable to the next that this process makes.

    Ranks know a variable by its place in this order (rule 12): a script may keep variables in a set, whose order is
    another on each rank. A variable of TensorFlow 1 without a resource has 0; its name is known of no other one.
    """
    handle = getattr(find_tf_variable(variable), "handle", None)
    return 0 if handle is None else int(handle._id)
