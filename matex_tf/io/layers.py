"""The two layers of a rank: the files as they are, and above them what this rank has written and removed."""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import shutil
import stat
from collections.abc import Callable, Container, Iterator
from typing import Any

from matex_tf import settings
from matex_tf.io import journal
from matex_tf.ops import cache
from matex_tf.runtime import real_files

_SYSTEM = ("/dev", "/proc", "/sys", "/run")
_MOST_TRIES = 10


def is_system(key: str) -> bool:
    """Whether `key` is no file but a door to the kernel, the same for every process."""
    return any(path in _SYSTEM for path in journal.upwards(key))


class View:
    """The two layers of this rank: `folder` holds the upper one, and what files held before rank 0's changes."""

    def __init__(self, folder: str, news: journal.Ledger):
        self.root = os.path.join(os.path.realpath(folder), "files")
        self._before = os.path.join(os.path.realpath(folder), "before")
        self.news = news
        self.hidden: set[str] = set()
        self._shown: set[str] = set()
        self.used = False
        self.is_left = False  # every file is the real one: the first rank was lost, and this is the first now
        self._kept = {*_SYSTEM, os.path.realpath(news.path), os.path.realpath(cache.folder())}
        if settings.current().log_dir:
            self._kept.add(os.path.realpath(settings.current().log_dir))

    def key(self, path: Any, follow: bool = True) -> str | None:
        """The key of `path`; None for one that is left alone. `follow`: a link at its end stands for its target."""
        if isinstance(path, int) or path is None:
            return None
        text = os.path.abspath(os.fsdecode(path))
        if text == self.root or text.startswith(self.root + os.sep):
            text = text[len(self.root) :] or os.sep
        if follow:
            text = os.path.realpath(text)
        else:
            text = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
        return None if self.is_left or self._is_kept(text) else text

    def keep(self, path: str) -> None:
        """Leave `path` and what is in it alone: it is this rank's own already."""
        self._kept.add(os.path.realpath(path))

    def _is_kept(self, key: str) -> bool:
        return any(path in self._kept for path in journal.upwards(key))

    def upper(self, key: str) -> str:
        return self.root + key

    def is_own(self, key: str) -> bool:
        """Whether this rank made `key`."""
        return os.path.lexists(self.upper(key))

    def _is_hidden(self, key: str) -> bool:
        known = (path for path in journal.upwards(key) if path in self.hidden or path in self._shown)
        return next(known, None) in self.hidden

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

    def below(self, key: str) -> str | None:
        """Where `key` is in the lower layer, as this rank sees it; None where it is not."""
        if self._is_hidden(key):
            return None
        place = self._before + key
        is_there = os.path.lexists(key)  # first: rank 0 writes its news before it changes the disk
        if self.news.was_folder(key):
            os.makedirs(place, exist_ok=True)
            return place
        content = self.news.before(key)
        if content is not None:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                file.write(content)
            return place
        return key if is_there and not self.news.is_new(key) else None

    def steadily(self, ask: Callable[[], Any], drop: Callable[[Any], bool] | None = None) -> Any:
        """What `ask` returns, or its OSError, asked again where rank 0's news came in between, unless it has too many.

        Args:
            drop: frees an answer that is not the one; one for which it returns False is the one nevertheless.
        """
        for _ in range(_MOST_TRIES - 1):
            known = self._known()
            try:
                answer = ask()
            except OSError:
                if self._known() == known:
                    raise
                continue
            if self._known() == known or (drop is not None and not drop(answer)):
                return answer
        return ask()

    def _known(self) -> int:
        with real_files.plainly():
            return self.news.known()

    def exists(self, key: str) -> bool:
        return self.is_own(key) or self.below(key) is not None

    def is_folder(self, key: str) -> bool:
        return os.path.isdir(self.upper(key)) or os.path.isdir(self.below(key) or self.upper(key))

    def real(self, key: str) -> str:
        """Where `key` really is, for a question about it: the answer "not there" comes of itself."""
        return self.upper(key) if self.is_own(key) else self.below(key) or self.upper(key)

    def readable(self, key: str) -> str:
        """Where to read `key`. What rank 0 has only just made is given rather than an error."""
        return self.upper(key) if self.is_own(key) or self._is_hidden(key) else self.below(key) or key

    def for_child(self, key: str) -> str:
        """Where a process that this rank starts, which sees the disk alone, finds `key` as this rank does.

        A folder in which there is more than this rank has made itself is the one on disk.
        """
        if not self.is_own(key):
            above = os.path.dirname(key)
            is_private = self.is_own(above) and self.below(above) is None  # a file that the process may make there
            return self.upper(key) if is_private else key
        is_whole = not self.is_folder(key) or self.below(key) is None or self.has_only_own(key)
        return self.upper(key) if is_whole else key

    def writable(self, key: str, keep: bool, exclusive: bool = False) -> str:
        """Where to write `key`, with its content of now if `keep`. Raises OSError as the system would."""
        self.used = True
        if self.is_own(key):
            return self.upper(key)
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

    def come_home(self) -> None:
        """Leave a folder of the upper layer in which this rank is for the one on disk, once rank 0 has made that."""
        here = os.getcwd()
        if here.startswith(self.root + os.sep) and os.path.isdir(here[len(self.root) :]):
            os.chdir(here[len(self.root) :])

    def folder(self, key: str) -> str:
        """The upper layer's folder for `key`, a folder that this rank sees, made if need be."""
        if not os.path.isdir(self.upper(key)):
            if not self.is_folder(key):
                # What rank 0 has just made may be written to by a rank that did not make it.
                if not os.path.isdir(key) or self._is_hidden(key):
                    raise _error(errno.ENOTDIR if self.exists(key) else errno.ENOENT, key)
            elif (below := self.below(key)) is None:
                raise _error(errno.ENOENT, key)  # rank 0 has removed it meanwhile
            elif not os.access(below, os.W_OK):
                raise _error(errno.EACCES, key)
            os.makedirs(self.upper(key), exist_ok=True)
        self.used = True
        return self.upper(key)

    def make_folder(self, key: str, mode: int = 0o777) -> None:
        if self.exists(key):
            raise _error(errno.EEXIST, key)
        self.folder(os.path.dirname(key))
        os.mkdir(self.upper(key), mode)

    def names(self, key: str) -> list[str]:
        """What is in the folder `key`, in the order of the disk, what that does not have last."""
        if not self.is_folder(key):
            return os.listdir(self.real(key))  # raises what is to be raised
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it may be this rank's own, or no more
            found = os.listdir(key)
        found += self.news.names_before(key)  # after the disk: what is no more on it is in the news by now
        found = [name for name in dict.fromkeys(found) if self.exists(os.path.join(key, name))]
        if os.path.isdir(self.upper(key)):
            known = set(found)
            found += [name for name in os.listdir(self.upper(key)) if name not in known]
        return found

    def has_only_own(self, key: str) -> bool:
        """Whether all that this rank sees in the folder `key`, and in those in it, it has made itself."""
        if not os.path.isdir(self.upper(key)):
            return False
        for name in self.names(key):
            inside = os.path.join(key, name)
            if not (self.has_only_own(inside) if self.is_folder(inside) else self.is_own(inside)):
                return False
        return True

    def is_untouched(self) -> bool:
        """Whether this rank sees all files as they are on disk."""
        return not self.used and not self.hidden and not self.news.has_news()

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
        self._hide(key)

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
        if self._is_hidden(key) or not self.news.is_gone(key):
            raise _error(errno.ENOENT, key)
        return None

    def _hide(self, key: str) -> None:
        upper = self.upper(key)
        if os.path.isdir(upper) and not os.path.islink(upper):
            shutil.rmtree(upper)
        elif os.path.lexists(upper):
            os.unlink(upper)
        self._shown = {shown for shown in self._shown if key not in journal.upwards(shown)}
        self.hidden.add(key)

    def bring_up(self, key: str) -> str:
        """Copy `key`, a file or a whole folder, into the upper layer as this rank sees it; returns its place."""
        if not self.exists(key):
            raise _error(errno.ENOENT, key)
        if not self.is_folder(key):
            return self.writable(key, keep=True)
        self.folder(key)
        for name in self.names(key):
            self.bring_up(os.path.join(key, name))
        return self.upper(key)

    def move(self, source: str, target: str) -> None:
        """Rename `source` to `target`; each may be left alone, then it is a path that `key` gave None for."""
        source_key, target_key = self.key(source, follow=False), self.key(target, follow=False)
        place = source if source_key is None else self.bring_up(source_key)
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
        if source_key is not None:
            self.hidden.add(source_key)


def open_descriptors() -> Iterator[tuple[int, str]]:
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            yield int(descriptor), os.readlink(f"/proc/self/fd/{descriptor}")


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
