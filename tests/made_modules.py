"""Modules of a package that are made before a process is forked, and which each child finds where it imports them."""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pkgutil
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def _find_checkout(found: importlib.machinery.ModuleSpec) -> list[str]:
    assert found.origin is not None
    parent = Path(found.origin).resolve().parents[1]
    return [str(parent)] if (parent / "ops" / "PART_OF_MATEX_TF").is_file() else []


class MadeModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The modules of a package, whose code has run. An import of one gives it and what it imports their places in
    `sys.modules`.

    The package itself is none of them. It does at its import what is to be done in the child.
    """

    def __init__(self, package: str, without: tuple[str, ...]):
        self.package = package
        self.imports: dict[str, list[str]] = {}
        found = importlib.util.find_spec(package)
        assert found is not None and found.submodule_search_locations is not None
        sys.modules[package] = importlib.util.module_from_spec(found)
        # As the package does in a checkout, whose ops/ is next to it: an installation may know another checkout's.
        sys.modules[package].__path__ = [*found.submodule_search_locations, *_find_checkout(found)]
        before, builtins.__import__ = builtins.__import__, self._import
        try:
            self._make(package, list(found.submodule_search_locations), without)
        finally:
            builtins.__import__ = before
        names = [name for name in sys.modules if name.split(".")[0] == package]
        self.modules = {name: sys.modules.pop(name) for name in names}
        del self.modules[package]
        self.specs = {name: module.__spec__ for name, module in self.modules.items()}
        for name, module in self.modules.items():  # an import of it is what makes it known to its package
            parent, _, last = name.rpartition(".")
            if parent in self.modules and vars(self.modules[parent]).get(last) is module:
                delattr(self.modules[parent], last)

    def _make(self, package: str, folders: list[str], without: tuple[str, ...]) -> None:
        for one in pkgutil.iter_modules(folders, package + "."):
            if one.name not in without and not one.name.endswith(".__main__"):
                module = importlib.import_module(one.name)
                if one.ispkg:
                    self._make(one.name, list(module.__path__), without)

    def _import(
        self, name: str, known: Mapping[str, Any] = {}, local: object = None, names: Sequence[str] = (), level: int = 0
    ) -> types.ModuleType:
        result = importlib.__import__(name, known, local, names, level)
        if level:
            name = importlib.util.resolve_name("." * level + name, known["__package__"])
        if name.split(".")[0] == self.package:
            of_importer = self.imports.setdefault(known["__name__"], [])
            of_importer += [name, *(f"{name}.{one}" for one in names or () if f"{name}.{one}" in sys.modules)]
        return result

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self.modules:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=hasattr(self.modules[name], "__path__"))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.specs[module.__name__]
        for name in self.imports.get(module.__name__, ()):
            if name not in sys.modules:
                importlib.import_module(name)
