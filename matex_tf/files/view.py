"""The view of a rank: what a path means on a rank other than 0, and where its bytes are.

A path means the file that the script alone has at this point of the script. Its bytes are in the first of three places
that knows the path:

1. the private folder of the rank (the upper layer), if the rank has written the file. The view also knows which files
   the rank has removed.
2. the journal, if rank 0 has changed the file at a point of the script that this rank has not reached (`journal`);
3. the disk, to which rank 0 writes. Places 2 and 3 are the lower layer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf import settings
from matex_tf.files import journal, journal_reader, known_places, private_folder
from matex_tf.ops import cache
from matex_tf.runtime import real_files
from matex_tf.world import world

_MAX_TRIES = 10


class View:
    """The view of this rank; its upper layer is in `folder`. Callers must be within `real_files.use_real_files`.

    Keys are canonical absolute paths.

    root: the folder of the upper layer: the file of a key is at `root + key`.
    news: the journal.
    hidden: the keys that this rank has removed.
    shown: keys that this rank had removed or written, and that were then written on the disk for all ranks. They are
        visible again, also in a hidden folder.
    is_left: this rank uses the real files: rank 0 was lost, and this rank has become the first.
    known: the cache of places.
    _excluded: paths that the view does not handle.
    _uncached: keys whose places are not cached, nor those of their contents: code outside Python may create them later.
    """

    def __init__(self, folder: str, news: journal.Journal):
        self.root = os.path.join(os.path.realpath(folder), "files")
        self.news = news
        self.hidden: set[str] = set()
        self.shown: set[str] = set()
        self.is_left = False
        self._excluded = {
            *journal_reader.SYSTEM,
            os.path.realpath(news.folder),
            os.path.realpath(cache.find_cache_folder()),
        }
        if settings.get_settings().log_dir:
            self._excluded.add(os.path.realpath(settings.get_settings().log_dir))
        self._limit = private_folder.Limit(self.root)
        self._uncached: set[str] = set()
        self.known = known_places.KnownPlaces(folder, self.root, self._read_places)
        news.heard = self.known.forget

    def describe(self) -> dict[str, Any]:
        """The arguments of `adopt`. From now on a child process may write files into the upper layer."""
        self._limit.start_watching()
        folder = os.path.dirname(self.root)
        return {
            "folder": folder, "news": self.news.describe(), "hidden": self.hidden, "shown": self.shown,
            "excluded": self._excluded,
        }  # fmt: skip

    @classmethod
    def adopt(cls, folder: str, news: dict[str, Any], hidden: set[str], shown: set[str], excluded: set[str]) -> View:
        """The view of the rank that has started this process, from its `describe`. The rank limits the size."""
        view = cls(folder, journal.Journal.adopt(**news))
        view.hidden, view.shown, view._excluded = hidden, shown, excluded
        view._limit.stop_watching()
        return view

    # Names

    def find_key(self, path: Any, follow: bool = True) -> str | None:
        """The key of `path`; None if the view does not handle it. `follow`: replace a final link by its target."""
        if isinstance(path, int) or path is None or self.is_left:
            return None
        text = os.path.abspath(os.fsdecode(path))
        if text == self.root or text.startswith(self.root + os.sep):
            text = text[len(self.root) :] or os.sep
        if follow:
            key = os.path.realpath(text)
        else:
            key = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
        return None if any(parent in self._excluded for parent in journal_reader.list_parents(key)) else key

    def exclude_path(self, path: str) -> None:
        """Do not handle `path` and its contents: they belong to this rank already."""
        self._excluded.add(os.path.realpath(path))

    def stop_caching(self, key: str) -> None:
        """Do not cache the place of `key`, or the contents of that folder: code outside Python may create it later."""
        self._uncached.add(key)
        self.known.forget()

    def _read_places(self, folder: str) -> known_places.Places | None:
        """The entries of `folder` that are not on the disk at their own path; None: they must be searched each time."""
        with real_files.use_real_files():
            key = self.find_key(folder)
            if key is None:
                return {}
            if self.is_hidden(key) or not self._uncached.isdisjoint(journal_reader.list_parents(key)):
                return None
            searched = (path for path in self.hidden | self.shown | self._uncached if os.path.dirname(path) == key)
            places: known_places.Places = {os.path.basename(path): None for path in searched}
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.root + key) as entries:
                places[known_places.IS_OWN] = None
                for entry in entries:
                    places[entry.name] = entry.path if entry.is_file(follow_symlinks=False) else None
        return places

    # The layers

    def locate_upper(self, key: str) -> str:
        return self.root + key

    def is_own(self, key: str) -> bool:
        """Whether `key` is in the upper layer."""
        return os.path.lexists(self.locate_upper(key))

    def is_hidden(self, key: str) -> bool:
        """Whether this rank has removed `key` or a parent folder, and rank 0 has not saved it since."""
        # The innermost path of either set decides. If there is none, `next` returns None, which is in no set.
        changed = (path for path in journal_reader.list_parents(key) if path in self.hidden or path in self.shown)
        return next(changed, None) in self.hidden

    def locate_lower(self, key: str) -> str | None:
        """The path of `key` in the lower layer, as this rank sees it; None if it does not exist there."""
        if self.hidden and self.is_hidden(key):
            return None
        # Rank 0 writes its note before it changes the disk. So the disk is read first: if it is already changed, the
        # note is found below. In the other order, a change between both would be taken for the old content.
        exists = os.path.lexists(key)
        before = self.news.find_before(key)
        if before is None:  # no note: the disk has the content for this rank
            return key if exists else None
        return before or None  # "": the key did not exist before the change

    def ask_until_steady(self, ask: Callable[[], Any], drop: Callable[[Any], bool] | None = None) -> Any:
        """Return `ask()`, or raise its OSError; repeat it while rank 0 writes notes during the call, a few times at
        most.

        `drop`: releases an outdated answer; returns False if the answer cannot be released and must be used.
        """
        for _ in range(_MAX_TRIES - 1):
            version = self.news.get_version()
            try:
                answer = ask()
            except OSError:
                if self.news.get_version() == version:
                    raise
                continue
            if self.news.get_version() == version or (drop is not None and not drop(answer)):
                return answer
        return ask()

    # Questions

    def exists(self, key: str) -> bool:
        return self.is_own(key) or self.locate_lower(key) is not None

    def is_folder(self, key: str) -> bool:
        return os.path.isdir(self.locate_upper(key)) or os.path.isdir(self.locate_lower(key) or self.locate_upper(key))

    def locate_real(self, key: str) -> str:
        """The real location of `key`, for a query about it. A missing file has a location that does not exist."""
        return self.locate_upper(key) if self.is_own(key) else self.locate_lower(key) or self.locate_upper(key)

    def locate_readable(self, key: str) -> str:
        """The real path for reading `key`."""
        place = self.locate_upper(key) if self.is_own(key) else self.locate_lower(key)
        if place is not None:
            return place
        # Missing for this rank. If the disk has it, because rank 0 is ahead, its path in the upper layer is missing.
        return self.locate_upper(key) if os.path.lexists(key) and not self._may_use_new(key) else key

    def _may_use_new(self, key: str) -> bool:
        """Whether this rank may see `key`, which rank 0 has just created: a script that uses ranks may wait for it."""
        return world.script_knows_ranks and not self.is_hidden(key)

    def list_names(self, key: str) -> list[str]:
        """The names in the folder `key`, in the order of the disk; names that are not on the disk come last."""
        if not self.is_folder(key):
            return os.listdir(self.locate_real(key))  # raises the appropriate error
        names = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # in the upper layer only, or removed by now
            names = os.listdir(key)
        names += self.news.list_before(key)  # after the disk: entries removed meanwhile have notes by now
        if self.hidden or self.news.has_news():
            names = [name for name in dict.fromkeys(names) if self.exists(os.path.join(key, name))]
        if os.path.isdir(self.locate_upper(key)):
            on_disk = set(names)
            names += [name for name in os.listdir(self.locate_upper(key)) if name not in on_disk]
        return names

    def has_only_own(self, key: str) -> bool:
        """Whether the folder `key` and its subfolders contain only files of this rank, as this rank sees them."""
        if not os.path.isdir(self.locate_upper(key)):
            return False
        for name in self.list_names(key):
            entry = os.path.join(key, name)
            if not (self.has_only_own(entry) if self.is_folder(entry) else self.is_own(entry)):
                return False
        return True

    def is_untouched(self) -> bool:
        """Whether this rank's view equals the disk."""
        return not self.news.has_news() and not self.hidden and not os.path.lexists(self.root)

    def locate_for_child(self, key: str) -> str:
        """The real path of `key` for a child process, which sees only the disk.

        The upper layer has only this rank's own files. So for a folder with other files, too, the path is on the disk.
        """
        if self.is_own(key):
            is_private = not self.is_folder(key) or self.locate_lower(key) is None or self.has_only_own(key)
        else:  # a file that the process may create in this rank's own folder
            folder = os.path.dirname(key)
            is_private = self.is_own(folder) and self.locate_lower(folder) is None
        if not is_private:
            return key
        self.stop_caching(key if os.path.isdir(self.locate_upper(key)) else os.path.dirname(key))
        return self.locate_upper(key)

    # Changes

    def prepare_write(self, key: str, keep: bool, exclusive: bool = False) -> str:
        """The real path for writing `key`, with its present content if `keep`. Raises OSError as the system would.

        The caller creates the file if it does not exist, and calls `known.forget`.
        """
        self._limit.start_watching()
        if self.is_own(key):
            return self.locate_upper(key)
        lower = self.locate_lower(key)
        if lower is None:  # a new file
            self.ensure_folder(os.path.dirname(key))
            return self.locate_upper(key)
        # A file of the disk: it is copied, or replaced by a new one, in the upper layer.
        if exclusive:
            raise make_error(errno.EEXIST, key)
        kind = os.stat(lower).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            return key  # a pipe, a socket, a device
        if not os.access(lower, os.W_OK):
            raise make_error(errno.EACCES, key)
        if stat.S_ISDIR(kind):
            return self.ensure_folder(key)
        self.ensure_folder(os.path.dirname(key))
        if keep:
            # Again if rank 0 changes the file at this moment.
            self.ask_until_steady(lambda: shutil.copy2(self.locate_lower(key) or lower, self.locate_upper(key)))
            self.known.forget()
        return self.locate_upper(key)

    def ensure_folder(self, key: str) -> str:
        """Return the folder of the upper layer for `key`, a folder that this rank sees; create it if needed."""
        if not os.path.isdir(self.locate_upper(key)):
            if not self.is_folder(key):
                if not os.path.isdir(key) or not self._may_use_new(key):
                    raise make_error(errno.ENOTDIR if self.exists(key) else errno.ENOENT, key)
            elif not os.access(self.locate_lower(key) or key, os.W_OK):
                raise make_error(errno.EACCES, key)
            os.makedirs(self.locate_upper(key), exist_ok=True)
            self.known.forget()
        return self.locate_upper(key)

    def make_folder(self, key: str, mode: int = 0o777) -> None:
        if self.exists(key):
            raise make_error(errno.EEXIST, key)
        self.ensure_folder(os.path.dirname(key))
        os.mkdir(self.locate_upper(key), mode)
        self.known.forget()

    def make_link(self, target: str, key: str) -> None:
        """Create a symbolic link at `key`. `target`: its path as the script gives it, relative to the link's folder."""
        if self.exists(key):
            raise make_error(errno.EEXIST, key)
        folder = os.path.dirname(key)
        target_key = self.find_key(os.path.join(folder, target))
        self.ensure_folder(folder)
        os.symlink(target if target_key is None else self.locate_real(target_key), self.locate_upper(key))
        self.known.forget()

    def remove_file(self, key: str, folder: bool = False) -> None:
        """Remove the file `key`, or the empty folder."""
        kind = self._find_mode(key)
        if kind is not None:
            is_folder = stat.S_ISDIR(kind)
            if folder and not is_folder:
                raise make_error(errno.ENOTDIR, key)
            if not folder and is_folder:
                raise make_error(errno.EISDIR, key)
            if folder and self.list_names(key):
                raise make_error(errno.ENOTEMPTY, key)
        self._hide_key(key)

    def remove_tree(self, key: str) -> None:
        kind = self._find_mode(key)
        if kind is not None and not stat.S_ISDIR(kind):
            raise make_error(errno.ENOTDIR, key)
        self._hide_key(key)

    def _find_mode(self, key: str) -> int | None:
        """The mode of `key`, which is about to be removed; None if rank 0 has already removed it, and no copy is left.

        Raises:
            FileNotFoundError: `key` does not exist for this rank.
        """
        for _ in range(2):  # rank 0 may remove the file from the disk meanwhile; its note names a copy then
            place = self.locate_upper(key) if self.is_own(key) else self.locate_lower(key)
            with contextlib.suppress(FileNotFoundError):
                if place is not None:
                    return os.lstat(place).st_mode
        if self.is_hidden(key) or not self.news.is_gone(key):
            raise make_error(errno.ENOENT, key)
        return None

    def _hide_key(self, key: str) -> None:
        """Remove `key` from the upper layer, and hide it in the lower one."""
        self.shown = {shown for shown in self.shown if key not in journal_reader.list_parents(shown)}
        self.hidden.add(key)
        upper = self.locate_upper(key)
        if os.path.isdir(upper) and not os.path.islink(upper):
            shutil.rmtree(upper)
        elif os.path.lexists(upper):
            os.unlink(upper)
        self.known.forget()

    def copy_up(self, key: str) -> str:
        """Copy `key`, a file or a whole folder, to the upper layer as this rank sees it. Returns the real path."""
        if not self.exists(key):
            raise make_error(errno.ENOENT, key)
        if not self.is_folder(key):
            return self.prepare_write(key, keep=True)
        self.ensure_folder(key)
        for name in self.list_names(key):
            self.copy_up(os.path.join(key, name))
        return self.locate_upper(key)

    def move_file(self, source: str, target: str) -> None:
        """Rename `source` to `target`. The view may not handle one of them; it is a plain path then."""
        source_key, target_key = self.find_key(source, follow=False), self.find_key(target, follow=False)
        place = source if source_key is None else self.copy_up(source_key)
        if source_key == target_key:
            return
        if target_key is None:
            shutil.move(place, target)
        else:  # the target is in the upper layer, where it replaces a file or an empty folder
            if self.is_folder(target_key) and not os.path.isdir(place):
                raise make_error(errno.EISDIR, target)
            if self.is_folder(target_key) and self.list_names(target_key):
                raise make_error(errno.ENOTEMPTY, target)
            self.ensure_folder(os.path.dirname(target_key))
            if self.exists(target_key):
                self._hide_key(target_key)
            shutil.move(place, self.locate_upper(target_key))
        if source_key is not None:
            self.hidden.add(source_key)
        self.known.forget()

    # Changes of the disk for all ranks, and the end of the view

    def show_file(self, key: str) -> None:
        """Use the file `key` of the disk from now on, also if this rank has written or removed it."""
        if self.is_own(key) or self.is_hidden(key):
            self._hide_key(key)
            self.hidden.discard(key)
            self.shown.add(key)
            os.makedirs(os.path.dirname(self.locate_upper(key)), exist_ok=True)
            self.known.forget()

    @contextlib.contextmanager
    def adopt_changes(self) -> Iterator[None]:
        """A context within which another process changes the disk: this rank sees the changed files afterwards.

        All ranks are at the same point of the script, so the disk has what this rank has removed or created, too.
        """
        walk = os.walk(self.root)
        own = (os.path.join(top[len(self.root) :], name) for top, folders, files in walk for name in folders + files)
        before = {key: journal_reader.read_file_state(key) for key in own}
        try:
            yield
        finally:
            self.return_to_disk()
            for key in filter(os.path.lexists, list(self.hidden)):
                self.hidden.discard(key)
                self.shown.add(key)
            for key, state in before.items():
                if journal_reader.read_file_state(key) != state:
                    self.show_file(key)
            self.known.forget()

    def return_to_disk(self) -> None:
        """If the working folder is in the upper layer, change to the same folder on the disk, if rank 0 has made it."""
        folder = os.getcwd()
        if folder.startswith(self.root + os.sep) and os.path.isdir(folder[len(self.root) :]):
            os.chdir(folder[len(self.root) :])

    def leave_layers(self) -> None:
        """Use the real files from now on, also for paths of the upper layer that C++ code may have stored.

        The contents of the upper layer must be on the disk by now.
        """
        self.is_left = True
        self._limit.stop_watching()
        self.return_to_disk()
        # Links below a real folder: a recursive listing follows a link at its root, but not links below it.
        os.mkdir(links := f"{self.root}-links")
        for name in os.listdir(os.sep):
            os.symlink(os.sep + name, os.path.join(links, name))
        if os.path.isdir(self.root):
            os.rename(self.root, f"{self.root}-left")
        os.rename(links, self.root)
        self.known.forget()


def make_error(number: int, path: str) -> OSError:
    """The error that the system raises for `path` with this `errno`."""
    return OSError(number, os.strerror(number), path)
