"""The files of a rank that takes the place of the first one become the real ones, whatever that one had done."""

import mmap
import os
import signal

import pytest

from matex_tf.files import journal, journal_reader, overlay
from matex_tf.files.view import View


@pytest.fixture
def view(tmp_path, monkeypatch):
    """The view of a rank that is not the first; files of its own lie outside of `tmp_path`/disk."""
    for name in ("own", "journal", "disk"):
        (tmp_path / name).mkdir()
    journal_reader.make_file(str(tmp_path / "journal"))
    news = journal_reader.Notes(str(tmp_path / "journal"))
    made = View(str(tmp_path / "own"), news)
    monkeypatch.setattr(overlay, "_view", made)
    monkeypatch.setattr(journal, "_writer", None)
    monkeypatch.chdir(tmp_path / "disk")
    return made


def write(view, name, text):
    place = view.prepare_write(os.path.abspath(name), keep=False)
    with open(place, "w") as file:
        file.write(text)
    return place


def list_tree():
    return {
        os.path.relpath(os.path.join(top, name)): os.readlink(path) if os.path.islink(path) else
        open(path).read() if os.path.isfile(path) else None
        for top, folders, names in os.walk(".") for name in folders + names
        for path in [os.path.join(top, name)]
    }  # fmt: skip


def test_what_was_removed_and_moved_is_removed_and_moved(view):
    os.makedirs("tree/inside")
    os.makedirs("kept")
    os.makedirs("was-folder")
    for name in ("tree/inside/old", "gone", "source", "kept/old", "was-folder/old", "was-file"):
        with open(name, "w") as file:
            file.write("of before")
    os.symlink("one", "link")
    view.remove_tree(os.path.abspath("tree"))
    view.remove_file(os.path.abspath("gone"))
    view.move_file("source", "target")
    view.remove_tree(os.path.abspath("was-folder"))
    write(view, "was-folder", "now a file")
    view.remove_file(os.path.abspath("was-file"))
    view.make_folder(os.path.abspath("was-file"))
    write(view, "was-file/inside", "new")
    view.remove_file(os.path.abspath("kept/old"))
    view.remove_file(os.path.abspath("link"))
    os.symlink("another", view.locate_upper(os.path.abspath("link")))
    overlay.take_over_files(True)
    assert list_tree() == {
        "kept": None,
        "target": "of before",
        "was-folder": "now a file",
        "was-file": None,
        "was-file/inside": "new",
        "link": "another",
    }


def test_what_the_first_rank_has_saved_in_a_removed_folder_stays(view):
    os.makedirs("models")
    for name in ("models/saved", "models/old"):
        with open(name, "w") as file:
            file.write(name)
    view.remove_tree(os.path.abspath("models"))
    view.show_file(os.path.abspath("models/saved"))
    overlay.take_over_files(True)
    assert list_tree() == {"models": None, "models/saved": "models/saved"}


def test_a_path_that_c_code_has_kept_leads_to_the_real_file(view):
    place = write(view, "events", "one\n")
    overlay.take_over_files(True)
    with open(place, "a") as file:
        file.write("two\n")
    with open(os.path.join(os.path.dirname(place), "later"), "w") as file:
        file.write("late")
    assert list_tree() == {"events": "one\ntwo\n", "later": "late"}


def test_nobody_who_lists_the_private_folder_comes_to_the_disk(view):
    """Neither a command's view of what is this rank's own, nor a walk that was under way."""
    for name in ("one", "two"):
        view.make_folder(os.path.abspath(name))
        write(view, f"{name}/data", "0123")
    sizes = view._limit._list_sizes()
    next(sizes)
    overlay.take_over_files(True)
    assert overlay.get_view() is None and journal.get_writer() is not None
    assert sum(len(names) for _, _, names in os.walk(view.root)) <= len(os.listdir(os.sep))
    assert not list(sizes) and not list(view._limit._list_sizes())


def test_a_rank_that_has_written_nothing_takes_over(view):
    overlay.take_over_files(True)
    assert view.find_key("anything") is None and list_tree() == {}


def test_a_process_that_writes_and_mapped_memory_are_found(view):
    place = write(view, "data", "0123")
    assert overlay.find_private_use() == ""
    with open(place, "r+") as file, mmap.mmap(file.fileno(), 0):
        assert "data is mapped into memory" in overlay.find_private_use()
    with open(place, "a"):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        assert f"process {child}" in overlay.find_private_use()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert overlay.find_private_use() == ""
