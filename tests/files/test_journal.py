"""Rank 0's notes of its files, as other ranks read them."""

import io
import os
import pathlib
import posix
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from matex_tf.files import journal, journal_reader
from matex_tf.files.view import View
from matex_tf.runtime import real_files
from matex_tf.world import world


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """Rank 0's journal, that of another, and how many collectives both have completed."""
    numbers = {"here": 0, "there": 0}
    who = ["there"]
    monkeypatch.setattr(journal_reader, "count_collectives", lambda: numbers[who[0]])
    monkeypatch.setattr(world, "is_active", lambda: True)
    (tmp_path / "journal").mkdir()
    journal_reader.make_file(str(tmp_path / "journal"))
    written, there = (journal_reader.Notes(str(tmp_path / "journal")) for _ in range(2))
    here = journal.Journal(written)

    def note(path, **how):
        who[0] = "here"
        here.write_note(str(path), **how)
        who[0] = "there"

    return note, there, numbers


def test_a_rank_that_is_behind_reads_what_was_saved_in_a_folder_that_rank_0_has_made_and_removed(tmp_path, ends):
    note, there, numbers = ends
    made, moved = (tmp_path / name for name in ("made", "moved"))
    for folder in (made, moved):
        note(folder)
        folder.mkdir()
        note(folder / "own")
        (folder / "own").write_text("of rank 0")
        note(folder / "inner")
        (folder / "inner").mkdir()
        for model in ("model", "inner/model"):  # the journal has no note, as after `Journal.mark_delivered`
            (folder / model).write_text("saved for all")
    numbers.update(here=1, there=1)
    note(made, removed=True)
    shutil.rmtree(made)
    note(moved, removed=True, new_path=str(tmp_path / "new"))
    moved.rename(tmp_path / "new")
    for path in (folder / model for folder in (made, moved) for model in ("model", "inner/model")):
        assert Path(there.find_before(str(path))).read_text() == "saved for all"
    assert there.find_before(str(made / "own")) == "", "every rank has written its own"


def test_a_failed_move_does_not_count(tmp_path, ends):
    note, there, _ = ends
    source, target = (tmp_path / name for name in ("source", "target"))
    source.mkdir()
    for path in (source / "file", target):
        path.write_text("as it was")
    note(source, removed=True, new_path=str(target))  # a folder cannot replace a file
    note(target)
    target.write_text("changed")
    assert there.find_before(str(source / "file")) is None


@pytest.mark.parametrize("fails", [False, True])
def test_a_rank_that_is_behind_reads_a_file_that_rank_0_moves_twice_and_then_changes(tmp_path, ends, fails):
    note, there, _ = ends
    source, first, second = (tmp_path / name for name in ("source", "first", "second"))
    source.write_text("as it was")
    note(first)
    note(source, removed=True, new_path=str(first))
    source.rename(first)
    note(second)
    note(first, removed=True, new_path=str(second))
    if not fails:
        first.rename(second)
    assert Path(there.find_before(str(source))).read_text() == "as it was"
    here = first if fails else second
    note(here)
    here.write_text("changed")
    assert Path(there.find_before(str(source))).read_text() == "as it was"


def test_the_oldest_note_has_the_old_content(tmp_path, ends):
    note, there, _ = ends
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("as it was")
    note(folder, removed=True, new_path=str(tmp_path / "new"))
    folder.rename(tmp_path / "new")
    note(folder / "file")  # and the script fails to write it: there is no folder
    assert Path(there.find_before(str(folder / "file"))).read_text() == "as it was"


def test_a_rank_sees_what_was_there_until_it_comes_to_that_place(ends, tmp_path):
    note, there, numbers = ends
    old, new, gone, moved = (str(tmp_path / name) for name in ("old.txt", "new", "gone", "moved"))
    for path in (old, moved):
        with open(path, "w") as file:
            file.write("as it was")
    os.makedirs(gone + "/deep")
    assert there.find_before(old) is None and not there.has_news()
    assert there.is_quiet()
    note(old)
    note(new)
    note(gone, removed=True)
    os.mkfifo(tmp_path / "pipe")
    note(tmp_path / "pipe")
    assert there.find_before(str(tmp_path / "pipe")) is None
    note(moved, removed=True, new_path=moved + "-to")
    assert there.find_before(moved) is None, "it is still there"
    os.rename(moved, moved + "-to")
    with open(old, "w") as file:
        file.write("changed")
    os.mkdir(new)
    os.rmdir(gone + "/deep")
    os.rmdir(gone)
    with open(there.find_before(old)) as file, open(there.find_before(moved)) as other:
        assert file.read() == other.read() == "as it was"
    assert there.find_before(new) == there.find_before(new + "/inside") == there.find_before(gone + "/other") == ""
    assert there.list_before(gone) == ["deep"] and os.path.isdir(there.find_before(gone + "/deep"))
    assert not there.is_quiet() and there.has_news()
    numbers["there"] = 1
    assert {there.find_before(path) for path in (old, new, gone, moved)} == {None}
    assert not there.has_news() and there.is_quiet()


