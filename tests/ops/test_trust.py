"""Files loaded as code: only root, the user and the installer of matex_tf could have changed them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from matex_tf.ops import cache as caches
from matex_tf.ops import trust


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file in a folder of a folder."""
    path = tmp_path / "above" / "folder" / "library.so"
    path.parent.mkdir(parents=True)
    path.write_text("")
    for each in (path.parent.parent, path.parent):
        each.chmod(0o755)
    path.chmod(0o644)
    return path


WAY = ["above", "above/folder", "above/folder/library.so"]


def test_what_is_the_users_own_is_trusted(library):
    assert trust.find_exposure(library) == ""
    library.chmod(0o400)
    library.parent.chmod(0o500)
    assert trust.find_exposure(library) == "", "read-only is fine"
    library.parent.chmod(0o755)


@pytest.mark.parametrize("place", WAY)
def test_anything_on_the_way_that_a_stranger_owns_is_refused(library, tmp_path, give_to_a_stranger, place):
    give_to_a_stranger(tmp_path / place)
    assert f"user 65533 can change {tmp_path / place} (owner: user 65533, mode" in trust.find_exposure(library)


@pytest.mark.parametrize("place", WAY)
@pytest.mark.parametrize(("mode", "who"), [(0o775, "group"), (0o757, "everybody"), (0o777, "group")])
def test_anything_on_the_way_that_others_can_write_is_refused(library, tmp_path, place, mode, who):
    (tmp_path / place).chmod(mode)
    found = trust.find_exposure(library)
    assert who in found and f"can change {tmp_path / place} " in found and f"mode {mode:o}" in found
    assert f"-w {tmp_path / place}` ends that" in found


def test_in_a_sticky_folder_above_an_entry_is_its_owners(library):
    library.parent.parent.chmod(0o1777)
    assert trust.find_exposure(library) == "" == trust.find_exposure(library.parent)
    assert trust.find_exposure(library.parent.parent), "but everybody could put one there"


@pytest.mark.parametrize("whose", ["mode", "owner"])
def test_links_are_followed_and_count(library, tmp_path, give_to_a_stranger, whose):
    """Those of a stranger, and those to where a stranger can write."""
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "inner").symlink_to("../above/folder")
    (tmp_path / "link").symlink_to(aside)
    path = tmp_path / "link" / "inner" / "library.so"
    assert trust.find_exposure(path) == ""
    if whose == "mode":
        aside.chmod(0o777)
    else:
        give_to_a_stranger(aside / "inner")
    assert f"can change {aside if whose == 'mode' else aside / 'inner'} " in trust.find_exposure(path)


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError):
        trust.find_exposure(tmp_path / "circle")


def test_who_can_change_the_package_is_trusted(library, tmp_path, monkeypatch, give_to_a_stranger):
    """An installer who is another user, and the group of those who install."""
    package = tmp_path / "site" / "matex_tf"
    package.mkdir(parents=True)
    monkeypatch.setattr(trust, "find_package", lambda: package)
    give_to_a_stranger(library)
    library.parent.chmod(0o775)
    assert trust.find_exposure(library)
    give_to_a_stranger(package)
    assert "group" in trust.find_exposure(library)
    package.parent.chmod(0o775)
    assert trust.find_exposure(library) == ""


def test_what_this_user_has_built_others_need_not_trust(library, monkeypatch, give_to_a_stranger):
    give_to_a_stranger(library)
    monkeypatch.setattr(os, "getuid", lambda: 65533)
    assert trust.find_exposure(library) == ""
    assert "user 65533 can change" in trust.find_exposure(library, by_others=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_users_trust_root_and_not_each_other():
    """As the system has it, which the other tests only say."""
    anna, berta = 65531, 65532

    def ask(user: int, path: Path) -> str:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                os.write(writer, trust.find_exposure(path).encode() or b"trusted")
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            os.waitpid(child, 0)
            return answer.read()

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # others may not look into the folder of the tests
        library = Path(folder, "library.so")
        library.touch(0o444)
        os.chmod(folder, 0o755)
        assert ask(anna, library) == ask(berta, library) == "trusted"
        os.chown(library, anna, anna)
        assert ask(anna, library) == "trusted"
        assert f"user {anna} can change {library}" in ask(berta, library)
        assert f"user {anna} can change {library}" in trust.find_exposure(library), "neither does root"


def test_the_usual_folder_lies_beside_the_package():
    assert caches.name_usual_folder().parent == trust.find_package().resolve().parent
