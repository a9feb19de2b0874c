"""A rank's own view of the files: what it writes goes to a private folder, from which it also reads.

"One set of files" in docs/how-it-works.md says why. Paths are canonical and absolute here ("keys"). Nothing in this
file is patched; whoever calls it does so within `real_files.use_real_files`.
"""

from __future__ import annotations

import atexit
import fcntl
import filecmp
import os
import shutil

from matex_tf import settings
from matex_tf.io import journal, layers, private_folder
from matex_tf.io.view import View
from matex_tf.runtime import real_files
from matex_tf.world import world

_PREFIX = "matex_tf-files-"


_view: View | None = None
_news: journal.Journal | None = None


def get_view() -> View | None:
    """This rank's view of the files; None where they are the real ones."""
    return _view


def get_own_view() -> View:
    """This rank's view, for what is only called where there is one."""
    assert _view is not None
    return _view


def get_journal() -> journal.Journal | None:
    """The journal in which rank 0 writes; None on the others."""
    return _news if _view is None or _view.is_left else None


def start_overlay() -> None:
    """Begin to look at files as `MATEX_OUTPUT` says. Collective."""
    global _view, _news
    me = world.get_world()
    if settings.get_settings().output == "all":
        return
    _news = journal.share_journal()
    # What is measured is not to be kept, be it rank 0's.
    if me.rank > 0 or settings.get_settings().plan is not None:
        root = private_folder.make_folder(_PREFIX, private_folder.choose_parent())
        _view = View(root, _news)
        atexit.register(_remove_root, root, me.process)


def take_over_files(became_first: bool) -> None:
    """Where rank 0 was lost: what this rank has written is what stays from here on.

    It wrote what rank 0 did, up to where that one was. Files that are open here go on in the real ones.
    """
    view = _view
    if not became_first or view is None:
        return
    with real_files.use_real_files():
        view.return_to_disk()
        view.is_left = True
        view.news.take_over()
        for folder, _, names in os.walk(view.root):
            key = folder[len(view.root) :] or os.sep
            if os.path.isdir(os.path.dirname(key)):
                os.makedirs(key, exist_ok=True)
            for name in names:
                _install_file(os.path.join(folder, name), os.path.join(key, name))
        for descriptor, path in list(layers.list_open_descriptors()):
            if path.startswith(view.root + os.sep) and os.path.isfile(path):  # not one that was removed while open
                _reopen_file(descriptor, path[len(view.root) :])


def _install_file(place: str, key: str) -> None:
    """Have the file `key` hold what `place` does."""
    if os.path.islink(place):
        if not os.path.lexists(key):
            os.symlink(os.readlink(place), key)
        return
    if os.path.isfile(key) and filecmp.cmp(place, key, shallow=False):
        return
    temporary = f"{key}.{os.getpid()}.part"
    shutil.copy2(place, temporary)
    os.replace(temporary, key)


def _reopen_file(descriptor: int, key: str) -> None:
    """Let `descriptor`, of a file in the upper layer, be one of the real file `key`, at the same place in it."""
    keep = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
    other = os.open(key, keep)
    os.lseek(other, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(other, descriptor, inheritable=os.get_inheritable(descriptor))
    os.close(other)


def _remove_root(root: str, owner: int) -> None:
    if os.getpid() == owner:
        with real_files.use_real_files():
            shutil.rmtree(root, ignore_errors=True)
