"""Opening files on the ranks that are not the first, to read where they are, to write in the upper layer."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any

from matex_tf.files import journal, overlay, queries
from matex_tf.runtime import real_files

_open_plainly = os.open


def is_writing(mode: Any) -> bool:
    """Whether a file that is opened with this mode may be made or changed."""
    return isinstance(mode, str) and not set("wax+").isdisjoint(mode)


def wrap_open(original: Any) -> Any:
    """For `open`."""

    def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        writes = is_writing(mode)

        def opened(place: Any) -> Any:
            return original(file, mode, buffering, encoding, errors, newline, closefd, place)

        def looked_up():
            key = queries.find_key(file, question=not writes)
            if key is None:
                return opened(None)
            return opened(lambda path, flags: _open_descriptor(key, path, flags, 0o666))

        if opener is not None or isinstance(file, int):
            return opened(opener)
        place = _find_known_place(file, writes, writes and "x" in mode)
        if place is not None:
            result = _open_at_known(lambda: opened(_make_opener(place)), place, file)
            if result is not None:
                return result
        return looked_up() if writes else queries.ask_steadily(looked_up, _close_opened)

    return open


def wrap_os_open(original: Any) -> Any:
    """For `os.open`."""

    def open(path, flags, mode=0o777, *, dir_fd=None):
        writes = bool(flags & journal.WRITING)

        def opened():
            key = queries.find_key(path, {"dir_fd": dir_fd}, question=not writes)
            if key is None:
                return original(path, flags, mode, dir_fd=dir_fd)
            return _open_descriptor(key, path, flags, mode)

        place = _find_known_place(path, writes, bool(flags & os.O_EXCL)) if dir_fd is None else None
        if place is not None:
            result = _open_at_known(lambda: original(place, flags | os.O_NOFOLLOW, mode), place, path)
            if result is not None:
                return result
        return opened() if writes else queries.ask_steadily(opened, _close_opened)

    return open


def _find_known_place(path: Any, writes: bool, exclusive: bool) -> str | None:
    """Where the file `path` is; None where both layers must be asked, as of all that this rank has not made yet."""
    text = queries.find_text(path)
    place = None if text is None else overlay.get_own_view().known.find_place(text)
    return None if writes and (exclusive or place == text) else place


def _make_opener(place: str) -> Callable[[str, int], int]:
    return lambda _, flags: _open_plainly(place, flags | os.O_NOFOLLOW, 0o666)


def _open_at_known(opened: Callable[[], Any], place: str, path: Any) -> Any:
    """What `opened` opens at `place`; None where both layers must be asked: it is a link, it is gone, there is news."""
    try:
        result = opened()
    except OSError as error:
        if error.errno != errno.ELOOP and place == os.fspath(path) and queries.is_as_known():
            raise
        return None
    return result if queries.is_as_known() or not _close_opened(result) else None


def _close_opened(opened: Any) -> bool:
    """Close a file or a descriptor that is to be opened again; not one like a pipe, whose other end would notice."""
    is_descriptor = isinstance(opened, int)
    if not stat.S_ISREG(os.fstat(opened if is_descriptor else opened.fileno()).st_mode):
        return False
    if is_descriptor:
        os.close(opened)
    else:
        opened.close()
    return True


def _open_descriptor(key: str, path: Any, flags: int, mode: int) -> int:
    with real_files.use_real_files():
        view = overlay.get_own_view()
        try:
            if not flags & journal.WRITING or flags & os.O_DIRECTORY:
                return os.open(view.locate_readable(key), flags, mode)
            must_exist = not flags & os.O_CREAT
            if must_exist and not view.exists(key):
                raise FileNotFoundError(2, os.strerror(2), path)
            where = view.prepare_write(key, keep=not flags & os.O_TRUNC, exclusive=bool(flags & os.O_EXCL))
            descriptor = os.open(where, flags, mode)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None
        view.confirm_written(key)
        return descriptor


def find_real_path(path: Any, mode: str | None, beside: bool = False) -> Any:
    """Where `path` really is for a library that opens files by itself: to read (mode None) or to write.

    A mode "w" replaces the file, "x" and "w-" make a new one, any other keeps what is there. `beside`: the library
    makes other files beside it.
    """
    key = queries.find_key(path) if overlay.get_view() is not None else None
    if key is None:
        return path
    with real_files.use_real_files():
        view = overlay.get_own_view()
        if mode is None:
            return view.ask_until_steady(lambda: view.locate_readable(key))
        if mode == "r+" and not view.exists(key):
            return view.locate_real(key)
        place = view.prepare_write(key, keep=mode != "w", exclusive=mode in ("x", "w-"))
        view.stop_caching(os.path.dirname(key) if beside else key)
        return place
