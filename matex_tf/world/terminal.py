"""What the launcher's user reads: standard output and errors as the launcher gave them, and the text of silent ranks.

With MATEX_ELASTIC a silent rank keeps its text since the last agreement of all ranks (`redirect_output`).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
import tempfile
from dataclasses import dataclass
from typing import Any, TextIO

_OUTPUT, _ERRORS = 1, 2  # descriptors

_C = ctypes.PyDLL(None)
_C_STREAMS = [ctypes.c_void_p.in_dll(_C, name) for name in ("stdout", "stderr")]

_kept: TextIO | None = None
_output = _OUTPUT  # as the launcher gave it


@dataclass
class _Text:
    """The text of a descriptor: what stands in `file` from `begin` on; a log keeps what was printed."""

    file: int
    begin: int
    is_log: bool


_texts: dict[int, _Text] = {}


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


def redirect_output(log: int | None, keeps: bool) -> None:
    """Print from here on to the file `log`, or to nowhere; `keeps`: the text is kept until all ranks have agreed.

    Each rank hands on what it has printed before it agrees to have done something. So all that the first printed up to
    the last agreement is out, and who takes its place prints what came since.

    At the descriptors, so that C++ code and children are silent, too.
    """
    flush_text()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (_OUTPUT, _ERRORS):
        if log is not None:
            os.dup2(log, stream)
        elif keeps:
            with tempfile.TemporaryFile(buffering=0) as made:
                os.dup2(made.fileno(), stream)
        else:
            os.dup2(nowhere, stream)
        if keeps and (log is None or stream == _OUTPUT):  # a log has both, in the order in which they came
            file = os.dup(stream)
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
            _texts[stream] = _Text(file, os.fstat(file).st_size, log is not None)
    os.close(nowhere)


def keeps_text() -> bool:
    """Whether this rank is silent and may have to print what it keeps."""
    return bool(_texts)


def is_open(file: Any) -> bool:
    """Whether what is printed or written to `file` comes to it: it is not closed, nor is its buffer detached."""
    try:
        return not getattr(file, "closed", False)
    except ValueError:  # so Python says that its buffer is detached
        return False


def flush_text() -> None:
    """Hand on what was printed and is in a buffer of Python or C yet."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None and hasattr(stream, "flush") and is_open(stream):
            stream.flush()
    for file in _C_STREAMS:
        _C.fflush(file)


def measure_text() -> dict[int, int]:
    """How much text is kept by now, for `forget_after`."""
    flush_text()
    return {stream: os.fstat(text.file).st_size for stream, text in _texts.items()}


def forget_after(lengths: dict[int, int]) -> None:
    """Forget what was printed since `measure_text` gave `lengths`: it is about to be printed once more."""
    flush_text()
    for stream, text in _texts.items():
        if not text.is_log:
            os.ftruncate(text.file, lengths[stream])


def forget_text() -> None:
    """Forget what is kept: all ranks have agreed since it was handed on, so that the first has printed it."""
    for text in _texts.values():
        if text.is_log:
            text.begin = os.fstat(text.file).st_size
        elif os.fstat(text.file).st_size:
            os.ftruncate(text.file, 0)


def print_text() -> None:
    """Print what is kept, and whatever goes to output and errors from here on."""
    flush_text()
    real = {_OUTPUT: _output, _ERRORS: get_descriptor()}
    for stream, text in _texts.items():
        with open(f"/proc/self/fd/{text.file}", "rb", buffering=0) as file:
            file.seek(text.begin)
            while piece := file.read(1 << 16):
                _write_whole(real[stream], piece)
        for descriptor in _list_descriptors(text.file):
            goes_to = real[descriptor if descriptor in real else stream]
            os.dup2(goes_to, descriptor, inheritable=os.get_inheritable(descriptor))
    _texts.clear()


def list_kept_files() -> list[os.stat_result]:
    """The states of the files in which text is kept."""
    return [os.fstat(text.file) for text in _texts.values()]


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
