"""`python warm_server.py SOCKET OWNER SPENT` keeps a Python with TensorFlow imported; each program is a fork of it.

It ends with the process OWNER, and a program with the process that asked for it. What each has computed is a line of a
file that the asking process names; what the start has cost is a line of SPENT.

An import of TensorFlow costs each rank seconds. A child has imported what `IMPORTS` names and done nothing else: no
seed, no setting, nothing of matex_tf or MPI. What a program does in its child, no other child sees. The modules of
matex_tf are made, too, and a child finds each where it imports it. MPI's library is mapped, and has done nothing.

Where a program comes to its end, threads are waited for, exit functions called and files flushed, as Python does. What
it does then is left out, unless the environment has TAKEN_APART: to take apart each module that is imported costs as
much as a small program.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

from made_modules import MadeModules

IMPORTS = ("tensorflow", "keras", "h5py", "mpi4py")
NOT_MADE = ("matex_tf.launch", "matex_tf.planner", "matex_tf.tune", "matex_tf.deploy")
"""What no rank imports."""
_SIZE = struct.Struct("!I")
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def receive(connection: socket.socket) -> tuple[dict, list[int]]:
    """A program that is to run, and its files for standard input, output and errors."""
    data, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while len(data) < _SIZE.size or len(data) < _SIZE.size + _SIZE.unpack(data[: _SIZE.size])[0]:
        more = connection.recv(1 << 16)
        if not more:
            raise ConnectionError("the client ended before it had said what to run")
        data += more
    return json.loads(data[_SIZE.size :]), files


def is_there(process: str) -> bool:
    """Whether it has not ended, waited for or not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def note_spent(path: str, seconds: float) -> None:
    """A line for the process whose file `path` is, if it is still there."""
    try:
        with open(path, "a") as file:
            file.write(f"{seconds:.3f}\n")
    except FileNotFoundError:
        pass


def serve(path: str, owner: str) -> dict:
    """Answers clients until `path` or `owner` is gone; comes back in each child, with what it is to run."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path + ".new")
    listening.listen(64)
    os.rename(path + ".new", path)
    woken, waker = socket.socketpair()
    woken.setblocking(False), waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    waiting.register(woken, selectors.EVENT_READ)
    children: dict[int, tuple[socket.socket, dict]] = {}
    while os.path.exists(path) and is_there(owner):
        for child, (_, job) in children.items():
            if not is_there(job["owner"]):
                with contextlib.suppress(ProcessLookupError):  # it has not made its group yet
                    os.killpg(child, signal.SIGKILL)
        for key, _ in waiting.select(5):
            if key.fileobj is listening:
                connection, _ = listening.accept()
                try:
                    job, files = receive(connection)
                except (ConnectionError, OSError):
                    connection.close()
                    continue
                child = os.fork()
                if child == 0:
                    signal.set_wakeup_fd(-1)
                    for number, file in enumerate(files):
                        os.dup2(file, number)
                    for one in (listening, woken, waker, connection, *(other for other, _ in children.values())):
                        one.close()
                    waiting.close()
                    for file in files:
                        os.close(file)
                    return job
                for file in files:
                    os.close(file)
                children[child] = connection, job
                waiting.register(connection, selectors.EVENT_READ, child)
                with contextlib.suppress(OSError):  # the client is gone, of which the selector tells
                    connection.sendall(_SIZE.pack(child))
            elif key.fileobj is woken:
                woken.recv(4096)
                for child in list(children):
                    ended, status, used = os.wait4(child, os.WNOHANG)
                    if ended:
                        _end(waiting, *children.pop(child), status, used)
            elif key.data in children:  # the client was killed: so are its child and what that has started
                os.kill(key.data, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):  # it has not made its group yet
                    os.killpg(key.data, signal.SIGKILL)
                _, status, used = os.wait4(key.data, 0)
                _end(waiting, *children.pop(key.data), status, used)
    raise SystemExit


def _end(
    waiting: selectors.BaseSelector, connection: socket.socket, job: dict, status: int, used: resource.struct_rusage
) -> None:
    note_spent(job["spent"], used.ru_utime + used.ru_stime)
    waiting.unregister(connection)
    try:
        connection.sendall(_SIZE.pack(status))
    except OSError:
        pass  # the client is gone
    connection.close()


def prepare(job: dict, added: dict[str, str]) -> None:
    """Makes the child what a Python of its own would be; `added` to its environment is what the imports added."""
    os.setsid()
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update({**job["environment"], **added})
    tempfile.tempdir = None  # found anew in this environment
    os.chdir(job["folder"])
    me, get_parent = os.getpid(), os.getppid
    os.getppid = lambda: job["client"] if os.getpid() == me else get_parent()  # which passes on what mpirun sends
    sys.argv = job["arguments"]
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # a rank's is a terminal: what it has printed is out
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        # A rank finds by its parent, which is another here, that mpirun's output is no terminal, though its own is.
        sys.stdout.isatty = lambda: False
    import numpy as np

    np.random.seed()


def run_program() -> int:
    """Runs what `sys.argv` names as `python` does; the exit code. An error of the program is raised."""
    try:
        if sys.argv[0] == "-m":
            sys.argv = sys.argv[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, int | None):
            code = end.code or 0
            return code if -(2**63) <= code < 2**63 else -1  # as Python has it
        print(end.code, file=sys.stderr)
        return 1
    return 0


def end_process(code: int) -> None:
    """Ends as Python does, in the same order, but for what it frees."""
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.PyDLL(None).exit(code & 0xFF)


if __name__ == "__main__":
    before = dict(os.environ)
    gc.disable()
    for module in IMPORTS:
        __import__(module)
    for library in Path(sys.prefix, "lib").glob("libmpi.so.*"):
        ctypes.CDLL(str(library), os.RTLD_LAZY)
    sys.meta_path.insert(0, MadeModules("matex_tf", NOT_MADE))
    added = {name: value for name, value in os.environ.items() if name not in before}
    gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen  # it goes through all of them, and each copy of a step asks for it
    gc.enable()
    gc.set_threshold(20_000)  # of what is frozen nothing counts, so that a child would look for garbage all the time
    note_spent(sys.argv[3], time.process_time())
    job = serve(*sys.argv[1:3])
    prepare(job, added)
    code = run_program()
    if "TAKEN_APART" in os.environ:
        sys.exit(code)
    end_process(code)
