"""Paths of the script on ranks other than 0: the key of a path in this rank's view, and its real path."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from matex_tf.files import journal, overlay
from matex_tf.files.view import View
from matex_tf.runtime import real_files


def find_key(
    path: Any, kwargs: dict[str, Any] | None = None, follow: bool = True, reads_only: bool = False
) -> str | None:
    """The key of `path` if the view handles it; None: the caller calls the original function with `path` itself.

    Called only on ranks that started with a view, by functions that replace Python's. kwargs: their other arguments; a
    path relative to the descriptor of a folder is not handled. follow: replace a final link by its target. reads_only:
    the result is also None if the view equals the disk.
    """
    if real_files.uses_real_files() or isinstance(path, int) or path is None:
        return None
    if kwargs and any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
        return None
    with real_files.use_real_files():
        view = overlay.get_own_view()
        if reads_only and view.is_untouched():
            return None
        try:
            return view.find_key(path, follow)
        except (TypeError, ValueError):
            return None  # the original function reports the error


@contextlib.contextmanager
def use_view(path: Any) -> Iterator[View]:
    """A context in which this rank's view works on one `path`: errors of the system then name `path`."""
    with real_files.use_real_files():
        try:
            yield overlay.get_own_view()
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None


def is_local(path: Any) -> bool:
    """Whether `path` names a file of this machine: it is no descriptor, buffer or tensor, and no URL such as gs://..."""
    return isinstance(path, (str, bytes, os.PathLike)) and b"://" not in os.fsencode(path)


def find_real_path(path: Any, mode: str, creates_more_files: bool = False) -> Any:
    """The real path of `path`, for a library that opens files itself. Rank 0 notes a write in the journal.

    Returns `path` itself on rank 0, if it names no file of this machine, or if the view does not handle it.

    Args:
        mode: "r" reads, "w" replaces the file, "x" and "w-" create a new one, other modes keep the content.
        creates_more_files: the library also creates other files in the folder of the file.
    """
    if not is_local(path):
        return path
    if mode != "r":
        journal.note_change(path)  # does nothing on other ranks
    key = find_key(path) if overlay.has_view() else None
    if key is None:
        return path
    with real_files.use_real_files():
        real_path = _prepare_place(overlay.get_own_view(), key, mode, creates_more_files)
    return os.fsencode(real_path) if isinstance(path, bytes) else real_path


def _prepare_place(view: View, key: str, mode: str, creates_more_files: bool) -> str:
    if mode == "r":
        # The answer may be outdated if rank 0 changes files in the meantime.
        return str(view.ask_until_steady(lambda: view.locate_readable(key)))
    if mode == "r+" and not view.exists(key):
        return view.locate_real(key)  # no file is there, so that the library reports the error
    place = view.prepare_write(key, keep=mode != "w", exclusive=mode in ("x", "w-"))
    # The library may create files later, at a time that the view does not learn: in `key`, if that is a folder, or next
    # to `key`. So what the folder contains is asked anew each time.
    view.stop_caching(os.path.dirname(key) if creates_more_files else key)
    return place
