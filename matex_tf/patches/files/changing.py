"""Making, changing, renaming and removing files on the ranks that are not the first: in their upper layer."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from matex_tf.io import overlay
from matex_tf.patches.files import questions
from matex_tf.runtime import real_files


def wrap_change(original: Any) -> Any:
    def change(path, *args, **kwargs):
        key = questions.key_of(path, kwargs)
        if key is None:
            return original(path, *args, **kwargs)
        with real_files.use_real_files():
            view = overlay.own_view()
            if not view.exists(key):
                return original(view.real(key), *args, **kwargs)
            place = view.writable(key, keep=True)
            view.settle(key)
            return original(place, *args, **kwargs)

    return change


def wrap_make(original: Any) -> Any:
    def mkdir(path, mode=0o777, *, dir_fd=None):
        key = questions.key_of(path, {"dir_fd": dir_fd})
        if key is None:
            return original(path, mode, dir_fd=dir_fd)
        with real_files.use_real_files():
            return overlay.own_view().make_folder(key, mode)

    return mkdir


def wrap_remove(folder: bool) -> Any:
    def make(original: Any) -> Any:
        def remove(path, *, dir_fd=None):
            key = questions.key_of(path, {"dir_fd": dir_fd}, follow=False)
            if key is None:
                return original(path, dir_fd=dir_fd)
            with real_files.use_real_files():
                return overlay.own_view().remove(key, folder)

        return remove

    return make


def wrap_remove_tree(original: Any) -> Any:
    def rmtree(path, ignore_errors=False, onerror=None, **kwargs):
        key = questions.key_of(path, kwargs, follow=False)
        if key is None:
            return original(path, ignore_errors, onerror, **kwargs)
        with real_files.use_real_files():
            try:
                return overlay.own_view().remove_tree(key)
            except OSError as error:
                if ignore_errors:
                    return None
                if kwargs.get("onexc") is not None:
                    return kwargs["onexc"](os.lstat, path, error)
                if onerror is not None:
                    return onerror(os.lstat, path, sys.exc_info())
                raise

    return rmtree


def wrap_rename(original: Any) -> Any:
    def rename(src, dst, *, src_dir_fd=None, dst_dir_fd=None):
        keywords = {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd}
        if (
            questions.key_of(src, keywords, follow=False) is None
            and questions.key_of(dst, keywords, follow=False) is None
        ):
            return original(src, dst, **keywords)
        with real_files.use_real_files():
            return overlay.own_view().move(src, dst)

    return rename


def wrap_link(original: Any) -> Any:
    def link(src, dst, **kwargs):
        source, target = questions.key_of(src, kwargs), questions.key_of(dst, kwargs, follow=False)
        if target is None and source is None:
            return original(src, dst, **kwargs)
        with real_files.use_real_files():
            view = overlay.own_view()
            place = src if source is None else view.bring_up(source)
            if target is None:
                return shutil.copy2(place, dst)
            result = shutil.copy2(place, view.writable(target, keep=False, exclusive=True))
            view.settle(target)
            return result

    return link


def wrap_link_by_name(original: Any) -> Any:
    def symlink(src, dst, target_is_directory=False, *, dir_fd=None):
        key = questions.key_of(dst, {"dir_fd": dir_fd}, follow=False)
        if key is None:
            return original(src, dst, target_is_directory, dir_fd=dir_fd)
        with real_files.use_real_files():
            view = overlay.own_view()
            if view.exists(key):
                raise FileExistsError(17, os.strerror(17), dst)
            target = view.key(os.path.join(os.path.dirname(key), os.fsdecode(src)))
            view.folder(os.path.dirname(key))
            original(src if target is None else view.real(target), view.upper(key), target_is_directory)
            view.known.put(key)

    return symlink
