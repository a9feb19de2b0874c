"""What is saved appears whole or not at all, also where the process that saves is killed half-way."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from matex_tf.runtime import atomic, temp_folders

SAVE = """
import os, signal, sys
from pathlib import Path
from matex_tf.runtime import atomic

def write(path, text):
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        if "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        file.write(text[len(text) // 2 :])

with atomic.write_beside(sys.argv[1]) as place:
    for end in sys.argv[2].split(","):
        write(Path(place + end), "new" + end)
"""
ENDS = {"file": "", "folder": "/saved_model.pb,/variables/variables.index", "files": ".index,.data-00000-of-00001"}


def save(path, kind, *how):
    return subprocess.run([sys.executable, "-c", SAVE, path, ENDS[kind], *how]).returncode


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ENDS)
def test_a_killed_save_changes_nothing_and_the_next_one_clears_up(tmp_path, kind):
    path = str(tmp_path / "saved")
    assert save(path, kind, "die") == -signal.SIGKILL
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == []
    assert save(path, kind) == 0
    whole_ones = contents(tmp_path)
    assert whole_ones == {f"saved{end}": f"new{end}" for end in ENDS[kind].split(",")}
    for name in whole_ones:
        (tmp_path / name).write_text("old")
    assert save(path, kind, "die") == -signal.SIGKILL
    assert {name: text for name, text in contents(tmp_path).items() if name[0] != "."} == dict.fromkeys(
        whole_ones, "old"
    )
    assert save(path, kind) == 0
    assert contents(tmp_path) == whole_ones


def test_folder_link_and_permissions_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder/mine").write_text("mine")
    Path("folder/old").write_text("old")
    Path("folder/old").chmod(0o640)
    Path("link").symlink_to("folder/old")
    with atomic.write_beside("link") as place:
        Path(place).write_text("new")
    assert Path("link").is_symlink() and Path("folder/old").read_text() == "new"
    assert Path("folder/old").stat().st_mode & 0o777 == 0o640
    for path in ("folder", "folder/", "./folder"):
        with atomic.write_beside(path) as place:
            Path(place).mkdir()
            Path(place, "saved_model.pb").write_text(path)
        assert contents(tmp_path / "folder") == {"mine": "mine", "old": "new", "saved_model.pb": path}
    monkeypatch.chdir("folder")
    with atomic.write_beside(".") as place:
        Path(place, "variables").mkdir(parents=True)
        Path(place, "variables/variables.index").write_text("here")
    assert Path("variables/variables.index").read_text() == "here" and Path("mine").exists()
    assert sorted(os.listdir(tmp_path)) == ["folder", "link"]


def test_after_an_error_the_old_file_is_there_and_the_error_names_it(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    with pytest.raises(OSError) as caught, atomic.write_beside(str(path)) as place:
        Path(place).write_text("half")
        raise OSError(28, f"cannot write {place}", place)
    assert caught.value.filename == str(path) and str(path) in caught.value.strerror + str(caught.value)
    assert ".matex_tf" not in str(caught.value)
    assert contents(tmp_path) == {"model.keras": "old"}


def test_a_place_that_nothing_can_be_moved_to_is_written_all_the_same(tmp_path, monkeypatch):
    def refuses(source, place):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(atomic.os, "replace", refuses)
    for name in ("model.keras", "model"):
        for text in ("old", "new"):
            with atomic.write_beside(str(tmp_path / name)) as place:
                Path(place).mkdir() if name == "model" else Path(place).write_text(text)
                if name == "model":
                    Path(place, "saved_model.pb").write_text(text)
    assert contents(tmp_path) == {"model.keras": "new", "model/saved_model.pb": "new"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_on_a_full_disk_the_old_file_is_not_given_up(tmp_path, monkeypatch, number):
    path = tmp_path / "best.keras"
    path.write_text("old")

    def full(*_args, **_named):
        raise OSError(number, os.strerror(number))

    for name, where in (("mkdtemp", temp_folders.tempfile), ("replace", atomic.os)):
        with monkeypatch.context() as patched:
            patched.setattr(where, name, full)
            with pytest.raises(OSError) as caught, atomic.write_beside(str(path)) as place:
                Path(place).write_text("new")
        assert caught.value.errno == number
        assert contents(tmp_path) == {"best.keras": "old"}


def test_what_another_host_or_container_saves_is_left_alone(tmp_path):
    mine = atomic._make_prefix()
    others = [
        mine.replace(atomic.socket.gethostname(), atomic.socket.gethostname() + "-0"),
        mine.replace("@4", "@5", 1),
    ]
    for start in (mine, *others):
        (tmp_path / f"{start}999999999-abc").mkdir()
    with atomic.write_beside(str(tmp_path / "model.keras")) as place:
        Path(place).write_text("new")
    left = {name for name in os.listdir(tmp_path) if name.startswith(".")}
    assert left == {f"{start}999999999-abc" for start in others}


def test_what_must_not_be_replaced_is_written_in_place(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", str(tmp_path / "pipe"), str(tmp_path / "not there" / "model.keras")):
        with atomic.write_beside(path) as place:
            assert place == path
