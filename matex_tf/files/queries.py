"""Questions about files, which the view of this rank answers."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any

from matex_tf.files import overlay
from matex_tf.runtime import real_files

_lstat = os.lstat


def find_key(path: Any, kwargs: dict | None = None, follow: bool = True, question: bool = False) -> str | None:
    """The key of `path` where the view is to answer, else None. A `question` of a view like the disk is the disk's."""
    if real_files.uses_real_files() or isinstance(path, int) or path is None:
        return None
    if kwargs and any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
        return None
    with real_files.use_real_files():
        view = overlay.get_own_view()
        if question and view.is_untouched():
            return None
        try:
            return view.find_key(path, follow)
        except (TypeError, ValueError):
            return None  # the original says what is wrong


def ask_steadily(ask: Any, drop: Any = None) -> Any:
    return ask() if real_files.uses_real_files() else overlay.get_own_view().ask_until_steady(ask, drop)


def find_text(path: Any) -> str | None:
    """`path` as text where the view of this rank may know of it without asking both layers."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    return text if type(text) is str and not real_files.uses_real_files() else None


def is_as_known() -> bool:
    """Whether rank 0 has no news, so that what was found at a known place is what this rank is to see."""
    return overlay.get_own_view().news.is_quiet()


def _read_known_state(path: Any, of_link: bool) -> os.stat_result | None:
    """The state of `path`; None where both layers must be asked. Raises OSError if it is known not to be there."""
    text = find_text(path)
    place = None if text is None else overlay.get_own_view().known.find_place(text)
    if place is None:
        return None
    try:
        state = _lstat(place)
    except OSError:
        if place is text and is_as_known():
            raise
        return None
    return state if is_as_known() and (of_link or not stat.S_ISLNK(state.st_mode)) else None


def ask_disk(path: Any, ask: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether the folder `path` is for this rank as it is on the disk, and what `ask` says of it then."""
    text = find_text(path)
    if text is None or not overlay.get_own_view().known.is_untouched(text):
        return False, None
    try:
        answer = ask()
    except OSError:
        if is_as_known():
            raise
        return False, None
    return is_as_known(), answer


def wrap_question(original: Any, of_link: bool = False) -> Any:
    """For what asks about one path."""
    is_state = original in (os.stat, _lstat)

    def ask(path, *args, **kwargs):
        follow = not of_link and kwargs.get("follow_symlinks", True)

        def answer():
            key = find_key(path, kwargs, follow=follow, question=True)
            return original(path, *args, **kwargs) if key is None else _ask_at(original, key, path, *args, **kwargs)

        if is_state and not kwargs and not args:
            state = _read_known_state(path, of_link)
            if state is not None:
                return state
        return ask_steadily(answer)

    return ask


def _ask_at(original: Any, key: str, path: Any, *args: Any, **kwargs: Any) -> Any:
    with real_files.use_real_files():
        try:
            return original(overlay.get_own_view().locate_real(key), *args, **kwargs)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None
