"""Python's files on the ranks that are not the first: reading and writing go through `layers.View`.

What `tempfile` makes has a name of each rank's own and is left alone, and so are system folders, pipes and sockets.
"""

from __future__ import annotations

import builtins
import functools
import glob
import io
import os
import pathlib
import shutil
import stat
import sys
import tempfile
from typing import Any

from matex_tf.io import overlay
from matex_tf.patches.files import folders, journal, questions
from matex_tf.resilience import elastic
from matex_tf.runtime import real_files
from matex_tf.runtime.replace import replace

_REPLACED = (
    (builtins, "open"),
    *(
        (os, name)
        for name in """open stat lstat access readlink statvfs mkdir rmdir remove unlink rename replace listdir scandir
            chdir getcwd truncate utime chmod chown link symlink getxattr listxattr setxattr removexattr""".split()
        if hasattr(os, name)
    ),
    (shutil, "rmtree"),
)


def install() -> None:
    overlay.start()
    if overlay.view() is not None:
        _install_view()
        elastic.after_loss.append(_after_loss)
    elif overlay.news() is not None:
        journal.install()


def _after_loss(became_first: bool) -> None:
    if became_first:
        journal.install()


def _install_view() -> None:
    originals = [(getattr(owner, name), owner, name) for owner, name in _REPLACED]
    for owner, name, make in (
        (builtins, "open", _open),
        (os, "open", _os_open),
        *((os, name, _question) for name in ("stat", "access", "statvfs", "getxattr", "listxattr")),
        *((os, name, functools.partial(_question, of_link=True)) for name in ("lstat", "readlink")),
        *((os, name, _change) for name in ("truncate", "utime", "chmod", "chown", "setxattr", "removexattr")),
        (os, "mkdir", _mkdir),
        (os, "rmdir", _removal(folder=True)),
        (os, "remove", _removal(folder=False)),
        (os, "rename", _rename),
        (os, "link", _link),
        (os, "symlink", _symlink),
        (os, "listdir", folders.listdir),
        (os, "scandir", folders.scandir),
        (os, "chdir", folders.chdir),
        (os, "getcwd", folders.getcwd),
        (shutil, "rmtree", _rmtree),
    ):
        if hasattr(owner, name):
            replace(owner, name, make)
    for owner, name, new in ((io, "open", open), (os, "unlink", os.remove), (os, "replace", os.rename)):
        replace(owner, name, lambda original, new=new: _also(original, new))
    _replace_captured(originals)
    _leave_temporary_files_alone()


def _replace_captured(originals: list[tuple[Any, Any, str]]) -> None:
    """Replace it also under the names that other modules gave it: `tarfile.bltn_open` and the like."""
    new_of = {id(original): getattr(owner, name) for original, owner, name in originals}
    for capabilities in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        capabilities |= {new_of[id(original)] for original, _, _ in originals if original in capabilities}
    owners = [module for name, module in list(sys.modules.items()) if _may_hold(name) and hasattr(module, "__dict__")]
    owners += [getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None)]
    for owner in filter(None, owners):
        for name, value in list(vars(owner).items()):
            inner = value.__func__ if isinstance(value, staticmethod) else value
            if id(inner) in new_of:
                new = new_of[id(inner)]
                setattr(owner, name, staticmethod(new) if isinstance(owner, type) else new)
    openers = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
    table = getattr(openers, "_file_openers", {})
    for name, value in list(table.items()):
        if id(value) in new_of:
            table[name] = new_of[id(value)]


def _may_hold(module: str) -> bool:
    plain = ("builtins", "io", "_io", "_pyio", "posix", "os", "importlib", "matex_tf")
    return module.split(".")[0] not in plain


def _also(original: Any, new: Any) -> Any:
    return lambda *args, **kwargs: new(*args, **kwargs)


# Reading and writing on the ranks that are not the first


def _open(original: Any) -> Any:
    def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")

        def opened():
            key = None if opener is not None else questions.key_of(file, question=not writes)
            if key is None:
                return original(file, mode, buffering, encoding, errors, newline, closefd, opener)

            def place(path: Any, flags: int) -> int:
                return _descriptor(key, path, flags, 0o666)

            return original(file, mode, buffering, encoding, errors, newline, closefd, place)

        once = writes or isinstance(file, int) or opener is not None
        return opened() if once else questions.steadily(opened, _close)

    return open


def _close(opened: Any) -> bool:
    """Close a file or a descriptor that is to be opened again; not one like a pipe, whose other end would notice."""
    is_descriptor = isinstance(opened, int)
    if not stat.S_ISREG(os.fstat(opened if is_descriptor else opened.fileno()).st_mode):
        return False
    if is_descriptor:
        os.close(opened)
    else:
        opened.close()
    return True


def _descriptor(key: str, path: Any, flags: int, mode: int) -> int:
    with real_files.plainly():
        view = overlay.view()
        try:
            if flags & journal.WRITING and not flags & os.O_DIRECTORY:
                must_exist = not flags & os.O_CREAT
                if must_exist and not view.exists(key):
                    raise FileNotFoundError(2, os.strerror(2), path)
                where = view.writable(key, keep=not flags & os.O_TRUNC, exclusive=bool(flags & os.O_EXCL))
            else:
                where = view.readable(key)
            return os.open(where, flags, mode)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None


