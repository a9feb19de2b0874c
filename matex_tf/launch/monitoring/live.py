"""`matex run --live`: the ranks' output scrolls above the display of the run, which a child process draws.

The ranks write to a pseudo-terminal, and the child reads it. If standard output is no terminal, the output is not
redirected, and the child prints a status line to standard error every 30 seconds. Instead of the pseudo-terminal, it
then has a pipe to which nobody writes, and ends when this process closes the pipe.
"""

from __future__ import annotations

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

from matex_tf.deploy.following import LineSplitter
from matex_tf.launch import output_file
from matex_tf.monitor import picture, recording

_PAUSE, _PLAIN_PAUSE = 1.0, 30.0  # seconds between displays, and between status lines
_PATIENCE = 10.0  # seconds that the child may take to end
_CHUNK_BYTES = 1 << 16


@contextlib.contextmanager
def show_picture(folder: str) -> Iterator[None]:
    """Context in which a child displays the run recorded in `folder`."""
    if os.isatty(1):
        reader, writer = pty.openpty()
        tty.setraw(writer)  # pass all bytes unchanged
        # The pseudo-terminal gets the size of the window.
        fcntl.ioctl(writer, termios.TIOCSWINSZ, fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))
        replaced_descriptors = [1, *([2] if os.isatty(2) else [])]  # descriptors that lead to the pseudo-terminal
    else:
        reader, writer = os.pipe()
        replaced_descriptors = []
    child = subprocess.Popen(
        [sys.executable, "-m", "matex_tf.launch.monitoring.live", folder, str(reader)], pass_fds=[reader],
        stdin=subprocess.DEVNULL, stdout=None if replaced_descriptors else 2,  # 2: status lines, to standard error
    )  # fmt: skip
    os.close(reader)
    try:
        with output_file.redirect(replaced_descriptors, writer):
            yield
    finally:
        os.close(writer)
        try:
            child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:  # a process of the run survives and holds the terminal
            child.terminate()
            child.wait()


def draw_while(folder: str, source: int, console: Console, splitter: LineSplitter) -> None:
    """Print the output from `source`, and the display below it, until `source` ends."""
    next_draw_at = 0.0
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            if select.select([source], [], [], max(next_draw_at - time.monotonic(), 0))[0]:
                chunk = _read_chunk(source)
                if not chunk:
                    break
                if lines := splitter.feed(chunk):
                    console.print(*map(_make_text, lines), sep="\n", soft_wrap=True)
            # The display is drawn again every second; the incomplete last line above it changes with each output.
            if time.monotonic() >= next_draw_at:  # at once in the first pass
                display, next_draw_at = _draw_picture(folder, console.height // 2), time.monotonic() + _PAUSE
            unfinished_lines = [_make_text(splitter.rest)] if splitter.rest.strip() else []
            live.update(Group(*unfinished_lines, display), refresh=True)
        live.update(Group(_make_text(splitter.rest), _draw_picture(folder, console.height // 2)), refresh=True)


def _make_text(line: bytes) -> Text:
    return Text.from_ansi(line.decode(errors="replace"))


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


def _read_chunk(source: int) -> bytes:
    """The available output; b"" at its end."""
    try:
        return os.read(source, _CHUNK_BYTES)
    except OSError:  # EIO: no process holds the other end of the terminal
        return b""


def main(folder: str, source: int) -> None:
    """The child process that draws."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process ends with the ranks
    if os.isatty(source):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        splitter = LineSplitter()
        try:
            draw_while(folder, source, Console(), splitter)
        except Exception:  # the output goes on without the display
            chunk = splitter.rest + _read_chunk(source)
            while chunk:
                sys.stdout.buffer.write(chunk)
                sys.stdout.flush()
                chunk = _read_chunk(source)
            raise
    else:
        print_progress(folder, source)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
