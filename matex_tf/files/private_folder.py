"""The private folder of a rank other than 0: the choice of its disk, its creation, and the limit of its bytes."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator

from matex_tf import settings
from matex_tf.ops import cache
from matex_tf.runtime import rank_records, real_files, shutdown, temp_folders
from matex_tf.thread_flag import starts_own
from matex_tf.world import exit_codes, terminal, world

_IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
_CHECK_SECONDS = 1.0  # the least time between two checks of the size
_CHECK_FACTOR = 20  # the wait before a check is at least 20 times as long as the check before took, to cost little
_made: list[str] = []  # the folders that this process has created


def choose_parent() -> str:
    """The folder for private folders: `MATEX_FILES_DIR`, else the first usual folder on a disk, else the first one.

    Files in a folder that is in memory, as `/tmp` is on some hosts, would take memory from the training.
    """
    if settings.get_settings().files_dir:
        os.makedirs(settings.get_settings().files_dir, exist_ok=True)
        return settings.get_settings().files_dir
    usual_folders = (tempfile.gettempdir(), "/var/tmp", os.fspath(cache.find_cache_folder()))
    for folder in usual_folders:
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK) and not is_in_memory(folder):
            return folder
    return usual_folders[0]


def is_in_memory(folder: str) -> bool:
    """Whether files in `folder` take memory of the host."""
    device = os.stat(folder).st_dev
    device_number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as mounts:
        file_systems = [line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == device_number]
    return bool(file_systems) and file_systems[0] in _IN_MEMORY


def make_folder(prefix: str, folder: str) -> str:
    """Create a folder in `folder` that this process holds until it ends. First, remove folders of ended processes."""
    # None: the folder of temporary files, which no other host shares, so that folders are removed sooner.
    temp_folders.sweep_folders(prefix, None if folder == tempfile.gettempdir() else folder)
    path = temp_folders.make_folder(prefix, folder)[0]
    _made.append(path)
    rank_records.note(host=socket.gethostname(), folders=_made)  # for `matex run`, if this process is killed
    return path


class Limit:
    """Ends the job once the files in `folder` take more than `max_bytes`. A thread checks after `start_watching`."""

    def __init__(self, folder: str):
        self._folder = folder
        me = world.get_world()
        # All ranks of a host together take at most half of what is free. Rank 0 has no private folder, a phantom has.
        folder_count = me.local_size - (me.node == 0 and not me.is_phantom)
        bytes_per_folder = shutil.disk_usage(os.path.dirname(folder)).free // 2 // max(folder_count, 1)
        self.max_bytes = settings.get_settings().files_bytes or bytes_per_folder
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start_watching(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch_size, name="matex_tf files", daemon=True)
            with starts_own.set():  # tells the hook of `Thread.start` that this is no thread of the script
                self._thread.start()

    def stop_watching(self) -> None:
        self._stopped.set()

    def _watch_size(self) -> None:
        seconds = _CHECK_SECONDS
        while not self._stopped.wait(seconds):
            start_time = time.monotonic()
            with real_files.use_real_files():
                sizes = dict(self._list_sizes())
            if sum(sizes.values()) > self.max_bytes and not self._stopped.is_set():
                terminal.write_text(self._describe_excess(sizes))
                shutdown.abort_all_ranks(exit_codes.EXIT_FULL)
            seconds = max(_CHECK_SECONDS, _CHECK_FACTOR * (time.monotonic() - start_time))

    def _list_sizes(self) -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(self._folder):
            if self._stopped.is_set():  # the folder may hold links to the disk by now (`View.leave_layers`)
                return
            for path in (os.path.join(folder, name) for name in names):
                try:
                    yield path, 512 * os.lstat(path).st_blocks
                except FileNotFoundError:  # removed in the meantime
                    continue

    def _describe_excess(self, sizes: dict[str, int]) -> str:
        me = world.get_world()
        largest = max(sizes, key=lambda path: sizes[path])
        return (
            f"matex_tf: rank {me.rank} ({me.host}): the files that this rank has written take {sum(sizes.values())} "
            f"bytes, more than {self.max_bytes} (MATEX_FILES_BYTES). The largest is {largest[len(self._folder) :]} "
            f"({sizes[largest]} bytes). Every rank but the first keeps what the script writes in a private folder, "
            f"{self._folder}, to read it back. Set MATEX_FILES_BYTES to more, or MATEX_FILES_DIR to a folder on a "
            "larger disk.\n"
        )
