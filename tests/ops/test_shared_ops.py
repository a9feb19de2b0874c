"""Ops that are built for all users: found without a compiler, read only, and refused where a stranger could write."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from matex_tf import settings
from matex_tf.errors import BuildError
from matex_tf.launch import built_ops
from matex_tf.ops import build
from matex_tf.ops import cache as caches


@pytest.fixture
def shared(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that every run looks into, which is not there yet."""
    folder = tmp_path / "site" / "matex_tf.libs"
    monkeypatch.setattr(caches, "name_usual_folder", lambda: folder)
    monkeypatch.delenv("MATEX_OPS_DIR", raising=False)
    return folder


def build_into(*words: str) -> str:
    """What `matex build --into` says, at a mask that shows others nothing."""
    before = os.umask(0o077)
    try:
        made = CliRunner().invoke(built_ops.build_ops, ["--into", *words], standalone_mode=False)
    finally:
        os.umask(before)
    assert made.return_value == 0, made.output
    return made.output


@pytest.mark.parametrize("way", ["usual", "setting"])
def test_they_are_found_without_a_compiler_and_nothing_is_written(
    shared, cache, tmp_path, fake_compiler, request, monkeypatch, way
):
    compiler = fake_compiler()
    if way == "usual":
        said, folder = build_into(), shared
    else:
        folder = tmp_path / "some" / "where"
        said = build_into(str(folder))
        assert f"MATEX_OPS_DIR={folder}" in said
        monkeypatch.setenv("MATEX_OPS_DIR", str(folder))
        monkeypatch.setattr(settings, "_current", None)
    assert compiler.calls == 2 and f"{folder / build.make_plan().library}\n" in said
    kept = [path for path in folder.iterdir() if path.suffix in (".so", ".json")]
    assert len(kept) == 4 and all(path.stat().st_mode & 0o444 == 0o444 for path in kept), "others can read"
    assert all(path.stat().st_mode & 0o055 == 0o055 for path in (folder, folder.parent))
    request.getfixturevalue("no_compiler")
    folder.chmod(0o555)
    assert build.build_ops().parent == folder == build.ensure_library(build.make_engine_plan()).parent
    assert not cache.exists()
    folder.chmod(0o755)


def test_what_they_lack_each_user_builds(shared, cache, fake_compiler, monkeypatch):
    import tensorflow as tf

    compiler = fake_compiler()
    build_into()
    monkeypatch.setattr(tf.version, "VERSION", "2.99.0")
    assert build.build_ops().parent == cache
    assert compiler.calls == 3, "the engine is there, and the ops are built over it"
    assert f"-L{shared}" in (cache / f"{build.make_plan().key}.json").read_text()


def test_a_folder_that_is_told_has_all_of_them(shared, cache, tmp_path, fake_compiler):
    """Also what is built elsewhere already: others see that folder alone."""
    compiler = fake_compiler()
    build.build_ops()
    build_into(str(tmp_path / "told"))
    assert compiler.calls == 4 and len(list((tmp_path / "told").glob("*.so"))) == 2
    build_into(str(tmp_path / "told"))
    assert compiler.calls == 4


