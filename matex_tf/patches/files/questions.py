"""Questions about files, which the view of this rank answers."""

from __future__ import annotations

from typing import Any

from matex_tf.io import overlay
from matex_tf.runtime import real_files


def key_of(path: Any, kwargs: dict | None = None, follow: bool = True, question: bool = False) -> str | None:
    """The key of `path` where the view is to answer, else None. A `question` of a view like the disk is the disk's."""
    if real_files.inside_plain() or isinstance(path, int) or path is None:
        return None
    if kwargs and any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
        return None
    with real_files.plainly():
        view = overlay.view()
        if question and view.is_untouched():
            return None
        try:
            return view.key(path, follow)
        except (TypeError, ValueError):
            return None  # the original says what is wrong


def steadily(ask: Any, drop: Any = None) -> Any:
    return ask() if real_files.inside_plain() else overlay.view().steadily(ask, drop)
