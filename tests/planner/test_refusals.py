"""What `matex plan` cannot do, or would do nothing with, is refused before anything is measured or started."""

import dataclasses
import subprocess

import pytest
from planner_plans import a_plan

from matex_tf import settings
from matex_tf.launch import cli, command_line
from matex_tf.launch.planning import ranks, run
from matex_tf.planner import plan_file
from matex_tf.planner.measurement import started


class Began(BaseException):
    """Something is measured, or started to be."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a script and a plan, in which no process may be started."""

    def begin(*_, **__):
        raise Began

    (tmp_path / "train.py").write_text("")
    (tmp_path / "folder").mkdir()
    plan_file.save_plan(a_plan(), tmp_path / "plan.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "measure_plan", begin)
    monkeypatch.setattr(ranks, "time_real_run", begin)
    monkeypatch.setattr(subprocess, "Popen", begin)
    monkeypatch.setattr(command_line, "make_command_line", lambda run: [f"mpirun of {run.ranks}"])
    return tmp_path


@pytest.mark.parametrize(
    "words, said",
    [
        ("--json nowhere/plan.json train.py", "--json cannot write nowhere/plan.json: there is no folder"),
        ("--json folder train.py", "--json cannot write folder: that is a folder"),
        ("--json . train.py", "--json cannot write .: that is a folder"),
        ("--json train.py/plan.json train.py", "there is no folder"),
        ("--json train.py train.py", "--json would write train.py, an input file"),
        ("--chart nowhere/plan.svg train.py", "--chart cannot write"),
        ("--chart one --json one train.py", "--chart would write one, the output file of another option"),
        ("--chart found.predictions.json --json found.json train.py", "of another option"),
        ("--memory 12 train.py", "--memory expects a size with its unit, such as 12GiB"),
        ("--memory 1.5 train.py", "with its unit"),
        ("--memory big train.py", "--memory expects"),
        ("--memory 12KiB train.py", "--memory gives a rank 0.0117 MiB, and Python takes more than"),
        ("--deadline 6h train.py", "--epochs 90"),
        ("--epochs 3 train.py", "--epochs goes with --deadline"),
        ("--deadline 6h --epochs 3 --target 0.5 train.py", "--target and --deadline both choose"),
        ("--deadline 0h --epochs 3 train.py", "--deadline expects"),
        ("--target 2 train.py", "2"),
        ("--steps 3 train.py", "3"),
        ("--ranks 0 train.py", "--ranks expects numbers"),
        ("--ranks-per-host 0 train.py", "--ranks-per-host expects"),
        ("--network tin_cans train.py", "tin_cans"),
        ("--scaling both train.py", "both"),
        ("--batch 0 train.py", "1 or more"),
        ("--batch 8 --scaling weak train.py", "--batch needs slices of several sizes"),
        ("--batch 8 --ranks 1 --ranks-per-host 1 train.py", "--batch needs slices of several sizes"),
        ("--host a train.py", "a link is between two"),
        ("--host a,a train.py", "names a twice"),
        ("-n 2 train.py", "-n goes with --check"),
        ("nowhere.py", "there is no file nowhere.py"),
        ("", "no script is named"),
        ("--check nowhere.json", "nowhere.json"),
        ("--check train.py", "no plan can be read from train.py"),
        ("--check plan.json train.py", "train.py must precede it"),
        ("--check --ranks 2 plan.json", "--check does not take --ranks"),
        ("--check --memory 4GiB plan.json", "--check does not take --memory"),
        ("--check --chart c.svg plan.json", "--check does not take --chart"),
        ("--check --json plan.json plan.json", "--json would write plan.json, an input file"),
        ("--check --json nowhere/found.json plan.json", "there is no folder"),
        ("--check -n 0 plan.json", "-n expects numbers"),
        ("--check -n 4 --host a plan.json", "--host names 1 of at least 2 hosts: 4 ranks, 2 on each"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_once(words, said, here, capsys):
    before = sorted(here.rglob("*"))
    assert cli.main(["plan", *words.split()]) in (1, 2)
    told = capsys.readouterr()
    assert said in told.err and told.err.startswith("matex") and not told.out
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        "train.py",
        "--json found.json --chart folder/plan.svg train.py --epochs 3",
        "--memory 4GiB --batch 8,16 train.py",
        "--memory here --deadline 6h --epochs 3 train.py",
        "--scaling weak --ranks 1 --target 0.5 train.py",
        "--check -n 2 --json found.json plan.json",
    ],
)
def test_what_can_be_is_measured(words, here):
    with pytest.raises(Began):
        cli.main(["plan", *words.split()])


@pytest.mark.parametrize("words", ["--host a,nowhere train.py", "--check -n 4 --host a,nowhere plan.json"])
@pytest.mark.parametrize("ends", ["fails", "hangs", "cannot start"])
def test_hosts_on_which_no_rank_can_be_started_are_refused(words, ends, here, monkeypatch, capsys):
    program = {"fails": "echo no such host: nowhere >&2; exit 213", "hangs": "sleep 60", "cannot start": ""}[ends]
    asked = []

    def make_command_line(run):
        asked.append((run.ranks, run.options))
        return ["sh", "-c", program] if program else [str(here / "no program")]

    monkeypatch.undo()
    monkeypatch.chdir(here)
    monkeypatch.setattr(run, "measure_plan", lambda *_: 1 / 0)
    monkeypatch.setattr(ranks, "time_real_run", lambda *_: 1 / 0)
    monkeypatch.setattr(command_line, "make_command_line", make_command_line)
    monkeypatch.setattr(ranks, "MEASURE_SECONDS", 0.5)
    monkeypatch.setattr(started, "PATIENCE", 0.0)
    assert cli.main(["plan", *words.split()]) == 2
    assert asked == [(2, ["--host", "a:1,nowhere:1"])]
    told = capsys.readouterr().err
    assert "no rank can be started" in told
    assert {"fails": "no such host: nowhere", "hangs": "had not ended", "cannot start": "no program"}[ends] in told


def test_a_limit_of_the_environment_is_checked_as_well(here, monkeypatch, capsys):
    monkeypatch.setenv("MATEX_MEMORY", "12")
    monkeypatch.setattr(settings, "_current", None)
    assert cli.main(["plan", "train.py"]) == 2 and "MATEX_MEMORY gives a rank" in capsys.readouterr().err


def test_a_check_of_a_statistical_strategy_is_refused(here, monkeypatch, capsys):
    monkeypatch.setattr(ranks.settings, "get_settings", lambda: dataclasses.make_dataclass("S", ["strategy"])("async"))
    assert cli.main(["plan", "--check", "plan.json"]) == 1
    assert "MATEX_STRATEGY=async has none" in capsys.readouterr().err


def test_no_mpirun_is_said_before_a_check_begins(here, monkeypatch, capsys):
    def make_command_line(run):
        raise cli.click.UsageError("there is no mpirun. Install one")

    monkeypatch.setattr(command_line, "make_command_line", make_command_line)
    assert cli.main(["plan", "--check", "-n", "1,2", "plan.json"]) == 2
    assert "there is no mpirun" in capsys.readouterr().err
    with pytest.raises(Began):  # one rank needs none
        cli.main(["plan", "--check", "-n", "1", "plan.json"])
