"""A fake compiler, so that tests of the build need not compile TensorFlow's headers; and files of other users."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from matex_tf import settings
from matex_tf.ops import compiler, trust

SCRIPT = """#!/bin/sh
if [ "$1" = -show ]; then exec {real} -show; fi
cat > /dev/null
echo called >> {folder}/calls
sleep {seconds} & echo $! > {folder}/child
wait
if [ -n "{complaint}" ]; then echo "{complaint}" >&2; exit 1; fi
for last; do :; done  # the output's name comes last
head -c 5000 /dev/zero > "$last"
"""


class FakeCompiler:
    """An mpicxx that writes its output file after `seconds`, or fails with message `complaint`; counts its calls."""

    def __init__(self, folder: Path, seconds: float = 0, complaint: str = ""):
        self.folder = folder
        self.path = folder / "mpicxx"
        self._real, self._complaint = compiler.find_compiler().path, complaint
        self.set_seconds(seconds)

    def set_seconds(self, seconds: float) -> None:
        """Set the duration of calls that begin from now on."""
        text = SCRIPT.format(real=self._real, folder=self.folder, seconds=seconds, complaint=self._complaint)
        made = self.path.with_suffix(".new")
        made.write_text(text)
        made.chmod(made.stat().st_mode | stat.S_IXUSR)
        made.replace(self.path)

    @property
    def calls(self) -> int:
        log = self.folder / "calls"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new cache folder, which MATEX_CACHE_DIR names."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MATEX_CACHE_DIR", str(folder))
    monkeypatch.setattr(settings, "_current", None)
    return folder


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that makes a `FakeCompiler` and sets MPICXX to it."""
    monkeypatch.delenv("MPICXX", raising=False)

    def make(seconds: float = 0, complaint: str = "") -> FakeCompiler:
        monkeypatch.delenv("MPICXX", raising=False)
        made = FakeCompiler(tmp_path, seconds, complaint)
        monkeypatch.setenv("MPICXX", str(made.path))
        return made

    return make


STRANGER = 65533
"""The number of a user who is not trusted."""


@pytest.fixture
def give_to_a_stranger(monkeypatch: pytest.MonkeyPatch):
    """A function that changes the owner of a path; without the right to do so, it changes the results of os.lstat."""
    given: dict[str, int] = {}
    real = os.lstat

    def lstat(path) -> os.stat_result:
        state = real(path)
        owner = given.get(os.fspath(path), state.st_uid)
        return os.stat_result((*state[:4], owner, *state[5:10]))

    def give(path: Path, owner: int = STRANGER) -> None:
        if os.geteuid() == 0:
            os.chown(path, owner, -1, follow_symlinks=False)
        else:
            given[os.fspath(path)] = owner
            monkeypatch.setattr(trust.os, "lstat", lstat)

    return give


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any MPI compiler."""
    monkeypatch.delenv("MPICXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
