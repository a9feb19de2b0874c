"""What becomes of a trial: the objective, or why there is none; what it has for itself; that it ends."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from matex_tf.launch.mpirun_command import Mpirun, choose_options
from matex_tf.tune.objective import Objective, Point
from matex_tf.tune.trials import slots
from matex_tf.tune.trials.process_trial import Processes
from matex_tf.tune.trials.process_trial import ProcessTrial as Trial
from matex_tf.tune.trials.trial import DONE, FAILED, STOPPED, Rules, Slot, hold_folder
from matex_tf.world.hosts.host_lists import Host

HEAD = """
import json, os, signal, sys, time
def note(**line):
    open(os.environ["MATEX_TRIAL"], "a").write(json.dumps(line) + "\\n")
"""


VAL_LOSS = Objective()


def start(folder, program, objective=VAL_LOSS, variables=None, slot=None, **rules):
    (folder / "place").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", HEAD + program]
    return Trial(folder, command, variables or {}, Rules(objective, **rules), slot or Slot())


def end_of(trial):
    until = time.monotonic() + 60
    while (outcome := trial.poll()) is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    return outcome


def outcome(folder, program, *rest, **options):
    return end_of(start(folder, program, *rest, **options))


def test_what_is_logged(tmp_path):
    trial = start(
        tmp_path,
        "note(task={'rows': 3})\nnote(epoch=1, logs={'val_loss': 2.0})\nnote(epoch=2, logs={'val_loss': 1.0})\n"
        "print('end')",
    )
    found = end_of(trial)
    assert (found.state, found.value, found.curve) == (DONE, 1.0, (Point(1, 2.0), Point(2, 1.0)))
    assert trial.lines[0] == {"task": {"rows": 3}} and found.tail == "end" and found.seconds > 0


def test_what_is_printed(tmp_path):
    assert outcome(tmp_path, "print('test loss 0.5')", Objective(regex=r"loss ([\d.]+)")).value == 0.5


@pytest.mark.parametrize(
    "program, objective, kind, why",
    [
        ("print('no such flag', file=sys.stderr); sys.exit(2)", Objective(), "exit code 2", "exit code 2"),
        ("note(epoch=1, logs={'val_loss': 1.0}); sys.exit(1)", Objective(), "exit code 1", "exit code 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Objective(), "ended by signal 11", "ended by signal 11"),
        (
            "note(epoch=1, logs={'loss': 1.0})",
            Objective(),
            "objective",
            "the logged values are loss: fit has no validation",
        ),
        ("", Objective(), "objective", "val_loss never appeared: no epoch"),
        ("note(epoch=1, logs={'val_loss': float('nan')})", Objective(), "number", "val_loss is nan"),
        ("note(epoch=1, logs={'val_loss': float('inf')})", Objective(), "number", "val_loss is inf"),
        ("print('loss x')", Objective(regex="loss (.)"), "objective", "matched 'x', which is not a number"),
    ],
)
def test_failures(tmp_path, program, objective, kind, why):
    found = outcome(tmp_path, program, objective)
    assert (found.state, found.kind) == (FAILED, kind) and why in found.why and found.value is None
    if "flag" in program:
        assert found.tail == "no such flag"


def test_a_limit_of_time(tmp_path):
    trial = start(tmp_path, "note(epoch=1, logs={'val_loss': 1.0}); time.sleep(100)", limit=0.3)
    while not trial.lines:
        trial.read_new_lines()
    found = end_of(trial)
    assert (found.state, found.kind, found.why) == (FAILED, "limit", "longer than 0.3 s") and len(found.curve) == 1


def test_a_trial_that_does_not_listen_is_killed_with_all_that_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr("matex_tf.tune.trials.process_trial.GRACE", 0.2)
    program = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("child", "w").write(str(child.pid))
time.sleep(100)
"""
    trial = start(tmp_path, program)
    while not (path := tmp_path / "place" / "child").exists() or not path.read_text():
        time.sleep(0.01)
    trial.stop_trial("")
    assert end_of(trial).state == STOPPED
    assert is_gone(path.read_text())


def test_what_a_trial_leaves_behind_is_ended(tmp_path):
    program = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print(child.pid)
