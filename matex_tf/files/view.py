"""Changing files through the two layers of a rank.

`mark_changed` records the key of each file that this rank creates, changes or removes.

`hidden` says for keys whether they are hidden. A key without an entry is hidden if its folder is. An entry False is a
file that is visible again, also in a hidden folder, because rank 0 has saved it on the disk for all ranks.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import shutil
import stat
from collections.abc import Container
from typing import Any

from matex_tf.files import journal_reader, private_folder
from matex_tf.files.layers import Layers, list_open_files
from matex_tf.world import script_knowledge


class View(Layers):
    """This rank's view of the files, with methods that change it."""

    def __init__(self, folder: str, notes: journal_reader.Notes):
        super().__init__(folder, notes)
        self._limit = private_folder.Limit(self.root)
        os.register_at_fork(before=self._limit.start_watching)  # for files of the child process

    def share_with_child(self) -> tuple[Any, ...]:
        """The arguments of `adopt`, for a child process that is not forked. From now on the size of the folder is
        watched, because the child may make files.
        """
        self._limit.start_watching()
        return os.path.dirname(self.root), self.notes.describe(), self.hidden.copy(), self._excluded

    @classmethod
    def adopt(cls, folder: str, notes: tuple[Any, ...], hidden: dict[str, bool], excluded: set[str]) -> View:
        """In a child process: the view of the rank that has started the process, from its `share_with_child`."""
        view = cls(folder, journal_reader.Notes(*notes))
        view.hidden, view._excluded = hidden, excluded
        # The rank may write files and links, also later. With a change recorded, `used` is true.
        view.mark_changed(os.sep)
        view._has_links = True
        view._limit.stop_watching()  # the rank watches the size of the folder
        view.known.note_child()
        return view

    def show_file(self, key: str) -> None:
        """Use the file `key` of the disk, saved by rank 0 for all, even if this rank has written or removed it."""
        if self.is_own(key) or self.is_hidden(key):
            self._hide_key(key)  # removes this rank's own file
            self.hidden[key] = False
            # This rank sees the folder of the file again, if it has removed the folder.
            self._make_upper_folder(os.path.dirname(key))

    def list_own_on_disk(self) -> set[str]:
        """The keys of this rank's own files that also exist on the disk."""
        return set(filter(os.path.lexists, self.list_upper())) if self.used else set()

    def adopt_disk(self, own_keys: set[str], written_keys: Container[str] = ()) -> None:
        """Give this rank's files the content of the disk, after a command on rank 0 has changed the disk.

        A file in `own_keys` gets the content on the disk, and is removed if the disk no longer has it. It stays in the
        upper layer, because rank 0 may change or remove the real file next. A file that this rank has open keeps its
        content, unless it is in `written_keys`, the output files of the command.

        `own_keys`: the result of `list_own_on_disk` before the command.
        """
        self.return_to_disk()
        # The script had removed these keys on all ranks; the command has created them.
        self.hidden |= {key: False for key in self.hidden.copy() if os.path.lexists(key)}
        open_paths = {path for _, path, _ in list_open_files("self")}
        for key in own_keys:
            place = self.locate_upper(key)
            if not os.path.lexists(key):
                self._hide_key(key)
                continue
            are_files = os.path.isfile(key) and os.path.isfile(place)
            may_replace = place not in open_paths or key in written_keys
            if are_files and may_replace and not filecmp.cmp(key, place, shallow=False):
                os.unlink(place)
                shutil.copy2(key, place)
        self.known.forget()  # `hidden` has changed; the names of `own_keys` are recorded already

    def locate_readable(self, key: str) -> str:
        """The real path for reading `key`."""
        place = self.locate(key)
        if place is not None:
            return place
        if not os.path.lexists(key) or self._may_use_new(key):
            return key
        # The disk has `key`, but this rank does not see it: rank 0, which is ahead, has created it, or this rank has
        # removed it. The path in the upper layer has no file, so opening it fails.
        return self.locate_upper(key)

    def _may_use_new(self, key: str) -> bool:
        """Whether this rank may see `key` if rank 0, which is ahead in the script, has created it.

        A script that asks for its rank may let the other ranks wait for a file of rank 0.
        """
        return script_knowledge.knows_ranks and not self.is_hidden(key)

    def is_folder_of_disk(self, key: str) -> bool:
        """Whether this rank sees the folder `key` of the disk; the upper layer may have more files in it."""
        if not os.path.isdir(key):  # the disk is read before the notes, as in `locate_lower`
            return False
        if self.locate_lower(key) == key:
            return True
        # This rank has removed the folder. But if files in it were saved for all ranks since (`show_file`), rank 0 has
        # created the folder again. It is another folder by now if a note, not reached yet, says that rank 0 changes it.
        shown_keys = [path for path, is_hidden in self.hidden.copy().items() if not is_hidden]
        has_shown_file = any(key in journal_reader.list_parents(path) for path in shown_keys)
        return has_shown_file and self.notes.find_before(key) is None

    def locate_for_child(self, key: str) -> str:
        """The real path of `key` for a process that does not use the view, such as a command.

        Of a folder with files of both layers, the process sees only the files on the disk.
        """
        folder = os.path.dirname(key)
        if self.is_own(key):
            is_in_upper = not self.is_folder(key) or self.has_only_own(key)
        else:
            # A missing file in a folder that is only in the upper layer: the process may create the file there.
            is_folder_in_upper = self.is_own(folder) and self.locate_lower(folder) is None
            is_in_upper = is_folder_in_upper and not self.exists(key)
        if not is_in_upper:
            return key
        self.stop_caching(key if os.path.isdir(self.locate_upper(key)) else folder)  # the process may write there
        return self.locate_upper(key)

    def prepare_write(self, key: str, keep: bool, exclusive: bool = False) -> str:
        """The real path for writing `key`. Raises OSError as the system would.

        The caller opens this path for writing, which may create the file. keep: the file first has the present content
        of `key`. exclusive: the caller may create a file, but not change one.
        """
        self._limit.start_watching()
        if self.is_own(key):
            return self.locate_upper(key)
        self.mark_changed(key)  # before the change, which the caller makes
        lower = self.locate_lower(key)
        if lower is None:  # a new file
            self.ensure_folder(os.path.dirname(key))
            return self.locate_upper(key)
        # A file of the disk: it is copied, or replaced by a new one, in the upper layer.
        if exclusive:
            raise make_error(errno.EEXIST, key)
        mode = os.stat(lower).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return key  # a pipe, a socket, a device
        if not os.access(lower, os.W_OK):
            raise make_error(errno.EACCES, key)
        if stat.S_ISDIR(mode):
            return self.ensure_folder(key)
        self.ensure_folder(os.path.dirname(key))
        if keep:
            # The copy is repeated if rank 0 changes the file meanwhile.
            self.ask_until_steady(lambda: shutil.copy2(self.locate_lower(key) or lower, self.locate_upper(key)))
        return self.locate_upper(key)

    def return_to_disk(self) -> None:
        """If the working folder is in the upper layer, change to the same folder on the disk, if it exists there."""
        real_folder = os.getcwd()
        folder = self.strip_root(real_folder)
        if folder != real_folder and os.path.isdir(folder):
            os.chdir(folder)

    def leave_layers(self) -> None:
        """Use the real files from now on, because rank 0 was lost and this rank becomes the first.

        The caller has already written the contents of the upper layer to the disk. C++ code may have stored paths below
        `root`, such as `root + "/home/me/log.txt"`, which must lead to the real files now. So `root` becomes a folder
        with a link to each entry of `/`, such as `home` to `/home`; the old folder is renamed.
        """
        self.is_left = True
        self._limit.stop_watching()
        self.return_to_disk()
        # `root` itself is no link to `/`, because a recursive listing that starts at a link follows it, and would list
        # the whole disk. It does not follow the links in the folder.
        os.mkdir(links := f"{self.root}-links")
        for name in os.listdir(os.sep):
            os.symlink(os.sep + name, os.path.join(links, name))
        if os.path.isdir(self.root):
            os.rename(self.root, f"{self.root}-left")
        os.rename(links, self.root)

    def ensure_folder(self, key: str) -> str:
        """Return the folder of the upper layer for `key`, a folder that this rank sees; create it if needed."""
        if not os.path.isdir(self.locate_upper(key)):
            if self.is_folder(key):
                if not os.access(self.locate_lower(key) or key, os.W_OK):
                    raise make_error(errno.EACCES, key)
            elif not (os.path.isdir(key) and self._may_use_new(key)):
                raise make_error(errno.ENOTDIR if self.exists(key) else errno.ENOENT, key)
            self._make_upper_folder(key)
        return self.locate_upper(key)

    def _make_upper_folder(self, key: str) -> None:
        """Create the folder of the upper layer for `key`, and its missing parents."""
        missing_keys = [path for path in journal_reader.list_parents(key) if not self.is_own(path)]
        for path in reversed(missing_keys):  # outermost first
            with contextlib.suppress(FileExistsError):  # another thread was faster
                os.mkdir(self.locate_upper(path))
            self.mark_changed(path)

    def make_folder(self, key: str, mode: int = 0o777) -> None:
        if self.exists(key):
            raise make_error(errno.EEXIST, key)
        self.ensure_folder(os.path.dirname(key))
        os.mkdir(self.locate_upper(key), mode)
        self.mark_changed(key)

    def remove_file(self, key: str, folder: bool = False) -> None:
        """Remove the file `key`; with `folder`, the empty folder `key`."""
        mode = self._find_mode(key)
        if mode is not None:
            is_folder = stat.S_ISDIR(mode)
            if folder and not is_folder:
                raise make_error(errno.ENOTDIR, key)
            if not folder and is_folder:
                raise make_error(errno.EISDIR, key)
            if folder and self.list_names(key):
                raise make_error(errno.ENOTEMPTY, key)
        self._hide_key(key, mode)

    def remove_tree(self, key: str) -> None:
        mode = self._find_mode(key)
        if mode is not None and not stat.S_ISDIR(mode):
            raise make_error(errno.ENOTDIR, key)
        self._hide_key(key)

    def _find_mode(self, key: str) -> int | None:
        """The mode of `key`, which is about to be removed. None: rank 0, which is ahead, has removed `key` already, and
        it was too large for a copy in the journal. The callers then do not check whether `key` is a folder.

        Raises:
            FileNotFoundError: `key` does not exist for this rank.
        """
        place = self.locate(key)
        if place is not None:
            try:
                return os.lstat(place).st_mode
            except FileNotFoundError:
                if place != key:
                    raise
                # Rank 0 has removed `key` from the disk since `place` was found. Its note may name a copy.
                old_path = self.locate_lower(key)
                if old_path is not None:
                    return os.lstat(old_path).st_mode
        if self.is_hidden(key) or not self.notes.is_gone(key):
            raise make_error(errno.ENOENT, key)
        return None

    def _hide_key(self, key: str, mode: int | None = None) -> None:
        """Remove `key` from the upper layer, and hide it in the lower one. mode: of `key`; None: unknown."""
        # Several threads may remove files at the same time, so the map is changed in place, and a copy is searched.
        self.hidden[key] = True
        if mode is None or not stat.S_ISREG(mode):  # a folder, whose contents are hidden with it, or a link
            inside = os.path.join(key, "")
            for path, is_hidden in self.hidden.copy().items():
                if not is_hidden and path.startswith(inside):
                    self.hidden.pop(path, None)
            self._has_links = True  # the disk may still have the link, or links in the folder
        upper = self.locate_upper(key)
        if os.path.isdir(upper) and not os.path.islink(upper):
            shutil.rmtree(upper)
        elif os.path.lexists(upper):
            os.unlink(upper)
        self.mark_changed(key)

    def copy_file(self, key: str) -> str:
        """Copy the file or link `key` to the upper layer; of a folder, only the folder. Returns the real path."""
        place = self.locate_real(key)
        if not os.path.islink(place):
            return self.prepare_write(key, keep=True)
        if not self.is_own(key):
            self.add_link(os.readlink(place), key)
        return self.locate_upper(key)

    def copy_up(self, key: str) -> str:
        """Copy `key`, a file, link or whole folder, to the upper layer as this rank sees it. Returns the path there."""
        if not self.exists(key):
            raise make_error(errno.ENOENT, key)
        if not self.is_plain_folder(key):
            return self.copy_file(key)
        self.ensure_folder(key)
        for name in self.list_names(key):
            self.copy_up(os.path.join(key, name))
        return self.locate_upper(key)

    def add_link(self, target: str, key: str) -> None:
        """Create the symbolic link `key` in the upper layer."""
        self.ensure_folder(os.path.dirname(key))
        os.symlink(target, self.locate_upper(key))
        self._has_links = True
        self.mark_changed(key)

    def move_file(self, source: str, target: str) -> None:
        """Rename `source` to `target`. One of them may be a path that the view does not handle."""
        source_key, target_key = self.find_key(source, follow=False), self.find_key(target, follow=False)
        mode = os.lstat(source).st_mode if source_key is None else self._find_mode(source_key)
        if source_key == target_key:
            return
        if target_key is not None:
            self._check_target(target_key, target, source_key, mode is not None and stat.S_ISDIR(mode))
        source_place = source if source_key is None else self.copy_up(source_key)
        if target_key is None:
            shutil.move(source_place, target)
        else:  # the target is in the upper layer, where it replaces a file or an empty folder
            self.ensure_folder(os.path.dirname(target_key))
            if self.exists(target_key):
                self._hide_key(target_key)
            target_place = self.locate_upper(target_key)
            shutil.move(source_place, target_place)
            self.mark_changed(target_key)
            if not os.path.islink(target_place):  # a link leads perhaps to a large folder, which was not moved
                for key in self.list_upper(target_key):  # nothing of a file
                    self.mark_changed(key)
        if source_key is not None:
            self._hide_key(source_key, mode)

    def _check_target(self, key: str, target: str, source_key: str | None, is_folder: bool) -> None:
        """Raise the error of the system if `source_key`, a folder or not, cannot be moved to `key`, named `target`."""
        if is_folder and any(path == source_key for path in journal_reader.list_parents(key)):
            raise make_error(errno.EINVAL, target)
        if not self.exists(key):
            return
        replaces_folder = self.is_plain_folder(key)
        if replaces_folder != is_folder:
            raise make_error(errno.EISDIR if replaces_folder else errno.ENOTDIR, target)
        if replaces_folder and self.list_names(key):
            raise make_error(errno.ENOTEMPTY, target)


def make_error(number: int, path: str) -> OSError:
    """The error that the system raises for `path` with this `errno`."""
    return OSError(number, os.strerror(number), path)
