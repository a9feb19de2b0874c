"""Paths of the script on ranks other than 0: the key of a path in this rank's view, and its real path.

Such a rank writes to a private folder. Its view has two layers (`layers`): the files of this folder hide the files of
the disk. The view names a file by its key, a canonical absolute path, and finds the real path in one of the layers.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf.files import journal, overlay
from matex_tf.files.view import View
from matex_tf.runtime import real_files


class Proxy:
    """Has the attributes of `original`, except for attributes that a subclass defines."""

    def __init__(self, original: Any):
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def make_meta(original: Any) -> Any:
    """A metaclass for the class that takes the place of `original`, its base: all instances and subclasses of
    `original` count as instances and subclasses of this class. C code still makes objects of the original class.
    """

    class Meta(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original) if cls.__base__ is original else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original) if cls.__base__ is original else super().__subclasscheck__(subclass)

    return Meta


def find_key(path: Any, kwargs: dict | None = None, follow: bool = True, reads_only: bool = False) -> str | None:
    """The key of `path` if the view handles it; None: the caller calls the original function with `path` itself.

    kwargs: arguments of the function. A path relative to the descriptor of a folder is not handled. follow: replace a
    final link by its target. reads_only: the result is also None if the view equals the disk.
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
    """A context for the work of this rank's view on `path`, which errors of the system name in place of a real path."""
    with real_files.use_real_files():
        try:
            yield overlay.get_own_view()
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None


def is_local(path: Any) -> bool:
    """Whether `path` names a file of this machine: it is no descriptor, buffer or tensor, and no URL such as gs://..."""
    return isinstance(path, (str, bytes, os.PathLike)) and b"://" not in os.fsencode(path)


def find_real_path(path: Any, mode: str, creates_more_files: bool = False) -> Any:
    """The real path of `path`, for a library that opens files itself. A write is noted in the journal on rank 0.

    Returns `path` itself if it names no file of this machine, or if the view does not handle it, as on rank 0.

    Args:
        mode: "r" reads, "w" replaces the file, "x" and "w-" create a new one, other modes keep the content.
        creates_more_files: the library also creates other files in the folder of the file.
    """
    if not is_local(path):
        return path
    if mode != "r":
        journal.note_change(path)
    key = find_key(path) if overlay.get_view() is not None else None
    if key is None:
        return path
    with real_files.use_real_files():
        real_path = _prepare_place(overlay.get_own_view(), key, mode, creates_more_files)
    return os.fsencode(real_path) if isinstance(path, bytes) else real_path


def _prepare_place(view: View, key: str, mode: str, creates_more_files: bool) -> str:
    if mode == "r":
        return str(view.ask_until_steady(lambda: view.locate_readable(key)))
    if mode == "r+" and not view.exists(key):
        return view.locate_real(key)  # no file is there, so that the library reports the error
    place = view.prepare_write(key, keep=mode != "w", exclusive=mode in ("x", "w-"))
    # The library creates further files later, at a time that the view does not learn.
    view.stop_caching(os.path.dirname(key) if creates_more_files else key)
    return place


def wrap_argument(name: str, convert: Callable[[Any], Any]) -> Any:
    """For Python functions with an argument `name`: replaces it by `convert(argument)`."""

    def make(original: Any) -> Any:
        index = list(inspect.signature(original).parameters).index(name)

        def function(*args, **kwargs):
            return call_with_converted(original, args, kwargs, name, index, convert)

        return function

    return make


def call_with_converted(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, index: int, convert: Callable[[Any], Any]
) -> Any:
    """`function(*args, **kwargs)`, with `convert(argument)` in place of the argument `name`, at position `index`."""
    if name in kwargs:
        kwargs = {**kwargs, name: convert(kwargs[name])}
    elif len(args) > index:
        args = (*args[:index], convert(args[index]), *args[index + 1 :])
    return function(*args, **kwargs)