@pytest.mark.parametrize("what", ["folder", "library", "record"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_a_stranger_who_could_have_written_them_is_named(shared, cache, fake_compiler, give_to_a_stranger, what, how):
    fake_compiler()
    build_into()
    plan = build.make_engine_plan()
    path = {"folder": shared, "library": shared / plan.library, "record": shared / f"{plan.key}.json"}[what]
    if how == "owner":
        give_to_a_stranger(path)
    else:
        path.chmod(0o666)
    with pytest.raises(BuildError, match=f"can change {path} .owner: .*mode .*MATEX_OPS_DIR") as caught:
        build.build_ops()
    assert ("user 65533" if how == "owner" else "-w") in str(caught.value)


def test_a_folder_that_is_named_and_not_there_is_an_error(shared, cache, tmp_path, fake_compiler, monkeypatch):
    fake_compiler()
    monkeypatch.setenv("MATEX_OPS_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(settings, "_current", None)
    with pytest.raises(BuildError, match="MATEX_OPS_DIR=.*nowhere: there is no such folder.*matex build --into"):
        build.build_ops()


def test_a_build_that_others_would_refuse_says_so(shared, cache, fake_compiler, monkeypatch, give_to_a_stranger):
    fake_compiler()
    shared.mkdir(parents=True)
    give_to_a_stranger(shared)
    monkeypatch.setattr(os, "getuid", lambda: 65533)
    assert "other users will not load what is built there: user 65533 can change" in build_into()


def test_what_is_built_in_a_home_that_is_read_only_now_is_used(cache, fake_compiler, monkeypatch):
    fake_compiler()
    path = build.build_ops()
    monkeypatch.setattr(caches, "ensure_folder", lambda folder: False)
    assert build.build_ops() == path


def test_ops_and_kernels_use_the_engine_that_is_loaded_from_whichever_folder(shared, cache, tmp_path, monkeypatch):
    """Never a second one, though another lies beside them: it would know nothing of the ranks."""
    source = tmp_path / "src"
    for room, text in {
        "engine": 'extern "C" int count() { static int counted = 0; return ++counted; }',
        "tensorflow": 'extern "C" int count(); extern "C" int count_twice() { count(); return count(); }',
    }.items():
        (source / room).mkdir(parents=True)
        (source / room / "code.cc").write_text(text)
    monkeypatch.setattr(build, "SOURCE", source)
    engine = build.make_engine_plan()
    caches.make_shared_folder(shared)
    first = ctypes.CDLL(str(build.ensure_library(engine, into=shared)))
    path = build.build_ops()
    assert path.parent == cache
    shutil.copy(shared / engine.library, cache)
    ops = ctypes.CDLL(str(path))
    assert [first.count(), ops.count_twice(), first.count()] == [1, 3, 4]


OTHERS = {
    "TensorFlow": lambda patch: patch.setattr("tensorflow.version.VERSION", "2.99.0"),
    "MPI": lambda patch: patch.setattr(build.compilers, "describe_loaded_mpi", lambda: "Other MPI v1.2.3"),
    "machine": lambda patch: patch.setattr(build.platform, "machine", lambda: "other64"),
    "matex_tf": lambda patch: patch.setattr(build, "hash_sources", lambda: "0123456789"),
}


@pytest.mark.parametrize("changed", OTHERS)
@pytest.mark.parametrize("builds", [True, False])
def test_ops_for_others_are_told_in_one_line(
    shared, cache, fake_compiler, request, monkeypatch, capfd, changed, builds
):
    """Before anything is built in the user's own folder, and where it cannot be built; never silently."""
    fake_compiler()
    before = build.make_plan().facts
    build_into()
    capfd.readouterr()
    OTHERS[changed](monkeypatch)
    expected = build.make_plan().facts
    if builds and changed == "TensorFlow":
        assert str(shared) in built_ops.describe_build()["for all users"]
    if builds:
        monkeypatch.setattr(build, "find_compiler", lambda: build.compilers.Compiler(os.environ["MPICXX"], ""))
        assert build.build_ops().parent == cache
        said = capfd.readouterr().err
    else:
        Path(os.environ["MPICXX"]).unlink()
        request.getfixturevalue("no_compiler")
        texts = []
        for ask in (built_ops.describe_build, build.build_ops):
            with pytest.raises(BuildError) as caught:
                ask()
            texts.append(str(caught.value).partition(". Here ")[0])
        said = texts[1]
        assert texts[0] == said and str(shared) not in capfd.readouterr().err, "the error tells it"
    lines = [line for line in said.splitlines() if f"{shared}: expected the " in line]
    assert len(lines) == (1 if changed == "TensorFlow" or not builds else 2), said
    for line in lines:
        short = build.compilers.shorten_version
        for facts in (expected, before):
            assert (short(facts[changed]) if changed == "MPI" else facts[changed]) in line
        assert f"matex build --into {shared}" in line


def test_two_mpis_of_one_number_are_told_apart(shared, cache, fake_compiler, monkeypatch):
    fake_compiler()
    mpi = build.compilers.describe_loaded_mpi()
    build_into()
    monkeypatch.setattr(build.compilers, "describe_loaded_mpi", lambda: mpi.replace("package: ", "package: another "))
    said = build.describe_others(build.make_plan())
    assert "package: another " in said and mpi in said
