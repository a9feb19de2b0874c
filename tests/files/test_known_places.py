"""The cache of changed names gives the location that a search of both layers finds, after every kind of change."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from matex_tf.files import journal, journal_reader
from matex_tf.files.view import View
from matex_tf.world import world

NAMES = [
    "a",
    "a/inside",
    "b",
    "folder",
    "folder/a",
    "folder/deep",
    "folder/deep/a",
    "moved",
    "moved/a",
    "moved/deep/a",
    "link/a",
]


@pytest.fixture
def view(tmp_path, monkeypatch):
    """The view of a rank other than 0; the working folder has three files."""
    for name in ("own", "journal", "disk/folder/deep"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a", "folder/a", "folder/deep/a"):
        (tmp_path / "disk" / name).write_text("of the disk")
    journal_reader.make_file(str(tmp_path / "journal"))
    monkeypatch.chdir(tmp_path / "disk")
    return View(str(tmp_path / "own"), journal_reader.Notes(str(tmp_path / "journal")))


def check_places(view):
    for name in NAMES:
        place = view.known.find_place(name)
        if place is None or (place != name and not os.path.lexists(place)):
            continue  # both layers are searched
        found = view.locate(view.find_key(name, follow=False))
        assert (found is not None) == os.path.lexists(place), name
        assert found is None or os.path.samefile(found, place), name


def write(view, name):
    with open(view.prepare_write(os.path.abspath(name), keep=True), "a") as file:
        file.write("of the rank")


def link_folder(view):
    view.add_link("folder", os.path.abspath("link"))


def replace_by_folder(view):
    """What rank 0 does on the disk."""
    os.remove("a")
    os.mkdir("a")
    open("a/inside", "w").close()


CHANGES = {
    "a changed file": [lambda view: write(view, "a")],
    "a new file": [lambda view: write(view, "folder/deep/b"), lambda view: write(view, "b")],
    "a moved file": [lambda view: view.move_file("a", "b")],
    "a moved folder": [lambda view: view.move_file("folder", "moved")],
    "a removed file": [lambda view: view.remove_file(os.path.abspath("folder/a"))],
    "a removed folder, which is made again": [
        lambda view: view.remove_tree(os.path.abspath("folder")),
        lambda view: view.make_folder(os.path.abspath("folder")),
        lambda view: write(view, "folder/a"),
    ],
    "a file in place of a folder": [
        lambda view: view.remove_tree(os.path.abspath("folder/deep")),
        lambda view: write(view, "folder/deep"),
    ],
    "a file that rank 0 has replaced by a folder": [lambda view: write(view, "a"), replace_by_folder],
    "a link": [link_folder, lambda view: write(view, "folder/a")],
    "a link in place of a folder": [
        lambda view: view.move_file("folder", "moved"),
        lambda view: view.add_link("moved", os.path.abspath("folder")),
        lambda view: write(view, "moved/a"),
    ],
    "a file that rank 0 has saved": [
        lambda view: write(view, "folder/a"),
        lambda view: view.show_file(os.path.abspath("folder/a")),
    ],
    "a new file in a folder where another process may write": [
        lambda view: view.make_folder(os.path.abspath("moved")),
        lambda view: view.stop_caching(os.path.abspath("moved")),
        lambda view: open(f"{view.root}{os.path.abspath('moved')}/a", "w").close(),
    ],
}


@pytest.mark.parametrize("kind", CHANGES)
def test_places_of_the_cache_are_right_after(kind, view):
    check_places(view)
    for change in CHANGES[kind]:
        change(view)
        check_places(view)
        check_places(view)  # now from the cache


def test_an_unchanged_folder_is_known_to_equal_the_disk(view):
    assert view.known.is_untouched("folder") and view.known.is_untouched(".")
    write(view, "folder/deep/b")
    assert not any(map(view.known.is_untouched, (".", "folder", "folder/deep")))


def test_a_removal_takes_as_long_after_many_others(view):
    def remove_files(start):
        begun = time.perf_counter()
        for number in range(start, start + 200):
            view.hidden[os.path.abspath(f"gone/{number}")] = True
            write(view, "folder/b")
            view.remove_file(os.path.abspath("folder/b"))
        return time.perf_counter() - begun

    first = remove_files(0)
    view.hidden |= {os.path.abspath(f"gone/{number}"): True for number in range(100_000)}
    assert remove_files(100_000) < 5 * first + 1


def test_threads_that_remove_files_at_the_same_time_lose_no_removal(view):
    names = [os.path.abspath(f"folder/{thread}-{number}") for thread in range(4) for number in range(100)]
    for name in names:
        open(name, "w").close()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda start: [view._hide_key(name) for name in names[start::4]], range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert not any(map(view.exists, names))


def test_a_moved_link_is_not_followed(view, monkeypatch):
    monkeypatch.setattr(os, "walk", None)
    view.add_link(os.path.abspath("folder"), os.path.abspath("link"))
    view.move_file("link", "moved")
    assert os.path.islink(view.locate(os.path.abspath("moved")))


def test_a_link_that_rank_0_has_replaced_leads_to_its_new_folder_after_the_next_collective(view, monkeypatch):
    number = 0
    monkeypatch.setattr(journal_reader, "count_collectives", lambda: number)
    monkeypatch.setattr(world, "is_active", lambda: True)
    os.symlink("folder", "link")
    write(view, "folder/a")
    journal.Journal(journal_reader.Notes(view.notes.folder)).write_note(os.path.abspath("link"), removed=True)
    os.remove("link")
    os.mkdir("other")
    os.symlink("other", "link")
    for _ in range(2):  # the second answer comes from the cache
        assert view.known.find_place("link/a") == view.locate_upper(os.path.abspath("folder/a"))
    number = 1
    assert not view.notes.has_news()
    assert view.known.find_place("link/a") == "link/a"


def test_a_mirror_s_link_to_the_disk_is_no_loop(view, tmp_path):
    """In a mirror, which commands get, a folder of the disk that is not copied is a link to itself on the disk."""
    folder = tmp_path / "large"
    folder.mkdir()
    mirrored = Path(view.locate_upper(str(folder)))
    mirrored.parent.mkdir(parents=True)
    mirrored.symlink_to(folder)
    view.mark_changed(str(folder))
    view._has_links = True
    assert view.find_key(folder / "file") == str(folder / "file")
    own_loop = tmp_path / "loop"
    Path(view.locate_upper(str(own_loop))).symlink_to(own_loop)
    with pytest.raises(OSError, match="symbolic links"):
        view.find_key(own_loop)
