"""What the launcher's user reads: standard output and error as the launcher gave them, and the text of silent ranks.

A silent rank prints to files. With MATEX_ELASTIC its text is held there until all ranks have agreed on what they did.
Each hands on what it printed before it agrees, so that of the first rank all is out up to the last agreement. What was
printed since then is printed by the rank that is the first after a loss.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
import tempfile
from dataclasses import dataclass
from typing import TextIO

_OUTPUT, _ERRORS = 1, 2  # descriptors

_kept: TextIO | None = None
_output = _OUTPUT  # as the launcher gave it


@dataclass
class _Held:
    """The text of a descriptor: what stands in `file` from `begin` on; a log keeps what was printed."""

    file: int
    begin: int
    is_log: bool


_held: dict[int, _Held] = {}


def keep_streams() -> TextIO:
    """Keep output and errors as the launcher gave them, before they may be redirected; gives that of errors."""
    global _kept, _output
    _output = os.dup(_OUTPUT)
    _kept = os.fdopen(os.dup(_ERRORS), "w", buffering=1)
    return _kept


def write_text(text: str) -> None:
    """Write `text` where the launcher's user reads it, on any rank."""
    stream = _kept or sys.stderr
    stream.write(text)
    stream.flush()


def get_descriptor() -> int:
    """The descriptor of what the launcher's user reads, on any rank."""
    return _ERRORS if _kept is None else _kept.fileno()


def silence_rank(log: int | None, holds: bool) -> None:
    """Print from here on to the file `log`, or to nowhere; with `holds` the text is held.

    At the descriptors, so that C++ code and children are silent, too.
    """
    flush_text()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (_OUTPUT, _ERRORS):
        if log is not None:
            os.dup2(log, stream)
        elif holds:
            with tempfile.TemporaryFile(buffering=0) as file:
                os.dup2(file.fileno(), stream)
        else:
            os.dup2(nowhere, stream)
        if holds and (log is None or stream == _OUTPUT):  # a log has both, in the order in which they came
            file = os.dup(stream)
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
            _held[stream] = _Held(file, os.fstat(file).st_size, log is not None)
    os.close(nowhere)


def holds_text() -> bool:
    """Whether this rank is silent and may have to print what it holds."""
    return bool(_held)


def flush_text() -> None:
    """Hand on what was printed and is in a buffer of Python or C yet."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    library = ctypes.PyDLL(None)
    for name in ("stdout", "stderr"):
        library.fflush(ctypes.c_void_p.in_dll(library, name))


def measure_text() -> dict[int, int]:
    """How much text is held by now, for `forget_after`."""
    flush_text()
    return {stream: os.fstat(held.file).st_size for stream, held in _held.items()}


def forget_after(lengths: dict[int, int]) -> None:
    """Forget what was printed since `measure_text` gave `lengths`: it is about to be printed once more."""
    flush_text()
    for stream, held in _held.items():
        if not held.is_log:
            os.ftruncate(held.file, lengths[stream])


def forget_text() -> None:
    """Forget what is held: all ranks have agreed since it was handed on, so that the first has printed it."""
    for held in _held.values():
        if held.is_log:
            held.begin = os.fstat(held.file).st_size
        elif os.fstat(held.file).st_size:
            os.ftruncate(held.file, 0)


def speak() -> None:
    """Print what is held, and whatever goes to output and errors from here on."""
    flush_text()
    real = {_OUTPUT: _output, _ERRORS: get_descriptor()}
    for stream, held in _held.items():
        with open(f"/proc/self/fd/{held.file}", "rb", buffering=0) as file:
            file.seek(held.begin)
            while piece := file.read(1 << 16):
                _write_whole(real[stream], piece)
        for descriptor in _list_descriptors(held.file):
            goes_to = real[descriptor if descriptor in real else stream]
            os.dup2(goes_to, descriptor, inheritable=os.get_inheritable(descriptor))
    _held.clear()


def list_held_files() -> list[os.stat_result]:
    """The states of the files in which text is held."""
    return [os.fstat(held.file) for held in _held.values()]


def _write_whole(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]


def _list_descriptors(file: int) -> list[int]:
    """The descriptors of this process that are of the same file as `file`; the script may have kept copies."""
    found = []
    for name in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.path.samestat(os.fstat(name), os.fstat(file)):
                found.append(name)
        except OSError:  # of the list itself, which is closed by now
            continue
    return found
