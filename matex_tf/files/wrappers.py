"""Tools for hooks on file functions: a stand-in for an object or a class, and a function with a converted argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class Proxy:
    """Has the attributes of `original`, except for attributes that a subclass defines."""

    def __init__(self, original: Any):
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def make_meta(original: Any) -> Any:
    """A metaclass for the class that takes the place of `original`, its base: all instances and subclasses of
    `original` count as instances and subclasses of this class. C code still makes objects of the original class.
    """

    # A class that a script derives from the new class inherits the metaclass. Its base is not `original`, and the usual
    # rules hold for it.
    class Meta(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original) if cls.__base__ is original else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original) if cls.__base__ is original else super().__subclasscheck__(subclass)

    return Meta


def wrap_argument(name: str, convert: Callable[[Any], Any]) -> Any:
    """For Python functions with an argument `name`: replaces it by `convert(argument)`."""

    def make(original: Any) -> Any:
        index = list(inspect.signature(original).parameters).index(name)

        def function(*args, **kwargs):
            return call_with_converted(original, args, kwargs, name, index, convert)

        return function

    return make


def call_with_converted(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, index: int, convert: Callable[[Any], Any]
) -> Any:
    """`function(*args, **kwargs)`, with `convert(argument)` in place of the argument `name`, at position `index`."""
    if name in kwargs:
        kwargs = {**kwargs, name: convert(kwargs[name])}
    elif len(args) > index:
        args = (*args[:index], convert(args[index]), *args[index + 1 :])
    return function(*args, **kwargs)
