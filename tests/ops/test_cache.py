"""What is kept in the cache is loaded as code: it is the user's, and nobody else could have written it."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from matex_tf import settings
from matex_tf.errors import BuildError
from matex_tf.ops import build
from matex_tf.ops import cache as caches


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty, with the folder for temporary files beside it and no MATEX_CACHE_DIR."""
    monkeypatch.delenv("MATEX_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(caches, "_announced", set())
    monkeypatch.setattr(settings, "_current", None)
    return tmp_path / "home" / "matex_tf"


def test_a_new_cache_is_the_users_alone(home, fake_compiler):
    fake_compiler()
    old = os.umask(0)
    try:
        library = build.build_ops()
    finally:
        os.umask(old)
    assert library.parent == home and home.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o022 == 0 for path in home.iterdir())


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_chosen_cache_that_others_can_write_to_is_refused(cache, fake_compiler, mode):
    compiler = fake_compiler()
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(BuildError, match=f"loaded as code.* can change .*owner: .*mode {mode:o}.*`chmod .-w "):
        build.build_ops()
    assert compiler.calls == 0
    cache.chmod(0o755)
    assert build.build_ops().parent == cache


def test_a_usual_cache_that_others_can_write_to_is_left_and_that_is_said_once(home, tmp_path, fake_compiler, capfd):
    fake_compiler()
    home.mkdir(parents=True)
    home.chmod(0o777)
    assert build.build_ops().parent == tmp_path / f"matex_tf-{os.getuid()}" == caches.find_cache_folder()
    assert capfd.readouterr().err.count("can change") == 1
    (tmp_path / f"matex_tf-{os.getuid()}").chmod(0o777)
    with pytest.raises(BuildError, match="can change .*can change .*MATEX_CACHE_DIR"):
        build.build_ops()


def test_without_a_home_no_folder_is_made_where_the_script_runs(home, tmp_path, fake_compiler, monkeypatch):
    fake_compiler()
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # raises KeyError, as it does of an unknown user
    monkeypatch.chdir(tmp_path)
    assert build.build_ops().parent == tmp_path / f"matex_tf-{os.getuid()}"
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("which", ["library", "record"])
def test_what_others_could_have_written_is_built_anew(cache, fake_compiler, which):
    compiler = fake_compiler()
    library = build.build_ops()
    path = library if which == "library" else library.with_suffix(".json")
    path.chmod(0o666)
    assert build.build_ops() == library and compiler.calls == 3
    assert path.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("there", [False, True])
def test_a_lock_that_is_a_link_is_refused_and_leads_nowhere(cache, tmp_path, fake_compiler, there):
    fake_compiler()
    cache.mkdir(mode=0o700)
    target = tmp_path / "precious"
    if there:
        target.write_text("content")
    (cache / f"{build.make_plan().key}.lock").symlink_to(target)
    with pytest.raises(BuildError, match=r"\.lock: expected a lock file of your own.*Remove it"):
        build.build_ops()
    assert target.exists() == there and (not there or target.read_text() == "content")
