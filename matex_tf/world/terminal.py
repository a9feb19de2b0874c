"""The launcher's standard output and error streams, and the output of silent ranks: discarded, logged or stored.

All ranks but rank 0 are silent (`redirect_output`), because every rank runs the same script and would print the same.
With MATEX_ELASTIC, ranks agree after each action, such as a step, that all have completed it. If rank 0 is lost, the
text that it had not printed yet would be missing. So a silent rank stores its text since the last agreement, and prints
it if it replaces rank 0.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any, TextIO

_OUTPUT, _ERRORS = 1, 2  # descriptors

_C = ctypes.PyDLL(None)
_C_STREAMS = [ctypes.c_void_p.in_dll(_C, name) for name in ("stdout", "stderr")]

_launcher_errors: TextIO | None = None
_launcher_output = _OUTPUT  # the descriptor of the output stream


@dataclass
class _Text:
    """The stored text of a descriptor: the contents of `file` from `begin` on. A log also has the text before."""

    file: int  # a descriptor
    begin: int  # in bytes
    is_log: bool
    repeated: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end of sections of a log that failed attempts have written. The next attempt writes this text again."""


_texts: dict[int, _Text] = {}
"""The stored text, keyed by the descriptor that writes it. A log, which receives both streams, is one entry, `_OUTPUT`.
"""
_is_silent = False  # see `is_silent`


def duplicate_streams() -> TextIO:
    """Duplicate the launcher's output and error streams, before they may be redirected. Returns the error stream."""
    global _launcher_errors, _launcher_output
    _launcher_output = os.dup(_OUTPUT)
    _launcher_errors = os.fdopen(os.dup(_ERRORS), "w", buffering=1)
    return _launcher_errors


def write_text(text: str) -> None:
    """Write `text` to the launcher's error stream, on any rank."""
    stream = _launcher_errors or sys.stderr
    stream.write(text)
    stream.flush()


def get_descriptor() -> int:
    """The descriptor of the launcher's error stream, on any rank."""
    return _ERRORS if _launcher_errors is None else _launcher_errors.fileno()


def redirect_output(log: int | None, stores: bool) -> None:
    """Make this rank silent. File descriptors are redirected, so that C++ code and child processes are silent, too.

    Args:
        log: the descriptor of the file that receives the output; None: the output is discarded.
        stores: whether to store the text until all ranks have agreed.
    """
    global _is_silent
    _is_silent = True
    flush_text()
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (_OUTPUT, _ERRORS):
        if log is not None:
            os.dup2(log, stream)
        elif stores:
            with tempfile.TemporaryFile(buffering=0) as storage:
                os.dup2(storage.fileno(), stream)
        else:
            os.dup2(null, stream)
        if stores and (log is None or stream == _OUTPUT):
            file = os.dup(stream)
            # After stored text was dropped and the file truncated, the next text follows the new end of the file.
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
            _texts[stream] = _Text(file, begin=os.fstat(file).st_size, is_log=log is not None)
    os.close(null)


def is_silent() -> bool:
    """Whether a person at the launcher's terminal does not see what this rank prints."""
    return _is_silent


def stores_text() -> bool:
    """Whether this rank is silent and may have to print its stored text."""
    return bool(_texts)


def is_open(file: Any) -> bool:
    """Whether `file` can be written: it is not closed, and its buffer is not detached."""
    try:
        return not getattr(file, "closed", False)
    except ValueError:  # Python's error for a detached buffer
        return False


def flush_text() -> None:
    """Flush the buffers of Python and C."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None and hasattr(stream, "flush") and is_open(stream):
            stream.flush()
    for file in _C_STREAMS:
        _C.fflush(file)


def measure_text() -> dict[int, int]:
    """The present length of the stored text. `elastic` calls this before an attempt, and `forget_after` if it fails."""
    flush_text()
    return {stream: os.fstat(text.file).st_size for stream, text in _texts.items()}


def forget_after(lengths: dict[int, int]) -> None:
    """Drop the text since `measure_text` returned `lengths`: it is about to be printed again. A log keeps it."""
    flush_text()
    for stream, text in _texts.items():
        if text.is_log:
            text.repeated.append((lengths[stream], os.fstat(text.file).st_size))
        else:
            os.ftruncate(text.file, lengths[stream])


def forget_text() -> None:
    """Drop the stored text: all ranks have agreed since it was flushed, so rank 0 has printed it."""
    for text in _texts.values():
        if text.is_log:
            text.begin = os.fstat(text.file).st_size
            text.repeated.clear()
        elif os.fstat(text.file).st_size:
            os.ftruncate(text.file, 0)


def print_text() -> None:
    """On a rank that becomes rank 0: print the stored text, and send all further output to the launcher's streams."""
    global _is_silent
    _is_silent = False
    flush_text()
    launcher_streams = {_OUTPUT: _launcher_output, _ERRORS: get_descriptor()}
    for stream, text in _texts.items():
        text_path, launcher_stream = f"/proc/self/fd/{text.file}", launcher_streams[stream]
        with open(text_path, "rb") as text_file, open(launcher_stream, "wb", closefd=False) as launcher_file:
            begin = text.begin
            for end, next_begin in [*text.repeated, (os.fstat(text.file).st_size, 0)]:
                text_file.seek(begin)
                launcher_file.write(text_file.read(end - begin))
                begin = next_begin
        for descriptor in _list_descriptors(text.file):
            # A copy that the script has made of the descriptor gets the stream whose text the file has stored.
            target_stream = launcher_streams[descriptor if descriptor in launcher_streams else stream]
            os.dup2(target_stream, descriptor, inheritable=os.get_inheritable(descriptor))
    _texts.clear()


def list_stored_files() -> list[os.stat_result]:
    """The states of the files with stored text."""
    return [os.fstat(text.file) for text in _texts.values()]


def _list_descriptors(file: int) -> list[int]:
    """The descriptors of this process for the same file as `file`; the script may have made copies."""
    descriptors = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.path.samestat(os.fstat(descriptor), os.fstat(file)):
                descriptors.append(descriptor)
        except OSError:  # the descriptor of the listing itself, which is closed by now
            continue
    return descriptors
