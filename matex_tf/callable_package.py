"""A package that is a function, too: Python sets the package where the function would be."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    _function: tuple[str, str]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _load_function(self)(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's own: editors and `inspect.signature` show it."""
        return inspect.signature(_load_function(self))

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The function's own, below its signature: `help` shows it."""
        function = _load_function(self)
        return f"{function.__name__}{inspect.signature(function)}\n\n{inspect.getdoc(function)}"


def _load_function(package: _Callable) -> Any:
    module, name = package._function
    return getattr(importlib.import_module(module), name)


def make_callable(package: str, module: str, name: str) -> None:
    """Have a call of `package` be one of the function `name` of `module`, which is loaded at the first."""
    made = sys.modules[package]
    made.__dict__["_function"] = module, name
    made.__class__ = _Callable
