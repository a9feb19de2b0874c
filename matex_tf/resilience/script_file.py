"""The file of the script that this process runs, and its digest. A saved state belongs to a script with one digest."""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from typing import Any

from matex_tf.runtime import real_files


def digest_script() -> str:
    """A digest of the command line and of the script's content."""
    arguments = sys.orig_argv[1:]
    path, content = find_script(arguments), b""
    if path is not None and os.path.isfile(path):
        with real_files.use_real_files(), open(path, "rb") as file:
            content = file.read()
    line = "\0".join(arguments).encode(errors="surrogateescape")  # arguments may be no UTF-8
    return hashlib.blake2b(line + b"\0" + content, digest_size=16).hexdigest()


def find_script(arguments: Sequence[str]) -> str | None:
    """The file of the script that Python runs, given Python's command line `arguments`. Imports no module.

    For example, it is train.py for `-m matex_tf train.py`. Without `-m matex_tf` it is the file of `__main__`.
    """
    for index, argument in enumerate(arguments[1:], 1):
        if argument == "matex_tf" and arguments[index - 1] == "-m":
            arguments = arguments[index + 1 :]
            break
    else:
        return getattr(sys.modules["__main__"], "__file__", None)
    if arguments[:1] == ["-m"]:
        return _find_module_file(arguments[1]) if len(arguments) > 1 else None
    path = arguments[0] if arguments else ""
    return os.path.join(path, "__main__.py") if os.path.isdir(path) else path


def _find_module_file(name: str) -> str | None:
    """The file that `python -m NAME` runs; None if there is none."""
    folders: Any = None  # the folders to search; None: sys.path
    for depth in range(1, name.count(".") + 2):
        spec = importlib.machinery.PathFinder.find_spec(".".join(name.split(".")[:depth]), folders)
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    if folders is not None:  # a package
        spec = importlib.machinery.PathFinder.find_spec(f"{name}.__main__", folders)
    return None if spec is None else spec.origin
