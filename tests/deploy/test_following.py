"""What follows a job writes to whatever stands in place of the standard output."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

import matex_tf
from matex_tf.launch import cli

PRINTS = "import sys; sys.stdout.buffer.write('gr\u00fc\u00dfe\\n'.encode() + b'1/2\\r2/2\\nend \\xff'); sys.exit(3)"


class Notebook(io.TextIOBase):
    """As IPython's OutStream: it has a file number, texts alone, and no buffer."""

    def __init__(self):
        self.texts = []

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text)}")
        self.texts.append(text)
        return len(text)

    def getvalue(self):
        return "".join(self.texts)


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("MATEX_DISABLE", "1")
    (tmp_path / "says.py").write_text(PRINTS)
    return "says.py"


@pytest.mark.parametrize("make", [io.StringIO, Notebook])
def test_a_stream_of_texts_gets_what_a_run_prints(script, make):
    with contextlib.redirect_stdout(make()) as shown:
        assert matex_tf.launch(script, ranks=1).follow() == 3
        assert cli.main(["submit", "--slurm", "--dry-run", "--name", "gr\u00fcn", script]) == 0
    said, _, text = shown.getvalue().partition("#!")
    assert said == "gr\u00fc\u00dfe\n2/2\nend \ufffd" and "--job-name=gr\u00fcn" in text


def test_a_character_may_come_in_two_pieces(monkeypatch):
    from matex_tf.deploy import following

    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    output = following.Output()
    for piece in ("\u00fc".encode()[:1], "\u00fc".encode()[1:]):
        output.write_bytes(piece)
    assert shown.getvalue() == "\u00fc"
