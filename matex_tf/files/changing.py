"""Making, changing, renaming and removing files on the ranks that are not the first: in their upper layer."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from matex_tf.files import overlay, queries
from matex_tf.runtime import real_files


def wrap_change(original: Any) -> Any:
    def change(path, *args, **kwargs):
        key = queries.find_key(path, kwargs)
        if key is None:
            return original(path, *args, **kwargs)
        with real_files.use_real_files():
            view = overlay.get_own_view()
            if not view.exists(key):
                return original(view.locate_real(key), *args, **kwargs)
            place = view.prepare_write(key, keep=True)
            view.confirm_written(key)
            return original(place, *args, **kwargs)

    return change


def wrap_make(original: Any) -> Any:
    def mkdir(path, mode=0o777, *, dir_fd=None):
        key = queries.find_key(path, {"dir_fd": dir_fd})
        if key is None:
            return original(path, mode, dir_fd=dir_fd)
        with real_files.use_real_files():
            return overlay.get_own_view().make_folder(key, mode)

    return mkdir


def wrap_remove(folder: bool) -> Any:
    def make(original: Any) -> Any:
        def remove(path, *, dir_fd=None):
            key = queries.find_key(path, {"dir_fd": dir_fd}, follow=False)
            if key is None:
                return original(path, dir_fd=dir_fd)
            with real_files.use_real_files():
                return overlay.get_own_view().remove_file(key, folder)

        return remove

    return make


def wrap_remove_tree(original: Any) -> Any:
    def rmtree(path, ignore_errors=False, onerror=None, **kwargs):
        key = queries.find_key(path, kwargs, follow=False)
        if key is None:
            return original(path, ignore_errors, onerror, **kwargs)
        with real_files.use_real_files():
            try:
                return overlay.get_own_view().remove_tree(key)
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
            queries.find_key(src, keywords, follow=False) is None
            and queries.find_key(dst, keywords, follow=False) is None
        ):
            return original(src, dst, **keywords)
        with real_files.use_real_files():
            return overlay.get_own_view().move_file(src, dst)

    return rename


def wrap_link(original: Any) -> Any:
    def link(src, dst, **kwargs):
        source, target = queries.find_key(src, kwargs), queries.find_key(dst, kwargs, follow=False)
        if target is None and source is None:
            return original(src, dst, **kwargs)
        with real_files.use_real_files():
            view = overlay.get_own_view()
            place = src if source is None else view.copy_up(source)
            if target is None:
                return shutil.copy2(place, dst)
            result = shutil.copy2(place, view.prepare_write(target, keep=False, exclusive=True))
            view.confirm_written(target)
            return result

    return link


def wrap_link_by_name(original: Any) -> Any:
    def symlink(src, dst, target_is_directory=False, *, dir_fd=None):
        key = queries.find_key(dst, {"dir_fd": dir_fd}, follow=False)
        if key is None:
            return original(src, dst, target_is_directory, dir_fd=dir_fd)
        with real_files.use_real_files():
            view = overlay.get_own_view()
            if view.exists(key):
                raise FileExistsError(17, os.strerror(17), dst)
            target = view.find_key(os.path.join(os.path.dirname(key), os.fsdecode(src)))
            view.ensure_folder(os.path.dirname(key))
            original(src if target is None else view.locate_real(target), view.locate_upper(key), target_is_directory)
            view.known.put_place(key)

    return symlink
