"""A package that is a function, too: Python sets the package where the function would be."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    _function: tuple[str, str]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, name = self._function
        return getattr(importlib.import_module(module), name)(*args, **kwargs)


def make_callable(package: str, module: str, name: str) -> None:
    """Have a call of `package` be one of the function `name` of `module`, which is loaded at the first."""
    made = sys.modules[package]
    made.__class__ = _Callable
    made.__dict__["_function"] = module, name
