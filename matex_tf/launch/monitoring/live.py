"""`matex run --live`: the ranks' output scrolls above the display of the run, which a child process draws.

The ranks write to a pseudo-terminal, from which the child reads. If standard output is no terminal, the output is not
redirected, and a status line goes to standard error every 30 seconds.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from matex_tf.monitor import picture, recording

_PAUSE, _PLAIN_PAUSE = 1.0, 30.0  # seconds between displays, and between status lines
_PATIENCE = 10.0  # seconds that the child may take to end
_PIECE = 1 << 16


@contextlib.contextmanager
def show_picture(folder: str) -> Iterator[None]:
    """Context in which a child displays the run recorded in `folder`."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.isatty(1):
        source, target = pty.openpty()
        tty.setraw(target)
        fcntl.ioctl(target, termios.TIOCSWINSZ, fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))
        replaced = [1, *([2] if os.isatty(2) else [])]
    else:
        source, target = os.pipe()
        replaced = []
    child = subprocess.Popen(
        [sys.executable, "-m", "matex_tf.launch.monitoring.live", folder, str(source)], pass_fds=[source],
        stdin=subprocess.DEVNULL, stdout=None if replaced else 2,
    )  # fmt: skip
    os.close(source)
    before = [os.dup(one) for one in replaced]
    for one in replaced:
        os.dup2(target, one)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for one, kept in zip(replaced, before):
            os.dup2(kept, one)
            os.close(kept)
        os.close(target)
        try:
            child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:  # a process of the run survives and holds the terminal
            child.terminate()
            child.wait()


class Printed:
    """Splits the ranks' output into lines: `feed_bytes` returns complete lines, `rest` is the incomplete last line."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed_bytes(self, piece: bytes) -> list[str]:
        *lines, rest = (self._rest + self._decoder.decode(piece)).split("\n")
        # Keep only the last version of an overwritten line. A carriage return at its end does not erase it yet.
        self._rest = rest[rest.rstrip("\r").rfind("\r") + 1 :]
        return [_strip_overwritten(line) for line in lines]

    @property
    def rest(self) -> str:
        return _strip_overwritten(self._rest)


def _strip_overwritten(line: str) -> str:
    """The line as a terminal shows it: the text after the last carriage return."""
    return line.rstrip("\r").rpartition("\r")[2]


def draw_while(folder: str, source: int, console: Console) -> None:
    """Print the output from `source`, and the display below it, until `source` ends."""
    printed, due = Printed(), 0.0
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            ready = select.select([source], [], [], max(due - time.monotonic(), 0))[0]
            if ready:
                piece = _read_piece(source)
                if not piece:
                    break
                if lines := printed.feed_bytes(piece):
                    console.print(*(Text.from_ansi(line) for line in lines), sep="\n", soft_wrap=True)
            if ready or time.monotonic() >= due:
                if time.monotonic() >= due:
                    below, due = _draw_picture(folder, console.height // 2), time.monotonic() + _PAUSE
                rest = [Text.from_ansi(printed.rest)] if printed.rest.strip() else []
                live.update(Group(*rest, below), refresh=True)
        live.update(Group(Text.from_ansi(printed.rest), _draw_picture(folder, console.height // 2)), refresh=True)


def _draw_picture(folder: str, height: int) -> RenderableType:
    try:
        return picture.draw_run(recording.open_run(folder), height)
    except (recording.RecordingError, OSError, ValueError):
        return Text("the ranks have not begun yet", style="dim")


def print_progress(folder: str, source: int) -> None:
    """Print a status line every 30 seconds until `source` is closed."""
    while not select.select([source], [], [], _PLAIN_PAUSE)[0]:
        try:
            print(f"matex: {picture.describe_run(recording.open_run(folder))}", flush=True)
        except (recording.RecordingError, OSError, ValueError):
            continue  # the ranks have not begun yet


def _read_piece(source: int) -> bytes:
    try:
        return os.read(source, _PIECE)
    except OSError:  # EIO: no process holds the other end of the terminal
        return b""


def main(folder: str, source: int) -> None:
    """The child process that draws."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process ends with the ranks
    if os.isatty(source):
        draw_while(folder, source, Console())
    else:
        print_progress(folder, source)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
