"""A run in a notebook, in a kernel as notebooks have it."""

from __future__ import annotations

import re
import sys
import textwrap
from xml.etree import ElementTree

import pytest
import simulated_run

from matex_tf.deploy import notebook

PROGRAM = """
import matex_tf
run = matex_tf.launch("train.py", ranks=1, env={"MATEX_DISABLE": "1"})
assert run.follow() == 3
"""
SCRIPT = """\
import sys, time
for step in range(30):
    print(f"line {step} <&>", flush=True)
sys.exit(3)
"""


def test_a_cell_that_follows_a_run_shows_it_to_its_end(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    (tmp_path / "train.py").write_text(SCRIPT)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(PROGRAM))])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = book.cells[0].outputs
    (shown,) = [one["data"]["text/html"] for one in outputs if one.output_type == "display_data"]
    assert "ENDED, exit code 3" in shown and "line 29 &lt;&amp;&gt;" in shown and "line 19 " not in shown
    printed = "".join(one["text"] for one in outputs if one.output_type == "stream")
    assert "ENDED, exit code 3" in printed and "line" not in printed, "what it prints is in the picture"


@pytest.fixture
def run(tmp_path):
    """The folder of a run of two ranks, of which four epochs are done."""
    where = simulated_run.start(tmp_path, 2, 30)
    logs = [{"loss": 2.0 / epoch, "val_loss": 3.0 / epoch, "accuracy": 0.5} for epoch in (1, 2, 3)]
    logs += [{"loss": float("nan"), "val_loss": 0.5, "accuracy": 0.5}]
    events = [{"t": simulated_run.BEGAN + at, "epoch": at, "of": 9, "logs": one} for at, one in enumerate(logs, 1)]
    simulated_run.write_events(where, "events-0.jsonl", *events)
    return tmp_path


def test_the_curves_of_a_run(run):
    """A loss that is no number leaves a gap; that of the validation data is beside it."""
    loss, accuracy = ElementTree.fromstring(notebook._draw_curves(str(run)))
    assert [line.text for line in loss.iter("text") if line.get("fill")] == ["loss 0.6667", "val_loss 0.5"]
    lines = [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()] for line in loss.iter("polyline")
    ]
    assert [len(line) for line in lines] == [3, 4]
    for line in lines:  # they go down, which is up in pixels, and to the right
        assert line == sorted(line) and [y for _, y in line] == sorted(y for _, y in line)
    assert {"epoch 1", "4", "3", "0.5"} <= {line.text for line in loss.iter("text")}
    assert (
        len({y for _, y in [tuple(p.split(",")) for p in next(accuracy.iter("polyline")).get("points").split()]}) == 1
    )


def test_the_columns_of_ranks_line_up(run):
    text = re.sub("<[^>]*>", "", notebook._format_ranks(str(run))).splitlines()
    at = next(number for number, line in enumerate(text) if line.startswith("rank"))
    ends = [[found.end() for found in re.finditer(r"\S+(?: \S+)*", line)] for line in text[at : at + 3]]
    assert len(ends[0]) > 8 and ends[0][2:] == ends[1][2:] == ends[2][2:], text
    assert "white-space: pre" in notebook._format_ranks(str(run)) and "monospace" in notebook._format_ranks(str(run))


def test_without_a_kernel_there_is_no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not notebook.is_notebook()
