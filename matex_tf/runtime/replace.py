"""Replacing a function of another library."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def replace_function(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace `owner.name` by `make(original)`, which keeps the original's name, docstring and signature."""
    original = vars(owner)[name] if isinstance(owner, type) and name in vars(owner) else getattr(owner, name)
    if isinstance(original, staticmethod):
        function = original.__func__
        setattr(owner, name, staticmethod(functools.wraps(function)(make(function))))
    else:
        setattr(owner, name, functools.wraps(original)(make(original)))


APIS = ("tensorflow", *(f"tensorflow{within}.compat.v{version}" for within in ("._api.v2", "") for version in "12"))
"""The modules that have TensorFlow's functions for scripts. The last two are made where one is imported by its name."""


def replace_in_apis(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """`replace_function` in each module of `APIS` that has the function `name`, now or when the module is made."""
    made: list[Any] = []

    def replace(api: Any) -> None:
        if hasattr(api, name) and getattr(api, name) not in made:
            replace_function(api, name, make)
            made.append(getattr(api, name))

    for module in APIS:
        patch_when_imported(module, replace)


def patch_when_imported(module: str, patch: Callable[[Any], object]) -> None:
    """Call `patch(module)` as soon as the module is imported; now, if it is."""
    import wrapt

    wrapt.register_post_import_hook(patch, module)


def patch_when_defined(module: str, name: str, patch: Callable[[Any], object]) -> None:
    """`patch_when_imported`, if the module itself defines the class `name`: others have it from elsewhere, or not at
    all.
    """

    def patch_if_defined(found: Any) -> None:
        if getattr(getattr(found, name, None), "__module__", None) == found.__name__:
            patch(found)

    patch_when_imported(module, patch_if_defined)
