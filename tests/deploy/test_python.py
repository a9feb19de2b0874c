"""Runs that Python starts: here by `matex run`, and as a job by stand-ins for Slurm's commands."""

from __future__ import annotations

import inspect
import json
import shlex
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import simulated_run
import yaml
from fake_commands import Fakes

import matex_tf
from matex_tf.deploy import following, job, notebook, options, python, slurm
from matex_tf.deploy.clusters import KINDS

pytestmark = pytest.mark.waits

SCRIPT = """\
import sys, time
print(sys.argv[1:], flush=True)
time.sleep(int(sys.argv[1]))
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(following, "ASK_EACH", 0.0)
    monkeypatch.setattr(following, "LOOK_EACH", 0.01)
    Path("train.py").write_text(SCRIPT)


def test_a_run_here(monkeypatch, capfd):
    monkeypatch.setenv("MATEX_DISABLE", "1")
    run = matex_tf.launch("train.py", [0, "two words"], ranks=1)
    assert run.wait() == 3 and run.state() == "ENDED, exit code 3"
    assert "['0', 'two words']" in Path(run.folder, "output").read_text()
    capfd.readouterr()
    assert run.follow() == 3 and "['0', 'two words']" in capfd.readouterr().out


TOLD = """\
#!/bin/bash
printf '%s\\0' "$@" > told
printf '%s' "$VALUE" > value
"""
CHOSEN = {"restarts": 2, "adapt": "ranks", "strategy": "servers:2", "elastic": True, "run": "--memory '2 GB'"}
WORDS = ["--adapt=ranks", "--strategy=servers:2", "--elastic", "--memory", "2 GB"]
VALUE = 'it\'s "two"\nlines of $HOME'


def tell_words(path):
    """A `matex` there that notes what it was told, and the variable VALUE."""
    path.write_text(TOLD)
    path.chmod(0o700)
    return str(path)


def test_a_run_here_gets_the_options_of_matex_run(tmp_path, monkeypatch):
    monkeypatch.setattr(options, "find_own_command", lambda: tell_words(tmp_path / "matex"))
    assert matex_tf.launch("train.py", [9, "a b"], ranks=4, env={"VALUE": VALUE}, **CHOSEN).wait() == 0
    told = Path("told").read_text().split("\0")[:-1]
    assert told == ["run", "--restarts", "2", "-n", "4", *WORDS, "train.py", "9", "a b"]
    assert Path("value").read_text() == VALUE
    assert matex_tf.launch("train.py", ranks=1, adapt=True).wait() == 0
    assert Path("told").read_text().split("\0")[:-1] == ["run", "-n", "1", "--adapt=on", "train.py"]


def test_a_run_here_that_is_lost_starts_again_as_often_as_asked(monkeypatch):
    Path("once.py").write_text(
        "import os, signal\n"
        "if not os.path.exists('begun'):\n    open('begun', 'w').close()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "print('the second time', os.environ['VALUE'], flush=True)\n"
    )
    run = matex_tf.launch("once.py", ranks=1, restarts=1, env={"VALUE": "a b"})
    said = Path(run.folder, "output")
    assert run.wait() == 0, said.read_text()
    assert "the second time a b" in said.read_text() and "restart 1 of 1" in said.read_text()


@pytest.mark.parametrize("kind", ["Slurm", "Kubernetes"])
def test_a_job_gets_the_same_options(tmp_path, monkeypatch, kind):
    (tmp_path / "bin").mkdir()
    fakes = Fakes(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    fakes.add("sbatch", "echo 4711")
    fakes.add("kubectl", "cat > job.yaml")
    matex = tell_words(tmp_path / "matex")
    mine = {"matex": matex, "run": ["--profile"], "setup": ["VALUE=of-a-file"], "restarts": 5}
    cluster = matex_tf.Slurm(**mine) if kind == "Slurm" else matex_tf.Kubernetes(image="i", **mine)
    run = matex_tf.launch("train.py", ["a b"], cluster=cluster, env={"VALUE": VALUE}, **CHOSEN)
    if kind == "Slurm":
        subprocess.run(["bash", Path(run.folder, "job.sh")], check=True)
        assert Path("value").read_text() == VALUE
        told = Path("told").read_text().split("\0")[:-1]
        assert told == ["run", "--restarts", "2", "-n", "1", "--profile", *WORDS, "train.py", "a b"]
    else:
        (launcher,) = yaml.safe_load(Path("job.yaml").read_text())["spec"]["mpiReplicaSpecs"]["Launcher"]["template"][
            "spec"
        ]["containers"]
        assert launcher["env"] == [{"name": "VALUE", "value": VALUE.replace("$", "$$")}]
        words = shlex.join(["--hostfile", "/etc/mpi/hostfile", "--profile", *WORDS, "train.py", "a b"])
        assert f" run --restarts 2 -n 1 {words} & child" in launcher["command"][2]


def test_a_run_here_is_cancelled(monkeypatch):
    monkeypatch.setenv("MATEX_DISABLE", "1")
    run = matex_tf.launch("train.py", [300], ranks=1)
    while "300" not in Path(run.folder, "output").read_text():
        assert run.state() == "RUNNING here"
    run.cancel()
    assert run.wait() == 143


def test_a_job_of_slurm(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    fakes = Fakes(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    fakes.add("sbatch", "echo 4711")
    fakes.add("scontrol", "next state")
    fakes.add("scancel", "")
    shown = "JobId=4711\n   JobState={} Reason=None\n   Requeue=1 Restarts=0 ExitCode=0:0\n   NodeList=n1\n"
    fakes.answers("state", *(shown.format(state) for state in ("RUNNING", "RUNNING", "COMPLETED")))
    run = matex_tf.launch("train.py", ["--epochs", 9], ranks=8, cluster=matex_tf.Slurm(nodes=4, time="2:00:00"))
    text = Path(run.folder, "job.sh").read_text()
    assert "--ntasks-per-node=2\n" in text and "-n 8 train.py --epochs 9 & child" in text and run.id == "4711"
    assert run.state() == "RUNNING on n1"
    run.cancel()
    assert "scancel 4711" in fakes.calls and run.wait() == 0


def test_what_fit_logged_of_each_epoch(monkeypatch):
    monkeypatch.setenv("MATEX_DISABLE", "1")
    run = matex_tf.launch("train.py", [0], ranks=1)
    assert run.wait() == 3 and run.metrics() == []
    start = Path(run.folder, "start-1")
    start.mkdir()
    (start / "start.json").write_text(json.dumps({"format": 1}))
    lines = [{"t": at, "epoch": at, "logs": {"loss": 1 / at}} for at in (1, 2)]
    (start / "events-0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.chdir("/")
    assert run.metrics() == [{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": 0.5}]


def write_start(folder, number, *epochs):
    """A start of a run in which epochs of calls of `fit` have ended: (call, epoch, loss)."""
    start = Path(folder, f"start-{number}")
    start.mkdir(parents=True)
    (start / "start.json").write_text(json.dumps({"format": 1}))
    lines = [{"t": number, "call": call, "epoch": epoch, "logs": {"loss": loss}} for call, epoch, loss in epochs]
    simulated_run.write_events(start, "events-0.jsonl", *lines)


@pytest.mark.parametrize(
    "starts, expected",
    [
        ([[(0, 1, 9), (0, 2, 8), (0, 3, 7)], [(0, 3, 6), (0, 4, 5)]], [9, 8, 6, 5]),
        ([[(0, 1, 9), (0, 2, 8), (1, 1, 7), (1, 2, 6)], [(1, 2, 5)]], [9, 8, 7, 5]),
        ([[(0, 1, 9), (0, 2, 8)], [(1, 1, 7)]], [9, 8, 7]),
        ([[(0, 1, 9), (0, 2, 8)], [(0, 1, 7)]], [7]),
        ([[(0, 1, 9)], [], [(0, 2, 8), (0, 3, 7)], [(0, 3, 6)]], [9, 8, 6]),
    ],
)
def test_an_epoch_that_is_trained_again_counts_once(tmp_path, starts, expected):
    for number, epochs in enumerate(starts, 1):
        write_start(tmp_path / "runs" / "train-1", number, *epochs)
    run = python.LaunchedRun(slurm.SLURM, job.Job("4711", str(tmp_path / "runs" / "train-1")))
    assert [one["loss"] for one in run.metrics()] == expected


def test_the_records_of_a_job_of_kubernetes_are_on_its_volume(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    (tmp_path / "bin").mkdir()
    Fakes(tmp_path / "bin").add("kubectl", "cat > /dev/null")
    seen, unseen = str(tmp_path / "volume"), str(tmp_path / "elsewhere" / "volume")
    run = matex_tf.launch("train.py", cluster=matex_tf.Kubernetes(image="i", claim="c", folder=unseen))
    with pytest.raises(RuntimeError, match=f"recorded in {run.folder} of its volume, which this machine does not see"):
        run.metrics()
    Path(seen).mkdir()
    run = matex_tf.launch("train.py", cluster=matex_tf.Kubernetes(image="i", claim="c", folder=seen))
    assert run.folder == f"{seen}/{run.id}" and run.metrics() == []
    write_start(run.folder, 1, (0, 1, 9))
    assert run.metrics() == [{"epoch": 1, "loss": 9}]
    run = matex_tf.launch("train.py", cluster=matex_tf.Kubernetes(image="i"))
    assert run.folder == ""
    with pytest.raises(RuntimeError, match="is recorded: that needs a volume"):
        run.metrics()


def test_in_a_notebook_a_cell_shows_the_run_until_it_ends(monkeypatch):
    pages = []
    display = types.ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda page, display_id: pages.append(page) or types.SimpleNamespace(update=pages.append)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "UPDATE_INTERVAL", 0.01)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("MATEX_DISABLE", "1")
    run = matex_tf.launch("train.py", [1, "<b>a & b"], ranks=1)
    run._ipython_display_()
    assert f"<b>{run.id}</b> RUNNING here" in pages[0]
    assert run.wait() == 3
    for thread in threading.enumerate():
        if thread.name == notebook.THREAD:
            thread.join(60)
    assert "ENDED, exit code 3" in pages[-1] and "&lt;b&gt;a &amp; b" in pages[-1] and pages[-1] == run._repr_html_()
    simulated_run.start(Path(run.folder), 2, 30)
    shown = len(pages)
    assert "compute" in run._repr_html_() and len(pages) == shown


def test_editors_see_what_can_be_given():
    assert list(inspect.signature(matex_tf.launch).parameters) == [
        "script", "args", "ranks", "cluster", "restarts", "adapt", "strategy", "elastic", "run", "env",
    ]  # fmt: skip
    assert "Start `script` with `args`" in inspect.getdoc(matex_tf.launch)
    assert "trials" in inspect.signature(matex_tf.tune).parameters
    clusters = {kind.__name__ for kind in KINDS.values()}
    assert {"launch", "tune", *clusters} <= set(dir(matex_tf))
    for name in clusters:
        assert getattr(matex_tf, name)(nodes=3).nodes == 3 and f"--{name.lower()}`" in getattr(matex_tf, name).__doc__
    slurm = inspect.signature(matex_tf.Slurm)
    assert {"nodes", "time", "partition"} <= set(slurm.parameters) and slurm.return_annotation.__name__ == "Slurm"


@pytest.mark.parametrize(
    "asked, error, message",
    [
        (lambda: matex_tf.launch("no.py", ranks=2), FileNotFoundError, "there is no file no.py"),
        (lambda: matex_tf.launch("train.py"), TypeError, "how many ranks"),
        (lambda: matex_tf.launch("train.py", ranks=0), ValueError, "expected ranks to be a whole number, 1 or more"),
        (
            lambda: matex_tf.launch("train.py", ranks=5, cluster=matex_tf.Slurm(nodes=2)),
            ValueError,
            "5 ranks cannot be as many on each of 2 nodes",
        ),
        (
            lambda: matex_tf.launch("train.py", ranks=2, adapt="rank"),
            ValueError,
            "True, False or 'ranks'; given 'rank'",
        ),
        (lambda: matex_tf.launch("train.py", ranks=2, restarts=-1), ValueError, "restarts to be a whole number, 0 or"),
        (lambda: matex_tf.launch("train.py", ranks=2, run="--mca '"), ValueError, "to be words as for a shell"),
        (lambda: matex_tf.launch("train.py", ranks=2, env=["A=1"]), TypeError, "env to be a dictionary"),
        (lambda: matex_tf.launch("train.py", ranks=2, env={"A B": 1}), ValueError, "env to be names of letters"),
        (lambda: matex_tf.launch("train.py", cluster="slurm"), TypeError, "expected cluster to be matex_tf.Slurm"),
        (lambda: matex_tf.Slurm(node=2), ValueError, "there is no option node; did you mean nodes"),
        (lambda: matex_tf.launch("train.py", cluster=matex_tf.Kubernetes(nodes=2)), ValueError, "needs --image"),
        (lambda: matex_tf.Kubernetes(nodes="2"), TypeError, "expected nodes to be a whole number"),
    ],
)
def test_what_cannot_be_launched(asked, error, message):
    with pytest.raises(error, match=message):
        asked()


def test_a_refusal_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(job.JobError, match="there is no sbatch on this machine"):
        matex_tf.launch("train.py", cluster=matex_tf.Slurm())


def test_a_script_that_trains_loads_none_of_it():
    program = "import matex_tf, sys; assert not [name for name in sys.modules if name.startswith('matex_tf.deploy')]"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_package_stays_a_package():
    from matex_tf.launch import cli

    assert callable(matex_tf.launch) and matex_tf.launch.cli is cli
