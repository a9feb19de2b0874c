"""Installs the replacements of Python's file functions (`queries`, `changes`) on ranks other than 0.

The view does not handle temporary files, whose names differ between ranks, system folders, pipes and sockets.
"""

from __future__ import annotations

import glob
import importlib.machinery
import inspect
import os
import pathlib
import sys
import tempfile
from typing import Any

from matex_tf.files import changes, overlay, paths, wrappers
from matex_tf.files.queries import HOOKS, IF_HOOK_MISSING
from matex_tf.runtime import real_files

REPLACED = [(sys.modules[hook.module], hook.name) for hook in HOOKS]
"""Modules and names of the hooks of `queries` and `changes`: references to them in other modules are replaced, too. The
list is made before this file adds hooks to the same table, and does not have these.
"""

_UNCHANGED = ("builtins", "io", "_io", "_pyio", "posix", "os", "importlib", "matex_tf")
"""Packages whose references stay: they have the hooks, or need the original functions."""


def install() -> None:
    overlay.start_overlay()
    if overlay.get_view() is not None:
        install_view()


def install_view() -> None:
    """Replace Python's file functions, and let imports find this rank's own files."""
    originals = [(getattr(owner, name), owner, name) for owner, name in REPLACED]
    HOOKS.install()
    _replace_captured(originals)
    sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), _MergedFinder)


def _replace_captured(originals: list[tuple[Any, Any, str]]) -> None:
    """Replace references to the original functions in other modules, such as `tarfile.bltn_open`.

    originals: the functions, each with the module and the name under which its replacement is now.
    """
    replacements = {id(original): getattr(owner, name) for original, owner, name in originals}
    # Modules such as `shutil` look up in these sets which arguments a function of `os` accepts.
    for capabilities in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        capabilities.update([replacements[id(original)] for original, _, _ in originals if original in capabilities])
    owners: list[Any] = [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] not in _UNCHANGED and hasattr(module, "__dict__")
    ]
    # Classes that hold references, in some versions of Python.
    owners += [getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None)]
    for owner in filter(None, owners):
        for name, value in list(vars(owner).items()):
            replacement = replacements.get(id(value.__func__ if isinstance(value, staticmethod) else value))
            if replacement is not None:
                setattr(owner, name, staticmethod(replacement) if isinstance(owner, type) else replacement)


@HOOKS.replace("numpy.lib._datasource", "_file_openers._file_openers", IF_HOOK_MISSING, optional=True)
def _renew_openers(original: Any) -> Any:
    """NumPy has a table of `open` functions by file extension; the entry None is for plain files."""
    return {**original, None: open}


@HOOKS.replace("io", "FileIO", IF_HOOK_MISSING)
def _make_file_class(original: Any) -> Any:
    """A class that opens files by the replaced `os.open`; the original one opens them in C code."""

    class FileIO(original, metaclass=wrappers.make_meta(original)):  # type: ignore[metaclass]
        def __init__(self, file, mode="r", closefd=True, opener=None):
            if opener is None and not isinstance(file, int):
                opener = changes.open_for_all
            super().__init__(file, mode, closefd, opener)

    return FileIO


class _MergedFinder:
    """Finds a module like `PathFinder`, but searches this rank's own files first in each folder of the path."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        folders = [folder for entry in (sys.path if path is None else path) for folder in _list_layers(entry)]
        return importlib.machinery.PathFinder.find_spec(name, list(dict.fromkeys(folders)), target)


def _list_layers(entry: str) -> list[str]:
    """The folders of both layers for `entry` of the path, in the order of the search. "": the working folder."""
    key = paths.find_key(entry or os.curdir, reads_only=True)
    if key is None:
        return [entry]
    with real_files.use_real_files():
        upper = overlay.get_own_view().locate_upper(key)
        if not os.path.isdir(upper):
            return [entry]
        # After `chdir` to an own folder, the entry "" leads to `upper` itself, so the disk's folder is named by `key`.
        leads_to_upper = os.path.realpath(entry or os.curdir) == upper
        return [upper, key if leads_to_upper else entry]


def _find_loadable(path: Any) -> Any:
    """This rank's location of the file `path`; `path` itself if it is on the disk, or missing.

    It is another location if the script names its own file without a search, or if rank 0 has changed the file since.
    """
    key = paths.find_key(path, reads_only=True)
    if key is None:
        return path
    with real_files.use_real_files():
        view = overlay.get_own_view()
        # Rank 0 may change the disk meanwhile. `_list_layers` asks only for the upper layer, which is this rank's own.
        place = view.ask_until_steady(lambda: view.locate_readable(key))
        return place if place != key and os.path.isfile(place) else path


_LOADERS = "FileLoader.__init__ ExtensionFileLoader.__init__"
HOOKS.replace("importlib._bootstrap_external", _LOADERS, IF_HOOK_MISSING)(
    wrappers.wrap_argument("path", _find_loadable)
)
HOOKS.replace("io _io", "open_code", IF_HOOK_MISSING)(wrappers.wrap_argument("path", _find_loadable))


@HOOKS.replace("tempfile", "_mkstemp_inner mkdtemp", IF_HOOK_MISSING)
def _wrap_temporary(original: Any) -> Any:
    """Temporary files and folders belong to their rank already, so they go to the disk, and the view does not handle
    them. One exception: the script has created their folder. This rank has the folder in its upper layer. Rank 0 may be
    behind, so the folder may be missing on the disk. Then the view handles them.
    """
    signature = inspect.signature(original)

    def make(*args, **kwargs):
        folder = signature.bind(*args, **kwargs).arguments.get("dir") or tempfile.tempdir
        key = paths.find_key(folder)
        with real_files.use_real_files():
            view = overlay.get_own_view()
            # None: the view does not handle the folder. The real path differs from the key if this rank has changed a
            # link of the path: on the disk the path leads elsewhere.
            if key is None or (
                view.is_folder_of_disk(key) and os.path.realpath(os.fsdecode(folder or os.curdir)) == key
            ):
                result = original(*args, **kwargs)
                view.exclude_path(os.fsdecode(result[1] if isinstance(result, tuple) else result))
                return result
        return original(*args, **kwargs)

    return make


_REMOVAL = "close" if sys.version_info < (3, 12) else "cleanup"  # the method that removes a `NamedTemporaryFile`


@HOOKS.replace("tempfile", f"_TemporaryFileCloser.{_REMOVAL}", IF_HOOK_MISSING, takes="unlink")
def _wrap_removal(original: Any) -> Any:
    """The default of `unlink` is the original function, as `tempfile` was imported before the replacement. It finds no
    file in the upper layer.
    """

    def remove(self, *args, **kwargs):
        return original(self, *args, **{"unlink": os.unlink, **kwargs})

    return remove