def test_a_rank_far_behind_sees_the_first_of_several_states(ends, tmp_path):
    note, there, numbers = ends
    path = tmp_path / "state.json"
    note(path)
    path.write_text("1")
    for _ in range(2):
        note(path)  # opened, but not changed
    numbers["here"] = 1
    note(path, removed=True)  # the others have their own by then
    path.unlink()
    note(path)
    path.write_text("2")
    assert there.find_before(str(path)) == ""
    numbers["there"] = 1
    assert there.find_before(str(path)) == "", "it is still at the place where it is made again"
    numbers["there"] = 2
    assert there.find_before(str(path)) is None


def test_large_files_are_not_copied_and_copies_do_not_stay(ends, tmp_path, monkeypatch):
    note, there, numbers = ends
    monkeypatch.setattr(journal, "_MAX_COPY_BYTES", 10)
    large, folder = tmp_path / "large", tmp_path / "folder"
    folder.mkdir()
    for path in (large, folder / "large"):
        path.write_text("more than ten bytes")
    note(large)
    note(folder, removed=True)
    assert there.find_before(str(large)) == str(large)
    assert there.find_before(str(folder)) == "" and there.is_gone(str(folder))
    for number in range(4):
        numbers["here"] = number
        (tmp_path / f"small-{number}").write_text("small")
        note(tmp_path / f"small-{number}")
    numbers["there"] = 3
    kept = [name for name in os.listdir(tmp_path / "journal") if name != "notes"]
    assert len(kept) == 2, "of the last two places at which a rank may be"
    with open(there.find_before(str(tmp_path / "small-3"))) as file:
        assert file.read() == "small"


def test_several_threads_read_all_notes_once(ends):
    note, there, _ = ends
    count, failed, over = 3000, [], threading.Event()

    def read():
        try:
            while not over.is_set():
                there.has_news()
                there.list_before("/a folder")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(count):
        note(f"/a folder/{number}")
    over.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(there.list_before("/a folder"), key=int) == [str(number) for number in range(count)]
    assert all(len(notes) == 1 for notes in there._notes.values())


def test_whatever_in_python_changes_a_file_is_noted(ends, tmp_path, monkeypatch):
    _, there, _ = ends
    monkeypatch.setattr(journal, "_writer", None)
    (tmp_path / "old").write_text("as it was")
    journal.Journal(journal_reader.Notes(there.folder)).start_writing()
    monkeypatch.chdir(tmp_path)
    changes = {
        "by_open": lambda path: open(path, "w").close(),
        "by_class": lambda path: io.FileIO(path, "w").close(),
        "by_flags": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)),
        "by_path": lambda path: pathlib.Path(path).touch(),
        "folder": lambda path: posix.mkdir(path),
        "link": lambda path: os.symlink("old", path),
        "hard_link": lambda path: os.link("old", path),
        "moved": lambda path: posix.rename("old", path),
        "database": lambda path: sqlite3.connect(path).close(),
        "named": lambda path: sqlite3.connect(f"file:{path}?mode=rwc", uri=True).close(),
    }
    for name, change in changes.items():
        path = str(tmp_path / name)
        assert there.find_before(path) is None
        change(path)
        assert there.find_before(path) == "", name
    with open(there.find_before(str(tmp_path / "old"))) as file:
        assert file.read() == "as it was"
    with real_files.use_real_files():
        posix.mkdir("of_ours")
    assert there.find_before(str(tmp_path / "of_ours")) is None


def test_a_file_that_rank_0_changes_while_another_rank_copies_it_is_copied_as_it_was(ends, tmp_path, monkeypatch):
    note, there, _ = ends
    state = tmp_path / "state.json"
    state.write_text("as it was")
    (tmp_path / "own").mkdir()
    seen = View(str(tmp_path / "own"), there)
    copy = shutil.copy2

    def change_first(source, target, **how):
        if source == str(state) and target.startswith(seen.root):
            note(state)
            state.write_text("")
        return copy(source, target, **how)

    monkeypatch.setattr(shutil, "copy2", change_first)
    place = seen.prepare_write(str(state), keep=True)
    assert pathlib.Path(place).read_text() == "as it was"
