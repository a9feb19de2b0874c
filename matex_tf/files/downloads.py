"""`keras.utils.get_file` and its users: of the ranks that share a file system, one downloads; the others find the file.

One rank after the other takes a lock and calls the original function. On the first rank it downloads the file, on each
later rank it finds the complete file. The lock is a file in the library's cache folder, because a script may list the
folder of the download. No collective is used, because a script may download on one rank alone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import inspect
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from matex_tf import errors
from matex_tf.ops import cache
from matex_tf.runtime import real_files, temp_folders
from matex_tf.runtime.hooks import put_function
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.world import world

HOOKS = KerasTable()

_HEAD_START_SECONDS = 2.0
"""Ranks other than 0 ask for the lock after this time at the latest. Rank 0, which shows the progress, should be first.
"""


def _put_everywhere(owner: Any, name: str, make: Any) -> None:
    """Replace the function in all modules of Keras that refer to it, such as `keras.utils` and modules of data sets."""
    original = getattr(owner, name)
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] in ("keras", "tf_keras") and getattr(module, "__dict__", {}).get(name) is original:
            put_function(module, name, make)


@HOOKS.replace_in(
    "ranks download a file at once", "utils.file_utils:get_file", "utils.data_utils:get_file", put=_put_everywhere
)
def _wrap_get_file(original: Any) -> Any:
    signature = inspect.signature(original)

    def get_file(*args, **kwargs):
        if not world.is_active():
            return original(*args, **kwargs)
        with real_files.use_real_files():  # on the disk, not in a rank's private folder
            try:
                folder, name = _find_target(signature.bind(*args, **kwargs).arguments)
            except TypeError:
                return original(*args, **kwargs)  # raises the appropriate error
            with _lock_download(folder, name):
                return original(*args, **kwargs)

    return get_file


def _find_target(arguments: Mapping[str, Any]) -> tuple[str, str]:
    """The folder to which a call downloads, as Keras chooses it, and the name of the file."""
    cache_folder = (
        arguments.get("cache_dir") or os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    )
    cache_folder = os.path.expanduser(cache_folder)
    if not os.access(cache_folder, os.W_OK):
        cache_folder = os.path.join("/tmp", ".keras")
    name = arguments.get("fname") or os.path.basename(str(arguments.get("origin") or ""))
    return os.path.join(cache_folder, arguments.get("cache_subdir", "datasets")), os.path.basename(os.fspath(name))


@contextlib.contextmanager
def _lock_download(folder: str, name: str) -> Iterator[None]:
    """A context in which no other rank on this file system downloads the file `name` to `folder`."""
    lock_folder = cache.find_cache_folder() / "downloads"
    lock_folder.mkdir(parents=True, exist_ok=True)
    target_path = os.path.join(os.path.realpath(folder), name)
    lock_path = os.path.join(lock_folder, hashlib.blake2b(target_path.encode(), digest_size=8).hexdigest() + ".lock")
    stem = name.split(".")[0]
    # What Keras may leave in the folder, by its version: the file, an archive, or the extracted contents.
    result_paths = [
        os.path.join(folder, result_name) for result_name in (name, f"{name}_archive", f"{stem}_extracted", stem)
    ]
    if world.get_world().rank > 0:
        deadline = time.monotonic() + _HEAD_START_SECONDS
        # A lock or a result: another rank is downloading, or has downloaded.
        while time.monotonic() < deadline and not any(map(os.path.exists, (lock_path, *result_paths))):
            time.sleep(0.02)
    descriptor = _acquire_lock(lock_path)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock_path)
        os.close(descriptor)


def _acquire_lock(path: str) -> int:
    """A descriptor that holds the lock `path`, after a wait for other holders."""
    try:
        descriptor = temp_folders.hold_file(path, waits=True)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise errors.SetupError(
            f"{path}: expected a lock file, found a symbolic link, which may lead anywhere. Remove it."
        ) from None
    assert descriptor is not None
    return descriptor
