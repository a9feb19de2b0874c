"""The shared memory of ranks is removed once nobody uses it."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time

import pytest

import launch
from matex_tf.launch import probe, process
from matex_tf.runtime import rank_records, shared_memory, temp_folders

pytestmark = pytest.mark.waits


WAITING = """
import os, time
import matex_tf
print("ready", os.getppid(), flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("killed", ["mpirun", "matex and mpirun"])
def test_memory_that_a_killed_mpirun_leaves_is_removed(tmp_path, monkeypatch, killed):
    """By `matex run` itself, or if that was killed, too, by the next one."""
    shared, temporary = tmp_path / "shared", tmp_path / "temporary"
    for folder in (shared, temporary):
        folder.mkdir()
    (tmp_path / "wait.py").write_text(WAITING)
    (shared / "sm_segment.other.0.1.0").touch()
    child = subprocess.Popen(
        [sys.executable, "-m", "matex_tf.launch.cli", "run", "-n", "2", str(tmp_path / "wait.py")],
        env=launch.environment({"OMPI_MCA_btl_sm_backing_directory": str(shared), "TMPDIR": str(temporary)}),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        mpirun = int(child.stdout.readline().split()[1])
        assert len(list(shared.iterdir())) == 3
        deadline = time.monotonic() + 30
        (folder,) = temporary.glob("matex_tf-run-*")
        while sum(bool(one.shared) for one in rank_records.read_records(folder)) < 2:
            assert time.monotonic() < deadline, "a rank has noted nothing"
            time.sleep(0.1)
        if killed != "mpirun":
            child.kill()
        os.kill(mpirun, signal.SIGKILL)
        assert child.wait(30) != 0
    finally:
        if child.poll() is None:
            child.kill()
    if killed != "mpirun":
        assert len(list(shared.iterdir())) == 3
        monkeypatch.setattr(temp_folders.tempfile, "tempdir", str(temporary))
        monkeypatch.setattr(temp_folders, "_MINUTE", 0)
        deadline = time.monotonic() + 60
        while list(temporary.glob("matex_tf-run-*")):  # while a rank still ends, both stay
            assert time.monotonic() < deadline
            with process.make_proof_folder(None):
                time.sleep(0.2)
    assert [path.name for path in shared.iterdir()] == ["sm_segment.other.0.1.0"]


def test_memory_that_is_used_or_was_made_by_others_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_records, "_folder", str(tmp_path))
    path = tmp_path / "sm_segment.here.0.1.0"
    path.write_bytes(bytes(4096))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0):
        shared_memory.note_files()
        assert not shared_memory.remove_files(tmp_path) and path.exists()
    (tmp_path / "another").write_bytes(bytes(4096))
    path.rename(tmp_path / "kept")
    (tmp_path / "another").rename(path)
    assert shared_memory.remove_files(tmp_path) and path.exists()
    (tmp_path / "kept").rename(path)
    assert shared_memory.remove_files(tmp_path) and not path.exists()


def test_asking_for_the_level_of_threads_leaves_no_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", str(tmp_path))
    assert probe.find_thread_level()["threads"] == "multiple" and not list(tmp_path.iterdir())
