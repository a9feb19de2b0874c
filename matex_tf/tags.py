"""What is known of an object: the object holds it, and both go together.

In a weak dictionary a value that refers to its key would hold it for ever, and variables are no keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")

_ATTRIBUTE = "_matex_tags"


def set_tag(owner: Any, concern: str, value: Any) -> None:
    if not hasattr(owner, _ATTRIBUTE):
        setattr(owner, _ATTRIBUTE, {})
    _get_tags(owner)[concern] = value


def get_tag(owner: Any, concern: str, default: Any = None) -> Any:
    return _get_tags(owner).get(concern, default)


def get_or_make_tag(owner: Any, concern: str, make: Callable[[], Value]) -> Value:
    """The tag of `owner`; if there is none, what `make` makes becomes it."""
    if concern not in _get_tags(owner):
        set_tag(owner, concern, make())
    return _get_tags(owner)[concern]


def _get_tags(owner: Any) -> dict[str, Any]:
    return getattr(owner, _ATTRIBUTE, {})
