"""A run that is a job: while it waits in a queue, or is to be started again, whoever watches it waits and is told."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import simulated_run as simulated
from fake_commands import Fakes

import launch
from matex_tf.deploy import run_folder
from matex_tf.launch import cli
from matex_tf.launch.monitoring import command, job_watch
from matex_tf.monitor import recording

SHOWN = "JobId=4711\n   JobState={} Reason={}\n   Requeue=1 Restarts=0 ExitCode=0:0\n   NodeList=(null)\n"
PENDING = SHOWN.format("PENDING", "Priority")
CANCELLED = SHOWN.format("CANCELLED", "None")
TOP = "from matex_tf.launch import cli; import sys; sys.exit(cli.main(['top', sys.argv[1]]))"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of job 4711, of which no rank has begun; `fakes` has what Slurm says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job_watch, "QUERY_INTERVAL", 0.0)
    monkeypatch.setattr(command, "_METRICS_PAUSE", 0.0)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    folder = run_folder.make_folder("train")
    run_folder.write_note(folder, "slurm", "4711")
    return folder


@pytest.fixture
def fakes(tmp_path, run):
    found = Fakes(tmp_path / "bin")
    found.add("scontrol", "next state")
    found.add("sacct", "exit 1")
    return found


def end(folder, code):
    simulated.write_events(folder, "events.jsonl", {"t": 1, "event": f"ended with exit code {code}", "end": code})


@pytest.mark.parametrize("name", ["runs/train-1", "4711"])
def test_a_job_that_is_queued_is_told(run, fakes, name, capsys):
    fakes.answers("state", PENDING)
    assert cli.main(["top", name]) == 0
    told = capsys.readouterr().out
    assert " ".join(told.split()) == "4711 PENDING (Priority): others come first; no rank has written anything yet"
    assert cli.main(["report", name]) == 1
    assert "runs/train-1: 4711 PENDING (Priority)" in capsys.readouterr().err


def test_in_a_terminal_it_waits_for_the_job(run, fakes, tmp_path):
    fakes.answers("state", PENDING, CANCELLED)
    env = launch.environment(
        {"TERM": "xterm", "COLUMNS": "100", "LINES": "30", "PATH": f"{tmp_path}/bin:/bin:/usr/bin"}
    )
    top = f"from matex_tf.launch.monitoring import job_watch; job_watch.QUERY_INTERVAL = 0.0; {TOP}"
    found = launch.in_terminal([sys.executable, "-c", top, str(run)], env, (30, 100))
    assert found.returncode == 1 and "4711 PENDING (Priority): others come first" in found.stdout
    assert "4711 CANCELLED" in found.output


def test_a_job_that_has_ended_without_a_record_is_an_error(run, fakes, capsys):
    fakes.answers("state", CANCELLED)
    assert cli.main(["top", "4711"]) == 1
    told = capsys.readouterr().err
    assert "no rank has written records; a run of one rank is not recorded. 4711 CANCELLED" in told
    assert "matex run --record" not in told


def test_a_run_that_is_to_be_started_again_has_not_ended(run, fakes):
    simulated.start(run, 2, 5)
    end(run, 75)
    fakes.answers("state", PENDING, PENDING, CANCELLED)
    watch = job_watch.JobWatch(str(run))
    for _ in range(2):
        seen = watch.look_at_run()
        assert not seen.is_over and seen.run is not None and seen.job_text.startswith("to be restarted: 4711 PENDING")
    assert watch.look_at_run().is_over
    assert len(fakes.calls) >= 3
    (run / "exit-code").write_text("75\n")  # Slurm did not put it back
    assert job_watch.JobWatch(str(run)).look_at_run().is_over


def test_the_scheduler_is_asked_only_where_no_rank_tells(run, fakes):
    simulated.start(run, 2, 5, end="")
    assert not job_watch.JobWatch(str(run)).look_at_run().is_over
    end(run, 3)
    assert job_watch.JobWatch(str(run)).look_at_run().is_over and fakes.calls == []


def test_where_no_scheduler_is_it_waits_all_the_same(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    seen = job_watch.JobWatch(str(run)).look_at_run()
    assert not seen.is_over and seen.job_text.startswith("4711 (state unknown on this host); no rank")
    simulated.start(run, 2, 5)
    end(run, 75)
    assert job_watch.JobWatch(str(run)).look_at_run().is_over, "nobody here would tell that it is over"


def test_without_a_job_a_run_that_ended_has_ended(tmp_path):
    simulated.start(tmp_path, 2, 5)
    end(tmp_path, 75)
    assert job_watch.JobWatch(str(tmp_path)).look_at_run().is_over
    with pytest.raises(recording.NothingRecordedError):
        job_watch.JobWatch(str(tmp_path / "none")).look_at_run()


def test_figures_stay_while_the_run_is_to_be_started_again(run, fakes, capsys, monkeypatch):
    simulated.start(run, 2, 5)
    end(run, 75)
    fakes.answers("state", PENDING, PENDING, CANCELLED)
    there = []
    sleep = lambda _: there.append(Path("a.prom").exists())  # noqa: E731
    monkeypatch.setattr(command, "time", types.SimpleNamespace(sleep=sleep))
    assert cli.main(["top", "4711", "--prometheus", "a.prom"]) == 0
    assert there == [True, True] and not Path("a.prom").exists()
    assert capsys.readouterr().err == "matex top: to be restarted: 4711 PENDING (Priority): others come first\n"


@pytest.fixture
def mpijob(fakes):
    """What `kubectl` answers: an MPIJob, recorded in a folder, whose launcher runs."""

    def answer(folder):
        env = [{"name": "MATEX_RECORD", "value": str(folder)}] if folder else []
        launcher = {"template": {"spec": {"containers": [{"env": env}]}}}
        found = {"metadata": {"name": "train-x7k2q"}, "spec": {"mpiReplicaSpecs": {"Launcher": launcher}}}
        metadata = {"name": "train-x7k2q-launcher-a", "labels": {"training.kubeflow.org/job-role": "launcher"}}
        pod = {"metadata": metadata, "status": {"containerStatuses": [{"state": {"running": {}}}]}}
        fakes.answers("job", json.dumps(found))
        fakes.answers("pods", json.dumps({"items": [pod]}))
        fakes.add("kubectl", 'case "$*" in *"get pods"*) next pods;; *" train-x7k2q "*) next job;; esac')

    return answer


def test_a_job_of_kubernetes_is_watched_by_its_name(run, fakes, mpijob, tmp_path, capsys):
    volume = tmp_path / "volume" / "train-x7k2q"
    simulated.start(volume, 2, 5)
    mpijob(volume)
    assert cli.main(["top", "train-x7k2q", "--once", "--namespace", "science"]) == 0
    assert "2 ranks" in capsys.readouterr().out
    assert fakes.calls[0].startswith("kubectl --namespace=science get mpijobs.kubeflow.org train-x7k2q ")
    assert cli.main(["report", "train-x7k2q"]) == 0 and (volume / "report.html").is_file()


INSIDE = "Within its launcher it is seen: kubectl exec -it train-x7k2q-launcher-a -- matex top /elsewhere/train-x7k2q\n"


@pytest.mark.parametrize(
    "folder, name, message",
    [
        ("/elsewhere/train-x7k2q", "train-x7k2q", f"which this machine does not see. {INSIDE}"),
        ("", "train-x7k2q", "nothing of train-x7k2q is recorded: that needs a volume"),
        ("", "train", "there is no folder train, and as a job: train is not known to Kubernetes, or no longer\n"),
    ],
)  # fmt: skip
def test_a_job_of_kubernetes_that_cannot_be_watched(run, mpijob, capsys, folder, name, message):
    mpijob(folder)
    for words in (["top"], ["report"]):
        assert cli.main([*words, name]) == 1 and message in capsys.readouterr().err


def test_a_number_that_is_no_job(run, fakes, capsys, monkeypatch):
    fakes.add("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert cli.main(["top", "12"]) == 1
    said = capsys.readouterr().err
    assert "job 12 is not known to Slurm" in said and "name it, for example runs/train-1" in said, said
    fakes.folder.joinpath("scontrol").unlink()
    monkeypatch.setenv("PATH", str(fakes.folder))
    assert cli.main(["report", "12"]) == 1 and "there is no scontrol on this machine" in capsys.readouterr().err
