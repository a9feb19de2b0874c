"""Attaches values to objects of TensorFlow: the object owns its tags, and both are freed together.

A weak dictionary would not do: a value that refers to its key would keep the key alive, and variables cannot be keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")

_ATTRIBUTE = "_matex_tags"


def set_tag(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, _ATTRIBUTE):
        setattr(owner, _ATTRIBUTE, {})
    _get_tags(owner)[name] = value


def get_tag(owner: Any, name: str, default: Any = None) -> Any:
    return _get_tags(owner).get(name, default)


def get_or_make_tag(owner: Any, name: str, make: Callable[[], Value]) -> Value:
    """The tag of `owner`; if there is none, it becomes the result of `make`."""
    if name not in _get_tags(owner):
        set_tag(owner, name, make())
    return _get_tags(owner)[name]


def _get_tags(owner: Any) -> dict[str, Any]:
    return getattr(owner, _ATTRIBUTE, {})
