"""What `matex info` says of the ops is what a run meets."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from matex_command import matex

from matex_tf import settings
from matex_tf.errors import BuildError
from matex_tf.launch import built_ops
from matex_tf.ops import build, compiler


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MATEX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MATEX_OPS_DIR", raising=False)
    monkeypatch.setattr(settings, "_current", None)
    return tmp_path / "cache"


def test_a_machine_that_can_build_them(cache):
    state = built_ops.describe_build()
    assert state["built"].startswith("no") and state["compiler"] == compiler.find_compiler().path


WRAPPER = '#!/bin/sh\n[ "$1" = -show ] && exec {real} -show\n{does}\n'


@pytest.mark.parametrize(
    "does",
    [
        "echo 'The Open MPI wrapper compiler was unable to find the specified compiler g++ in your PATH.' >&2; exit 1",
        "echo 'fatal error: mpi.h: No such file or directory' >&2; exit 1",
        "exit 3",
    ],
)
def test_a_compiler_that_compiles_nothing_is_what_a_run_would_meet(cache, tmp_path, monkeypatch, does):
    real = compiler.find_compiler().path
    (tmp_path / "mpicxx").write_text(WRAPPER.format(real=real, does=does))
    (tmp_path / "mpicxx").chmod(0o755)
    monkeypatch.setenv("MPICXX", str(tmp_path / "mpicxx"))
    texts = []
    for ask in (built_ops.describe_build, build.build_ops):
        with pytest.raises(BuildError) as caught:
            ask()
        texts.append(str(caught.value))
    for text in texts:
        assert "mpicxx failed" in text and "C++17" in text and "apt install g++" in text
        assert "'" not in does or does.split("'")[1] in text


def test_without_a_c_compiler_behind_mpicxx(cache, tmp_path, monkeypatch):
    """As where MPI comes from pip, on a machine of which nobody has asked for a compiler."""
    found = compiler.find_compiler().path
    kept = tmp_path / "bin"
    kept.mkdir()
    (kept / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    monkeypatch.setenv("MPICXX", found)
    monkeypatch.setenv("PATH", str(kept))
    for variable in ("OMPI_CXX", "MPICH_CXX"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(BuildError, match="cannot be built.*mpicxx failed"):
        built_ops.describe_build()


def test_a_place_to_keep_them_that_cannot_be_written(tmp_path, monkeypatch, cache):
    cache.write_text("")
    with pytest.raises(BuildError, match="MATEX_CACHE_DIR=.*cannot be made or written to"):
        built_ops.describe_build()


def test_what_is_built_is_asked_for_no_compiler(cache, monkeypatch):
    plans = [build.make_engine_plan(), build.make_plan()]
    monkeypatch.setattr(build, "find_library", lambda plan: cache / plan.library if plan in plans else None)
    monkeypatch.setenv("MPICXX", "no-such-mpicxx")
    state = built_ops.describe_build()
    assert state["built"] == f"yes, {cache / plans[1].library}" and "compiler" not in state
    assert "no-such-mpicxx" in state["XLA kernels"] and os.sep not in state["TensorFlow"]


def test_a_tensorflow_that_is_too_old_is_told_in_one_line(cache, monkeypatch):
    monkeypatch.setattr("tensorflow.version.VERSION", "2.14.1")
    for ask in (built_ops.describe_build, build.make_plan):
        with pytest.raises(
            BuildError, match="expected TensorFlow 2.15 or newer; found 2.14.1, in .*tensorflow.*pip install"
        ):
            ask()


def test_build_prints_where_the_ops_are():
    result = matex("build", timeout=300).check()
    assert os.path.isfile(result.stdout.strip().splitlines()[-1])
