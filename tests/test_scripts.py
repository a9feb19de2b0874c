"""The scripts: what scripts/test counts and where it runs what, how the demo compares, what setup refuses."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

import launch

SCRIPTS = Path(__file__).parent.parent / "scripts"


def load(name):
    """The module in scripts/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    launch.sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


run_tests, run_demo, count_code = load("run_tests"), load("run_demo"), load("count_code")


def test_counts_are_read_from_the_report(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="2" errors="1" skipped="1"/></testsuites>')
    assert run_tests.read_counts(report) == run_tests.Counts(passed=5, failed=3, skipped=1)


def test_a_run_that_left_no_report_has_failed(tmp_path):
    assert run_tests.read_counts(tmp_path / "none.xml") == run_tests.Counts(failed=1)


def test_a_run_that_ends_badly_has_failed_whatever_it_counted(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="3" failures="0" errors="0" skipped="0"/></testsuites>')
    assert run_tests.run(["false"], report, 10) == run_tests.Counts(passed=3, failed=1)
    assert run_tests.run(["true"], report, 10) == run_tests.Counts(passed=3)
    assert run_tests.run(["sleep", "5"], report, 0.2) == run_tests.Counts(failed=1)


@pytest.mark.parametrize(
    "arguments, options, serial, collective",
    [
        ([], [], ["tests"], []),
        (["-k", "name"], ["-k", "name"], ["tests"], []),
        (["tests/launch/test_cli.py"], [], ["tests/launch/test_cli.py"], []),
        (["tests/ops/mpi"], [], [], ["tests/ops/mpi"]),
        (["-x", "tests/ops"], ["-x"], ["tests/ops"], []),
    ],
)
def test_paths_select_the_runs_they_belong_to(arguments, options, serial, collective, monkeypatch):
    monkeypatch.chdir(SCRIPTS.parent)
    found = run_tests.split_arguments(arguments)
    assert found[0] == options
    for paths, expected in zip(found[1:], (serial, collective)):
        assert [Path(path).resolve() for path in paths] == [Path(path).resolve() for path in expected]


OUTPUT = """Epoch 1/2
63/63 - 3s - loss: 1.7540
epoch 1  loss 1.5  accuracy 0.4  val_loss 0.52  seconds 2.95
epoch 2  loss 0.5  accuracy 0.9  val_loss 0.23  seconds 1.25
test  loss 0.2
"""


def test_the_demo_reads_and_compares_epochs():
    alone = run_demo.read_epochs(OUTPUT)
    assert alone == [run_demo.Epoch(1.5, 2.95), run_demo.Epoch(0.5, 1.25)]
    together = [run_demo.Epoch(1.5, 2.0), run_demo.Epoch(0.505, 1.0)]
    assert run_demo.largest_difference(alone, together) == pytest.approx(0.01)
    assert run_demo.epoch_seconds([alone, together]) == 1.125, "tracing and compiling are in the first epoch"
    assert "0.50500000" in run_demo.table(alone, together)


@pytest.mark.parametrize("output", ["", OUTPUT.replace("epoch 2", "epoch 3"), OUTPUT + OUTPUT])
def test_epochs_that_are_not_there_once_each_are_a_failure(output):
    with pytest.raises(run_demo.Failure, match="were expected as 1, 2, 3"):
        run_demo.read_epochs(output)


def test_a_loss_that_is_not_a_number_is_not_ok(monkeypatch, capsys):
    alone, together = [run_demo.Epoch(1.0, 1.0)] * 2, [run_demo.Epoch(1.0, 1.0), run_demo.Epoch(float("nan"), 1.0)]
    difference = run_demo.largest_difference(alone, together)
    monkeypatch.setattr(run_demo, "demo", lambda: (difference, 1.5))
    assert run_demo.main() == 1
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("demo: failed")


@pytest.mark.parametrize(
    "difference, code, last", [(1e-6, 0, "demo: ok difference=1.0e-06 speedup=1.50"), (6e-3, 1, "")]
)
def test_the_last_line_of_the_demo(difference, code, last, monkeypatch, capsys):
    monkeypatch.setattr(run_demo, "demo", lambda: (difference, 1.5))
    assert run_demo.main() == code
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert line == last or line.startswith("demo: failed: the losses differ")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--tensorflow"], "needs a version"),
        (["--tensorflow", "new"], "expects a version such as 2.15.1, newest or nightly; 'new' was given"),
        (["--tensorflow=2.14.1"], "too old"),
        (["--tensorfow", "2.15.1"], "unknown argument --tensorfow"),
    ],
)
def test_setup_refuses_what_it_does_not_understand(arguments, message):
    child = subprocess.run([SCRIPTS / "setup", *arguments], capture_output=True, text=True, timeout=30)
    assert child.returncode == 1 and message in child.stderr and child.stdout == ""


def test_commands_can_be_executed():
    for path in (SCRIPTS / "setup", SCRIPTS / "test", SCRIPTS / "demo", SCRIPTS.parent / ".ci" / "run"):
        assert os.access(path, os.X_OK), path


def test_the_figures_of_the_code_are_counted(tmp_path, monkeypatch):
    """On code of which they are known."""
    (tmp_path / "steps").mkdir()
    (tmp_path / "tune").mkdir()
    (tmp_path / "steps" / "one.py").write_text(
        "import sys, weakref\nheld = weakref.WeakKeyDictionary()\n\n\ndef act(one):\n    global held\n"
        "    sys.setprofile(None)\n    one.__class__ = type(sys._getframe(1))\n"
        "    object.__setattr__(one, '__dict__', {})\n"
    )
    (tmp_path / "tune" / "two.py").write_text("x = 1\n")
    monkeypatch.setattr(count_code, "ROOT", tmp_path)
    counts = [count for name, count, _ in count_code.list_rows() if "replaced" not in name and not name.startswith(" ")]
    assert counts == [9, 9, 1, 1, 1, 0, 2, 1]
    of = {name: count for name, count, _ in count_code.list_rows()}
    assert 0 < of["  of Keras"] < of["functions replaced on another rank"]
