"""Makes a package callable, such as `matex_tf.tune`, which is a package with modules and a function for scripts.

A function `matex_tf.tune` would not do: Python replaces it by the package when a module of the package is imported.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
    _function: tuple[str, str]  # the module and the name of the function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _load_function(self)(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function, for editors and `inspect.signature`."""
        return inspect.signature(_load_function(self))

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The signature and the docstring of the function, for `help`."""
        function = _load_function(self)
        return f"{function.__name__}{inspect.signature(function)}\n\n{inspect.getdoc(function)}"


def _load_function(package: _CallablePackage) -> Any:
    module, name = package._function
    return getattr(importlib.import_module(module), name)


def make_callable(package: str, module: str, name: str) -> None:
    """Let calls of `package` call the function `name` of `module`, which is imported at the first call."""
    package_module = sys.modules[package]
    package_module.__dict__["_function"] = module, name
    # Python allows the class of a module to be replaced. A call of the module then calls `__call__` of the new class.
    package_module.__class__ = _CallablePackage