"""
    assert is_gone(outcome(tmp_path, program).tail)


def is_gone(process):
    """Whether a process is none any more; nobody may have waited for it."""
    until = time.monotonic() + 10
    while os.path.exists(f"/proc/{process}/exe") and time.monotonic() < until:
        time.sleep(0.01)
    return not os.path.exists(f"/proc/{process}/exe")


def test_what_a_trial_has_for_itself(tmp_path, monkeypatch):
    names = {"OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMIX_RANK", "MATEX_RECORD", "MATEX_STATE", "MATEX_LOG_DIR"}
    for name in (*names, "MATEX_TRIAL"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OMPI_MCA_btl", "self")
    cpu = max(os.sched_getaffinity(0))
    program = "print(json.dumps([sorted(os.sched_getaffinity(0)), dict(os.environ), os.getcwd()]))"
    trial = start(tmp_path, program, variables={"SEED": "3"}, slot=Slot((cpu,), ("1", "3")))
    end_of(trial)
    cpus, environment, folder = json.loads((tmp_path / "output").read_text())
    assert cpus == [cpu] and folder == str(tmp_path / "place")
    assert environment["SEED"] == "3" and environment["CUDA_VISIBLE_DEVICES"] == "1,3"
    options = choose_options(Mpirun("mpirun", "Open MPI", "5.0"), 2, 2, False, ["--host", "a,b"], environment)
    assert "-x SEED" in " ".join(options), "ranks on other hosts have it, too"
    assert environment["OMPI_MCA_btl"] == "self" and environment["MATEX_TRIAL"] == str(tmp_path / "noted.jsonl")
    assert not names & environment.keys()


def test_a_folder_is_held_by_the_trial_that_runs_there(tmp_path, monkeypatch):
    monkeypatch.setattr("matex_tf.tune.trials.trial.GRACE", 0.2)
    trial = start(tmp_path, "time.sleep(100)")
    with pytest.raises(TimeoutError, match="still runs"), hold_folder(tmp_path):
        pass
    trial.stop_trial("")
    end_of(trial)
    with hold_folder(tmp_path):
        pass


def test_half_a_line_is_read_once_it_is_whole(tmp_path):
    trial = start(tmp_path, "time.sleep(100)")
    (tmp_path / "noted.jsonl").write_text('{"epoch": 1}\n{"epo')
    trial.read_new_lines()
    assert trial.lines == [{"epoch": 1}]
    with (tmp_path / "noted.jsonl").open("a") as file:
        file.write('ch": 2}\n')
    for _ in range(2):
        trial.read_new_lines()
        assert trial.lines == [{"epoch": 1}, {"epoch": 2}]
    trial.stop_trial("")
    assert end_of(trial).state == STOPPED


def test_cores_and_gpus_are_dealt():
    cores = [(0, 4), (1, 5), (2, 6), (3, 7)]
    dealt = slots.deal_slots(cores, ["0", "1", "2"], 2)
    assert [slot.cpus for slot in dealt] == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert [slot.gpus for slot in dealt] == [("0", "2"), ("1",)]
    shared = slots.deal_slots(cores[:1], ["0", "1"], 3)
    assert [slot.cpus for slot in shared] == [(0, 4)] * 3, "what is too little is shared"
    assert [slot.gpus for slot in shared] == [("0", "1"), ("1", "0"), ("0", "1")]
    assert slots.deal_slots(cores[:1], [], 2) == [Slot((0, 4))] * 2


@pytest.mark.parametrize("visible, gpus", [(None, [("0",), ("1",)]), ("2, 5", [("2",), ("5",)]), ("", [(), ()])])
def test_trials_share_the_gpus_that_are_visible(monkeypatch, visible, gpus):
    monkeypatch.setattr(slots.placement, "count_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [slot.gpus for slot in slots.make_slots(2, 1, [], "")] == gpus


HOSTS = [Host("a", 2), Host("b", 2), Host("c", 4)]


def test_hosts_are_dealt(tmp_path, monkeypatch):
    assert slots.deal_hosts(HOSTS, 2) == [Slot(hosts=(HOSTS[0],)), Slot(hosts=(HOSTS[1], HOSTS[2]))]
    shared = [(slot.hosts[0].name, slot.part) for slot in slots.deal_hosts(HOSTS, 5)]
    assert shared == [("a", "1/2"), ("a", "2/2"), ("b", "1/2"), ("b", "2/2"), ("c", "")]
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\nc slots=4\n")
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    words = ["--hostfile", "hosts", "--mca", "pml", "ob1"]
    assert slots.make_slots(3, 2, words, str(tmp_path)) == [Slot(hosts=(host,)) for host in HOSTS]
    assert slots.make_slots(1, 8, words, str(tmp_path))[0].hosts == (), "one trial at a time has all of them"
    assert slots.make_slots(2, 1, ["--host", "localhost:4"], "")[0].hosts == (), "cores of this machine are dealt"
    with pytest.raises(
        slots.HostsError, match=r"has 4 ranks, but one of 3 concurrent trials would have the host a \(2\)"
    ):
        slots.make_slots(3, 4, words, str(tmp_path))
    assert len(slots.make_slots(5, 1, words, str(tmp_path))) == 5
    with pytest.raises(
        slots.HostsError, match=r"has 2 ranks, but one of 5 concurrent trials would have the host a \(2 of 2 trials\)"
    ):
        slots.make_slots(5, 2, words, str(tmp_path))


def test_a_trial_in_an_allocation_has_hosts_of_its_own(tmp_path, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_PROCID", "SLURM_STEP_ID"):
        monkeypatch.setenv(name, "1")
    step = {"SLURM_NNODES": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_NTASKS": "1"}
    job = {"SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_CPUS_PER_NODE": "2(x2),4"}
    for name, value in {**step, **job}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "place").mkdir()
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    starts = Processes([sys.executable, "-c", program], 2, ["--hostfile", "hosts", "--strategy", "sharded"])
    slot = Slot(hosts=(HOSTS[0],), part="2/2")
    end_of(starts.start_trial(tmp_path, ["train.py", "--host", "x"], {}, Rules(VAL_LOSS), slot))
    words, environment = json.loads((tmp_path / "output").read_text())
    assert words == "run -n 2 --strategy sharded --host a:2 train.py --host x".split()
    assert environment["MATEX_PLACEMENT"] == "spread:2/2" and environment["SLURM_OVERLAP"] == "1"
    assert "SLURM_JOB_NODELIST" in environment, "by which mpirun reaches them"
    assert (environment["SLURM_NNODES"], environment["SLURM_TASKS_PER_NODE"]) == ("3", "2(x2),4"), "not of its step"
    assert not {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS"} & environment.keys()
