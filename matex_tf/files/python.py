"""Installs the replacements of Python's file functions (`functions`) on ranks other than 0.

Their reads and writes go through `view.View`, which finds a file in the private folder of the rank or on the disk.
Temporary files, whose names differ between ranks, are not handled; neither are system folders, pipes and sockets.

References to these functions in other modules are replaced, too. Python's imports use the same functions, so a rank
also imports the modules that it has written itself.
"""

from __future__ import annotations

import copy
import glob
import io
import os
import pathlib
import sys
from typing import Any

from matex_tf.files import functions, overlay
from matex_tf.runtime import real_files

HOOKS = functions.HOOKS
"""Installed if this rank has a view of its own."""

_IF_HOOK_MISSING = "a rank does not see the files that it wrote itself"


def install() -> None:
    overlay.start_overlay()
    if overlay.get_view() is not None:
        install_view()


def install_view() -> None:
    """Replace Python's file functions."""
    originals = [(getattr(owner, name), owner, name) for owner, name in REPLACED]
    HOOKS.install()
    _replace_captured(originals)


REPLACED = [(sys.modules[hook.module], hook.name) for hook in HOOKS if hook.name != "FileIO"]
"""Modules and names of the replaced functions; references in other modules are replaced, too."""


def _replace_captured(originals: list[tuple[Any, Any, str]]) -> None:
    """Replace references to the original functions in other modules, such as `tarfile.bltn_open`.

    originals: the functions, each with the module and the name under which its replacement is now.
    """
    new_of = {id(original): getattr(owner, name) for original, owner, name in originals}
    for capabilities in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        capabilities |= {new_of[id(original)] for original, _, _ in originals if original in capabilities}
    owners: list[Any] = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in ("matex_tf", "posix") and hasattr(module, "__dict__")  # these have originals
    ]
    owners += [getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None)]
    for owner in filter(None, owners):
        for name, value in list(vars(owner).items()):
            function = value.__func__ if isinstance(value, staticmethod) else value
            if id(function) in new_of:
                new = new_of[id(function)]
                setattr(owner, name, staticmethod(new) if isinstance(owner, type) else new)


@HOOKS.replace("numpy.lib._datasource", "_file_openers._file_openers", _IF_HOOK_MISSING, optional=True)
def _renew_openers(original: Any) -> Any:
    """NumPy has a table of `open` functions by file extension; the entry None is for plain files."""
    return {**original, None: open}


# The modules whose functions imports call.
HOOKS.replace("importlib._bootstrap_external", "_os", _IF_HOOK_MISSING)(lambda _: os)
HOOKS.replace("importlib._bootstrap_external", "_io", _IF_HOOK_MISSING)(lambda _: io)


@HOOKS.replace("_imp", "create_dynamic", _IF_HOOK_MISSING)
def _wrap_extension(original: Any) -> Any:
    """The system's loader opens the file of an extension module."""

    def create_dynamic(spec, *args):
        spec = copy.copy(spec)
        spec.origin = functions.find_real_path(spec.origin, None)
        return original(spec, *args)

    return create_dynamic


@HOOKS.replace("tempfile", "_mkstemp_inner mkdtemp", _IF_HOOK_MISSING)
def _wrap_temporary(original: Any) -> Any:
    """Temporary files and folders belong to their rank already, so the view does not handle them."""

    def make(*args, **kwargs):
        with real_files.use_real_files():
            result = original(*args, **kwargs)
            overlay.get_own_view().exclude_path(os.fsdecode(result[1] if isinstance(result, tuple) else result))
        return result

    return make
