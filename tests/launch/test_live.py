"""`matex run --live`: in a terminal lines of ranks go by above the picture; elsewhere not a byte of theirs changes."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import tty

import pytest

import launch
from matex_tf.deploy.following import LineSplitter
from matex_tf.launch.monitoring import live

pytestmark = pytest.mark.waits

SCRIPT = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(launch.HERE)!r})
import simulated_run
print("begins", flush=True)
if "rank" in sys.argv:
    simulated_run.start(Path("rec"), 2, 20, slow=1, end="")
for step in range(5):
    print(f"\\rstep {{step}} of 5", end="", flush=True)
    time.sleep(0.1)
print("\\nends ä", flush=True)
print("an error", file=sys.stderr)
time.sleep(2.5 if "rank" in sys.argv else 0)
sys.exit(3)
"""
PLAIN = {"MATEX_DISABLE": "1"}


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(SCRIPT)
    return "a.py"


def command(*options):
    """`matex run` without the check that there are two ranks: these are plain Pythons."""
    program = (
        "import sys; from matex_tf.launch import cli, run_options; plain = run_options.read_run; "
        "from dataclasses import replace; run_options.read_run = lambda ctx: replace(plain(ctx), ranks=1); "
        "sys.exit(cli.main())"
    )
    return [sys.executable, "-c", program, "run", "-n", "2", *options]


def test_in_a_pipe_the_bytes_are_those_of_the_script_alone(tmp_path, script):
    alone = launch.execute(command(script), launch.environment(PLAIN), 60, tmp_path)
    lived = launch.execute(command("--live", "--record", "rec", script), launch.environment(PLAIN), 60, tmp_path)
    assert lived.stdout == alone.stdout and "step 4 of 5\nends ä\n" in alone.stdout
    assert (lived.returncode, alone.returncode) == (3, 3)
    assert "an error" in lived.stderr and "\x1b" not in lived.stderr


def test_in_a_terminal_the_picture_is_below_what_is_printed(tmp_path, script):
    env = launch.environment({**PLAIN, "TERM": "xterm"})
    words = command("--live", "--record", "rec", script, "rank")
    found = launch.in_terminal(words, env, (40, 100), cwd=tmp_path)
    assert found.returncode == 3
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.stdout)
    lines = [line.strip() for line in shown.replace("\r", "\n").split("\n")]
    assert "begins" in lines and "ends ä" in lines and "an error" in lines
    assert "the others wait for rank 1 (n000): 10.0 ms in each step, 20% of it" in lines
    assert lines.count("begins") == lines.count("ends ä") == 1
    assert (
        lines.index("begins") < lines.index("ends ä") < max(at for at, line in enumerate(lines) if "wait for" in line)
    )


def test_after_an_error_of_the_display_the_output_goes_on(tmp_path, monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(live.signal, "signal", lambda *_: None)
    monkeypatch.setattr(live, "_CHUNK_BYTES", 9)  # the picture is drawn after the first line
    monkeypatch.setattr(live, "_draw_picture", lambda *_: 1 / 0)
    reader, writer = pty.openpty()
    tty.setraw(writer)
    os.write(writer, "one two ä\nthree\nfour".encode())
    os.close(writer)
    with pytest.raises(ZeroDivisionError):
        live.main(str(tmp_path), reader)
    assert "one two ä\nthree\nfour".encode() in shown.buffer.getvalue()


def test_without_a_folder_the_run_has_one_of_its_name(tmp_path, script):
    words = [*command("--live", "--dry-run", script)]
    found = launch.execute(words, launch.environment(PLAIN), 60, tmp_path).check()
    assert re.search(rf"MATEX_RECORD={re.escape(str(tmp_path))}/runs/a-1 ", found.stdout)


def test_what_is_printed_is_cut_into_lines_wherever_it_is_read():
    text = "one\r\n10%\r20%\r30%\nä half".encode()
    for cut in range(len(text)):
        splitter = LineSplitter()
        found = [line for piece in (text[:cut], text[cut:]) for line in splitter.feed(piece)]
        assert found == [b"one", b"30%"] and splitter.rest == "ä half".encode(), cut
    splitter = LineSplitter()
    assert splitter.feed(b"10%\r") == [] and splitter.rest == b"10%"
    assert splitter.feed(b"20%\r") == [] and splitter.rest == b"20%"
    assert splitter.feed(b"done\n") == [b"done"] and splitter.rest == b""
