"""Holds the view of this rank, and makes its private files real if rank 0 is lost."""

from __future__ import annotations

import errno
import fcntl
import filecmp
import functools
import os
import shutil
import stat

from matex_tf import settings
from matex_tf.files import journal, layers, private_folder
from matex_tf.files.view import View
from matex_tf.runtime import real_files, shutdown
from matex_tf.thread_flag import is_main_thread
from matex_tf.world import script_knowledge, terminal, world

_PREFIX = "matex_tf-files-"
_view: View | None = None


def get_view() -> View | None:
    """This rank's view of the files; None if it uses the real files, also after rank 0 was lost."""
    return None if _view is None or _view.is_left else _view


def get_own_view() -> View:
    """This rank's view, even if the rank uses the real files by now. Only for ranks that started with a view."""
    assert _view is not None
    return _view


def has_view() -> bool:
    """Whether this rank has a view of its own, as ranks other than 0 have."""
    return get_view() is not None


def is_on() -> bool:
    """Whether the ranks share one set of files: this rank has a view, or writes notes of its changes for the others."""
    return has_view() or journal.get_writer() is not None


def is_reached_by_all() -> bool:
    """Whether all ranks reach the line of the script that this thread is at, so that rank 0 may act for all.

    It is so on the main thread before the end of the script only, and only if the script has not asked for its rank:
    such a script decides itself which rank acts. Within `use_real_files` one rank alone may act, for example to save a
    file for all ranks.
    """
    is_main = is_main_thread() and not shutdown.have_all_ended()
    return is_main and world.is_active() and not (script_knowledge.knows_ranks or real_files.uses_real_files())


def start_overlay() -> None:
    """Start the overlay, depending on `MATEX_OUTPUT`. Collective."""
    global _view
    me = world.get_world()
    if settings.get_settings().output == "all":
        return
    notes = journal.share_journal()
    # Files of a measurement are not kept, not even rank 0's.
    if me.rank > 0 or settings.get_settings().plan is not None:
        root = private_folder.make_folder(_PREFIX, private_folder.choose_parent())
        _view = View(root, notes)
        # After the last collective, because until then this rank may have to take over.
        shutdown.after_end.append(functools.partial(_remove_root, root, me.process))
    else:
        journal.Journal(notes).start_writing()


def adopt_view(view: View) -> None:
    """Use `view` in this process, a child process of its rank."""
    global _view
    _view = view


def find_private_use() -> str:
    """After the loss of rank 0, before this rank takes over: describe a use of this rank's own files or output that
    cannot be switched to the real files; "" if there is none.
    """
    root = os.path.join(_view.root, "") if _view is not None else "\0"  # no path begins with "\0"
    with real_files.use_real_files():
        with open("/proc/self/maps") as file:
            for line in file:
                # A line: addresses, permissions, offset, device, inode, and the path if a file is mapped.
                _, permissions, _, _, _, *mapped_path = line.rstrip("\n").split(None, 5)
                is_written = "w" in permissions and "s" in permissions  # writable and shared
                if is_written and mapped_path and mapped_path[0].startswith(root):
                    return f"{mapped_path[0][len(root) - 1 :]} is mapped into memory"
        # The files that store this rank's output, which it prints if rank 0 is lost.
        output_files = {(state.st_dev, state.st_ino) for state in terminal.list_stored_files()}
        # A process with a working folder or open files of this rank counts as started by the script.
        for process in filter(str.isdigit, os.listdir("/proc")):
            if int(process) != os.getpid() and any(
                path.startswith(root) or device_and_inode in output_files
                for _, path, device_and_inode in layers.list_open_files(process)
            ):
                return f"process {process}, started by the script, still prints or writes"
    return ""


def take_over_files(became_first: bool) -> None:
    """After the loss of rank 0: if this rank `became_first`, write its changes to the disk, and switch its open files
    to the real ones.

    This rank noticed the loss in work of all ranks, which rank 0 had not completed. So rank 0 was not further in the
    script, and had made no change that this rank lacks.
    """
    view = _view
    if not became_first or view is None:
        return
    with real_files.use_real_files():
        journal.take_over(view.notes)
        _remove_hidden(view)
        for key in view.list_upper():
            place = view.locate_upper(key)
            if not stat.S_ISDIR(mode := os.lstat(place).st_mode):
                _install_file(place, key)
            elif not os.path.isdir(key):
                os.mkdir(key, stat.S_IMODE(mode))
        for descriptor, path, _ in list(layers.list_open_files("self")):
            if path.startswith(view.root + os.sep) and os.path.isfile(path):  # not a file that was removed while open
                _reopen_file(int(descriptor), path[len(view.root) :])
        view.leave_layers()


def _remove_hidden(view: View) -> None:
    """Remove from the disk the files that this rank has removed (`view.hidden`) and rank 0 had not."""
    for key in sorted(view.hidden):
        contents = [
            os.path.join(folder, name) for folder, folders, files in os.walk(key) for name in (*folders, *files)
        ]
        for path in [*sorted(contents, reverse=True), key]:  # the contents of a folder come before the folder
            if not os.path.lexists(path) or not view.is_hidden(path):
                continue
            is_folder = os.path.isdir(path) and not os.path.islink(path)
            if not is_folder:
                os.remove(path)
            elif not os.path.isdir(view.locate_upper(path)):  # else this rank has the folder again, as a private one
                try:
                    os.rmdir(path)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:  # rank 0 has saved files in it for all ranks
                        raise


def _install_file(private_path: str, key: str) -> None:
    """Replace the file `key` by a copy of `private_path`, if they differ."""
    if (is_link := os.path.islink(private_path)) == os.path.islink(key):
        if is_link and os.readlink(key) == os.readlink(private_path):
            return
        if not is_link and os.path.isfile(key) and filecmp.cmp(private_path, key, shallow=False):
            return
    temporary_path = f"{key}.{os.getpid()}.part"
    shutil.copy2(private_path, temporary_path, follow_symlinks=False)
    os.replace(temporary_path, key)


def _reopen_file(descriptor: int, key: str) -> None:
    """Switch `descriptor`, of a file in the private folder, to the real file `key`, at the same offset."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
    real_descriptor = os.open(key, flags)
    os.lseek(real_descriptor, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(real_descriptor, descriptor, inheritable=os.get_inheritable(descriptor))
    os.close(real_descriptor)


def _remove_root(root: str, process: int) -> None:
    if os.getpid() == process:
        with real_files.use_real_files():
            shutil.rmtree(root, ignore_errors=True)
