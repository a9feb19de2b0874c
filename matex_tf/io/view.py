"""What a rank changes in its two layers: it goes to the upper one, and what it removes of the lower one is hidden."""

from __future__ import annotations

import contextlib
import errno
import filecmp
import functools
import os
import shutil
import stat
from collections.abc import Callable, Container
from typing import Any

from matex_tf.io import journal, notes, private_folder
from matex_tf.io.layers import Layers, open_descriptors
from matex_tf.world import world


def _changes(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method after which what was known of places does not hold."""

    @functools.wraps(method)
    def changes(self: View, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        finally:
            self.known.forget()

    return changes


class View(Layers):
    """The files of this rank."""

    def __init__(self, folder: str, news: journal.Journal):
        super().__init__(folder, news)
        self._limit = private_folder.Limit(self.root)

    @_changes
    def show(self, key: str) -> None:
        """From here on the file `key` is the one on disk, whatever this rank did with it before."""
        if self.is_own(key) or self._is_hidden(key):
            self._hide(key)
            self.hidden.discard(key)
            self._shown.add(key)
            os.makedirs(os.path.dirname(self.upper(key)), exist_ok=True)

    def own_on_disk(self) -> set[str]:
        """The keys of what this rank has made and the disk has, too."""
        if not self.used:
            return set()
        inside = len(self.root)
        keys = (
            os.path.join(top[inside:], one) for top, folders, files in os.walk(self.root) for one in folders + files
        )
        return set(filter(os.path.lexists, keys))

    @_changes
    def catch_up(self, own: set[str], written: Container[str] = ()) -> None:
        """After something that is no rank has changed the disk: this rank's files are as those of the disk are now.

        They stay its own, since rank 0 may go on and change or remove those. Files that this rank has open are left
        alone, but for those with the keys in `written`, which that something was to write.

        Args:
            own: what `own_on_disk` gave before.
        """
        self.come_home()
        for key in filter(os.path.lexists, self.hidden.copy()):
            self.hidden.discard(key)
            self._shown.add(key)
        is_open = {path for _, path in open_descriptors()}
        for key in own:
            place = self.upper(key)
            if not os.path.lexists(key):
                self._hide(key)
            elif not (os.path.isfile(key) and os.path.isfile(place)) or (place in is_open and key not in written):
                continue
            elif not filecmp.cmp(key, place, shallow=False):
                os.unlink(place)
                shutil.copy2(key, place)

    def readable(self, key: str) -> str:
        """Where to read `key`."""
        place = self.upper(key) if self.is_own(key) else self.below(key)
        return place or (self.upper(key) if os.path.lexists(key) and not self._may_use_new(key) else key)

    def _may_use_new(self, key: str) -> bool:
        """Whether `key`, which rank 0 has just made, is for this rank, too: a script that knows of ranks may wait."""
        return world.script_knows_ranks and not self._is_hidden(key)

    def for_child(self, key: str) -> str:
        """Where a process that this rank starts, which sees the disk alone, finds `key` as this rank does.

        A folder in which there is more than this rank has made itself is the one on disk.
        """
        above = os.path.dirname(key)
        if not self.is_own(key):
            is_private = self.is_own(above) and self.below(above) is None  # a file that the process may make there
        else:
            is_private = not self.is_folder(key) or self.below(key) is None or self.has_only_own(key)
        if not is_private:
            return key
        self.loosen(key if os.path.isdir(self.upper(key)) else above)
        return self.upper(key)

    def writable(self, key: str, keep: bool, exclusive: bool = False) -> str:
        """Where to write `key`, with its content of now if `keep`. Raises OSError as the system would.

        Whoever has made what was not there says so by `settle`.
        """
        self.used = True
        self._limit.watch()
        if self.is_own(key):
            return self.upper(key)
        self._loose.add(key)
        self.known.put(key)
        below = self.below(key)
        if below is None:
            self.folder(os.path.dirname(key))
            return self.upper(key)
        if exclusive:
            raise _error(errno.EEXIST, key)
        kind = os.stat(below).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            return key  # a pipe, a socket, a device
        if not os.access(below, os.W_OK):
            raise _error(errno.EACCES, key)
        if stat.S_ISDIR(kind):
            return self.folder(key)
        self.folder(os.path.dirname(key))
        if keep:
            shutil.copy2(below, self.upper(key))
        return self.upper(key)

    def settle(self, key: str) -> None:
        """The file that `writable` was asked for is there."""
        self._loose.discard(key)
        self.known.put(key, self.upper(key))

    def come_home(self) -> None:
        """Leave a folder of the upper layer in which this rank is for the one on disk, once rank 0 has made that."""
        here = os.getcwd()
        if here.startswith(self.root + os.sep) and os.path.isdir(here[len(self.root) :]):
            os.chdir(here[len(self.root) :])

    def folder(self, key: str) -> str:
        """The upper layer's folder for `key`, a folder that this rank sees, made if need be."""
        if not os.path.isdir(self.upper(key)):
            if not self.is_folder(key):
                if not os.path.isdir(key) or not self._may_use_new(key):
                    raise _error(errno.ENOTDIR if self.exists(key) else errno.ENOENT, key)
            elif not os.access(self.below(key) or key, os.W_OK):
                raise _error(errno.EACCES, key)
            for path in reversed([path for path in notes.list_parents(key) if not self.is_own(path)]):
                with contextlib.suppress(FileExistsError):  # another thread was first
                    os.mkdir(self.upper(path))
                self.known.put(path)
        self.used = True
        return self.upper(key)

    def make_folder(self, key: str, mode: int = 0o777) -> None:
        if self.exists(key):
            raise _error(errno.EEXIST, key)
        self.folder(os.path.dirname(key))
        os.mkdir(self.upper(key), mode)
        self.known.put(key)

    def remove(self, key: str, folder: bool = False) -> None:
        """Remove the file `key`, or the empty folder."""
        kind = self._kind(key)
        if kind is not None:
            is_folder = stat.S_ISDIR(kind)
            if folder and not is_folder:
                raise _error(errno.ENOTDIR, key)
            if not folder and is_folder:
                raise _error(errno.EISDIR, key)
            if folder and self.names(key):
                raise _error(errno.ENOTEMPTY, key)
        self._hide(key, is_folder=folder)

    def remove_tree(self, key: str) -> None:
        kind = self._kind(key)
        if kind is not None and not stat.S_ISDIR(kind):
            raise _error(errno.ENOTDIR, key)
        self._hide(key)

    def _kind(self, key: str) -> int | None:
        """The mode of `key`, which is about to be removed; None where rank 0 was there first, maybe just now."""
        place = self.upper(key) if self.is_own(key) else self.below(key)
        if place is not None:
            try:
                return os.lstat(place).st_mode
            except FileNotFoundError:
                if place != key:
                    raise
                copy = self.below(key)
                if copy is not None:
                    return os.lstat(copy).st_mode
        if self._is_hidden(key) or not self.news.is_gone(key):
            raise _error(errno.ENOENT, key)
        return None

    def _hide(self, key: str, is_folder: bool = True) -> None:
        self._shown = {shown for shown in self._shown if key not in notes.list_parents(shown)}
        self.hidden.add(key)
        upper = self.upper(key)
        if os.path.isdir(upper) and not os.path.islink(upper):
            shutil.rmtree(upper)
        elif os.path.lexists(upper):
            os.unlink(upper)
            is_folder = False
        self.known.forget() if is_folder else self.known.put(key)

    def bring_up(self, key: str) -> str:
        """Copy `key`, a file or a whole folder, into the upper layer as this rank sees it; returns its place."""
        if not self.exists(key):
            raise _error(errno.ENOENT, key)
        if not self.is_folder(key):
            place = self.writable(key, keep=True)
            self.settle(key)
            return place
        self.folder(key)
        for name in self.names(key):
            self.bring_up(os.path.join(key, name))
        return self.upper(key)

    def move(self, source: str, target: str) -> None:
        """Rename `source` to `target`; each may be left alone, then it is a path that `key` gave None for."""
        source_key, target_key = self.key(source, follow=False), self.key(target, follow=False)
        place = source if source_key is None else self.bring_up(source_key)
        if source_key == target_key:
            return
        if target_key is None:
            shutil.move(place, target)
        else:
            if self.is_folder(target_key) and not os.path.isdir(place):
                raise _error(errno.EISDIR, target)
            if self.is_folder(target_key) and self.names(target_key):
                raise _error(errno.ENOTEMPTY, target)
            self.folder(os.path.dirname(target_key))
            if self.exists(target_key):
                self._hide(target_key)
            shutil.move(place, self.upper(target_key))
            self._moved_to(target_key)
        if source_key is not None:
            self.hidden.add(source_key)
            self.known.put(source_key)

    def _moved_to(self, key: str) -> None:
        if stat.S_ISREG(os.lstat(self.upper(key)).st_mode):
            self.known.put(key, self.upper(key))
        else:
            self.known.forget()


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