def _os_open(original: Any) -> Any:
    def open(path, flags, mode=0o777, *, dir_fd=None):
        def opened():
            key = questions.key_of(path, {"dir_fd": dir_fd}, question=not flags & journal.WRITING)
            if key is None:
                return original(path, flags, mode, dir_fd=dir_fd)
            return _descriptor(key, path, flags, mode)

        return opened() if flags & journal.WRITING else questions.steadily(opened, _close)

    return open


def _question(original: Any, of_link: bool = False) -> Any:
    def ask(path, *args, **kwargs):
        follow = not of_link and kwargs.get("follow_symlinks", True)

        def answer():
            key = questions.key_of(path, kwargs, follow=follow, question=True)
            return original(path, *args, **kwargs) if key is None else _at(original, key, path, *args, **kwargs)

        return questions.steadily(answer)

    return ask


def _at(original: Any, key: str, path: Any, *args: Any, **kwargs: Any) -> Any:
    with real_files.plainly():
        try:
            return original(overlay.view().real(key), *args, **kwargs)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None


def _change(original: Any) -> Any:
    def change(path, *args, **kwargs):
        key = questions.key_of(path, kwargs)
        if key is None:
            return original(path, *args, **kwargs)
        with real_files.plainly():
            view = overlay.view()
            place = view.writable(key, keep=True) if view.exists(key) else view.real(key)
            return original(place, *args, **kwargs)

    return change


def _mkdir(original: Any) -> Any:
    def mkdir(path, mode=0o777, *, dir_fd=None):
        key = questions.key_of(path, {"dir_fd": dir_fd})
        if key is None:
            return original(path, mode, dir_fd=dir_fd)
        with real_files.plainly():
            return overlay.view().make_folder(key, mode)

    return mkdir


def _removal(folder: bool) -> Any:
    def make(original: Any) -> Any:
        def remove(path, *, dir_fd=None):
            key = questions.key_of(path, {"dir_fd": dir_fd}, follow=False)
            if key is None:
                return original(path, dir_fd=dir_fd)
            with real_files.plainly():
                return overlay.view().remove(key, folder)

        return remove

    return make


def _rmtree(original: Any) -> Any:
    def rmtree(path, ignore_errors=False, onerror=None, **kwargs):
        key = questions.key_of(path, kwargs, follow=False)
        if key is None:
            return original(path, ignore_errors, onerror, **kwargs)
        with real_files.plainly():
            try:
                return overlay.view().remove_tree(key)
            except OSError as error:
                if ignore_errors:
                    return None
                if kwargs.get("onexc") is not None:
                    return kwargs["onexc"](os.lstat, path, error)
                if onerror is not None:
                    return onerror(os.lstat, path, sys.exc_info())
                raise

    return rmtree


def _rename(original: Any) -> Any:
    def rename(src, dst, *, src_dir_fd=None, dst_dir_fd=None):
        keywords = {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd}
        if (
            questions.key_of(src, keywords, follow=False) is None
            and questions.key_of(dst, keywords, follow=False) is None
        ):
            return original(src, dst, **keywords)
        with real_files.plainly():
            return overlay.view().move(src, dst)

    return rename


def _link(original: Any) -> Any:
    def link(src, dst, **kwargs):
        source, target = questions.key_of(src, kwargs), questions.key_of(dst, kwargs, follow=False)
        if target is None and source is None:
            return original(src, dst, **kwargs)
        with real_files.plainly():
            view = overlay.view()
            place = src if source is None else view.bring_up(source)
            return shutil.copy2(place, dst if target is None else view.writable(target, keep=False, exclusive=True))

    return link


def _symlink(original: Any) -> Any:
    def symlink(src, dst, target_is_directory=False, *, dir_fd=None):
        key = questions.key_of(dst, {"dir_fd": dir_fd}, follow=False)
        if key is None:
            return original(src, dst, target_is_directory, dir_fd=dir_fd)
        with real_files.plainly():
            view = overlay.view()
            if view.exists(key):
                raise FileExistsError(17, os.strerror(17), dst)
            target = view.key(os.path.join(os.path.dirname(key), os.fsdecode(src)))
            view.folder(os.path.dirname(key))
            return original(src if target is None else view.real(target), view.upper(key), target_is_directory)

    return symlink


def _leave_temporary_files_alone() -> None:
    def made(original: Any) -> Any:
        def make(*args, **kwargs):
            with real_files.plainly():
                result = original(*args, **kwargs)
                overlay.view().keep(os.fsdecode(result[1] if isinstance(result, tuple) else result))
            return result

        return make

    for name in ("_mkstemp_inner", "mkdtemp"):
        replace(tempfile, name, made)


def real_path(path: Any, mode: str | None) -> Any:
    """Where `path` really is for a library that opens files by itself: to read (mode None) or to write.

    A mode "w" replaces the file, "x" and "w-" make a new one, any other keeps what is there.
    """
    key = questions.key_of(path) if overlay.view() is not None else None
    if key is None:
        return path
    with real_files.plainly():
        view = overlay.view()
        if mode is None:
            return view.steadily(lambda: view.readable(key))
        if mode == "r+" and not view.exists(key):
            return view.real(key)
        return view.writable(key, keep=mode != "w", exclusive=mode in ("x", "w-"))
