"""Searches whose trials are jobs of Slurm, which stand-ins play: each is there once, whatever ends the search."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import fake_slurm
import fake_trials as fakes
import pytest
from fake_trials import PLAYS

import launch
import matex_tf
from matex_tf.deploy import following, slurm
from matex_tf.deploy.job import ENDED, FORGOTTEN, STUCK, WAITING, Job, State, UnreachableError
from matex_tf.launch import cli
from matex_tf.tune import command as tuning
from matex_tf.tune import search, setup
from matex_tf.tune.objective import Objective
from matex_tf.tune.trials import job_trial
from matex_tf.tune.trials.job_trial import JobTrial
from matex_tf.tune.trials.trial import FAILED, STOPPED, Rules

pytestmark = pytest.mark.waits

SAVING = Rules(Objective(), saves_states=True)
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=train-7
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --time=1:00:00
#SBATCH "--output=/a b/100%%/trial-7/output"
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --exclusive
submit_folder=$PWD run_folder='/a b/100%/trial-7'
child= asked=
trap 'asked=early; [ -z "$child" ] || { asked=told; kill -USR1 $child; }' USR1
rm -f "$run_folder/exit-code"
if ! grep -qsF "\\"job\\": \\"$SLURM_JOB_ID\\"" "$run_folder/job.json"; then
    submitted=$(SLURM_TIME_FORMAT=%s timeout 60 squeue --noheader --jobs="$SLURM_JOB_ID" --format=%V 2> /dev/null)
    [[ ${SLURM_RESTART_COUNT:-0} = 0 && $submitted =~ ^[0-9]+$ ]] || submitted=
    echo "{\\"cluster\\": \\"slurm\\", \\"job\\": \\"$SLURM_JOB_ID\\", \\"submitted\\": \\"$submitted\\"}" \\
        > "$run_folder/job.json.new" && mv "$run_folder/job.json.new" "$run_folder/job.json"
fi
export SLURM_EXPORT_ENV=ALL
module load openmpi
export RATE='two words'
export MATEX_TRIAL='/a b/100%/trial-7/noted.jsonl'
export MATEX_STATE='/a b/100%/trial-7/state'
export MATEX_PAUSE=3
echo "$SLURM_JOB_ID" > "$run_folder/began"
cd "$run_folder/place" || exit 78
matex run --restarts 3 -n 2 train.py --lr=0.1 & child=$!
[ "$asked" != early ] || kill -USR1 $child
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
wait $child 2> /dev/null; last=$?; [ $last -eq 127 ] || code=$last
[ -z "$asked" ] || [ $code -ne 138 ] || code=75
cd "$submit_folder"
echo $code > "$run_folder/exit-code"
exit $code
"""


def test_the_script_of_a_trial():
    asked = slurm.Slurm(name="train-7", ranks_per_node=2, time="1:00:00", setup=("module load openmpi",))
    folder = Path("/a b/100%/trial-7")
    text = job_trial.format_trial_job(
        asked, ["train.py", "--lr=0.1"], folder, {"RATE": "two words"}, replace(SAVING, pause=3)
    )
    assert text == SCRIPT


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(setup, "find_own_command", lambda: fakes.command(tmp_path))
    monkeypatch.setattr(following, "ASK_EACH", 0.1)
    monkeypatch.setattr(following, "LOOK_EACH", 0.02)
    found = fake_slurm.Slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(found.folder), prepend=os.pathsep)
    fakes.prepare(tmp_path, PLAYS)
    return found


def records(where="runs/tune-train-1"):
    database, found = setup.open_search(Path(where))
    return database.list_trials(found.id)


def made(number):
    return list(map(int, Path(f"runs/tune-train-1/trial-{number}/place/made").read_text().split()))


WORDS = ["--search", "space.yaml", "--slurm", "--partition", "all", "--rungs", "1,3"]


def test_a_search_by_jobs_is_that_of_here(cluster, monkeypatch, capfd):
    for name in ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_NTASKS", "PMIX_RANK", "MATEX_STATE"):
        monkeypatch.setenv(name, "1")
    assert cli.main(["tune", *WORDS, "--trials", "9", "--parallel", "3", "--time", "1:00:00", "train.py"]) == 0
    out = capfd.readouterr().out
    all_of = records()
    best = min((one for one in all_of if one.state == "done"), key=lambda one: one.value)
    assert f"  matex submit --slurm --time=1:00:00 --partition=all train.py --x={best.config['--x']}\n" in out
    assert [one.number for one in all_of] == list(range(1, 10)) and best.rungs
    for one in all_of:  # no epoch is made twice, and what was paused may go on
        assert made(one.number) == [point.epoch for point in one.curve] == list(range(1, len(one.curve) + 1))
        folder = Path(f"runs/tune-train-1/trial-{one.number}")
        assert (folder / "state").exists() == (one.state == "paused") == (not (folder / "job.json").exists())
    assert cluster.most_at_once <= 3 and cluster.queue == []
    names = {"OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_NTASKS", "PMIX_RANK", "MATEX_STATE"}
    assert not names & cluster.list_told(101).keys() and "PATH" in cluster.list_told(101)
    script = Path(f"runs/tune-train-1/trial-{best.number}/job.sh").read_text()
    assert f"#SBATCH --job-name=train-{best.number}\n" in script
    jobs = sum(call.startswith("sbatch") for call in cluster.calls)
    assert jobs == sum(max(len(one.rungs), 1) + (one.state == "done") for one in all_of)


def test_jobs_of_which_nothing_is_known_at_a_rung_run_to_their_ends(cluster, monkeypatch):
    found, find = [], job_trial.Jobs.find_trial
    monkeypatch.setattr(job_trial.Jobs, "find_trial", lambda *given: found.append(find(*given)) or found[-1])
    Path("train.py").write_text(PLAYS.replace('"val_loss":', '"val_loss" if epoch > 4 else "loss":'))
    Path("space.yaml").write_text("search:\n  --x: {float: [0, 0.8]}\n")
    assert cli.main(["tune", *WORDS, "--trials", "2", "--parallel", "2", "train.py"]) == 0
    assert [(one.state, made(one.number)) for one in records()] == [("done", list(range(1, 10)))] * 2
    assert sum(call.startswith("sbatch") for call in cluster.calls) == 4, "each ended at the first rung, and went on"
    assert found == [None] * 4, "an ended job is not taken for one that runs"


def start(*words, **environment):
    full = {**launch.environment(environment), "XDG_DATA_HOME": os.environ["XDG_DATA_HOME"], "PATH": os.environ["PATH"]}
    return subprocess.Popen(
        [sys.executable, fakes.__file__, *words], env=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition, what):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def test_a_search_that_is_killed_finds_its_jobs_again(cluster):
    draw, where = random.Random(1), Path("runs/tune-train-1")
    child = start(*WORDS, "--trials", "9", "--parallel", "2", "train.py", SLEEP="0.1")
    wait_for((where / "trial-1" / "job.sh").exists, "the search begins")
    for _ in range(3):
        time.sleep(draw.uniform(0.1, 1.0))
        child.kill()
        child.communicate()
        child = start("--resume", str(where), SLEEP="0.1")
    _, stderr = child.communicate(timeout=120)
    assert child.returncode == 0, stderr
    all_of = records()
    assert [one.number for one in all_of] == list(range(1, 10)) and "done" in {one.state for one in all_of}
    for one in all_of:  # the jobs went on, so that nothing was made twice
        assert made(one.number) == list(range(1, len(one.curve) + 1))
        assert (one.state == "failed") == (one.why == "val_loss is nan"), one.why
    assert cluster.queue == [] and cluster.most_at_once <= 2


def test_a_job_of_which_nothing_was_noted_is_found_in_the_queue(cluster):
    cluster.hold(True)
    child = start(*WORDS, "--trials", "1", "train.py")
    note = Path("runs/tune-train-1/trial-1/job.json")
    wait_for(note.exists, "the job is queued")
    child.kill()
    child.communicate()
    note.write_text("{")
    child = start("--resume", "runs/tune-train-1")
    wait_for(lambda: any(call.startswith("squeue") for call in cluster.calls), "it looks")
    child.send_signal(signal.SIGINT)
    stdout, _ = child.communicate(timeout=60)
    assert child.returncode == 130 and "To go on: matex tune --resume runs/tune-train-1" in stdout
    assert [call for call in cluster.calls if call.startswith(("sbatch", "scancel"))][1:] == ["scancel 101"]
    cluster.hold(False)
    assert setup.run_search(note.parents[1]).best.state == "done" and cluster.queue == []


def test_all_jobs_of_a_killed_search_are_taken_up_however_few_may_run_now(cluster):
    cluster.hold(True)
    child, where = start(*WORDS, "--trials", "4", "--parallel", "3", "train.py"), Path("runs/tune-train-1")
    wait_for(lambda: len(list(where.glob("trial-*/job.json"))) == 3, "the jobs are queued")
    child.kill()
    child.communicate()
    child = start("--resume", str(where), "--parallel", "1")
    wait_for(lambda: any(call.startswith("scontrol") for call in cluster.calls), "it asks for them")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 130 and cluster.queue == []
    cluster.hold(False)
    assert setup.run_search(where).best.state == "done"
    assert len(records()) == 4 and cluster.queue == []


def test_ctrl_c_ends_jobs_and_keeps_what_there_is(cluster):
    where = Path("runs/tune-train-1")
    child = start(*WORDS[:-2], "--trials", "3", "--parallel", "2", "train.py", SLEEP="0.3")
    wait_for((where / "trial-2" / "place" / "made").exists, "an epoch")
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130 and cluster.queue == [] and cluster.most_at_once == 2, stderr
    assert f"Ctrl-C: the trials that had ended are kept. To go on: matex tune --resume {where}" in stdout
    before = len(made(2))
    assert any(call.startswith("scancel --batch --signal=USR1") for call in cluster.calls) and 0 < before < 9
    assert setup.run_search(where).trials == 3
    assert made(2)[:before] == list(range(1, before + 1)) and len(records()[1].curve) == 9
    assert len(made(2)) <= 9 + 1, "what comes again is the epoch that was under way"


def test_what_slurm_refuses_is_said_in_its_words(cluster, capfd):
    cluster.add("sinfo", "printf 'big\\nall\\n'")
    working = (cluster.folder / "sbatch").read_text()
    cluster.add("sbatch", "echo 'sbatch: error: invalid partition specified: bath' >&2; exit 1")
    assert cli.main(["tune", *WORDS, "train.py"]) == 1
    said = capfd.readouterr().err
    assert "matex tune: sbatch: invalid partition specified: bath\nThat is: there is no such partition." in said
    assert "The partitions are: all, big" in said and "Once that is mended: matex tune --resume" in said
    assert cluster.queue == []
    (cluster.folder / "sbatch").write_text(working)
    cluster.allow(1)
    resumed = ["tune", "--resume", "runs/tune-train-1", "--partition", "big", "--trials", "3", "--parallel", "2"]
    assert cli.main(resumed) == 0
    said = capfd.readouterr().err
    assert said.count("a limit of your account is reached") == 1 and "The search goes on with 1 job at once" in said
    assert cluster.most_at_once == 1 and {len(made(one.number)) for one in records()} <= {1, 3, 9}
    assert all("--partition=big\n" in path.read_text() for path in Path("runs").glob("*/trial-*/job.sh"))


def test_a_slurm_that_is_away_for_a_while_is_asked_again(cluster, monkeypatch, capfd):
    monkeypatch.setattr(search, "RETRY_INTERVAL", 0.1)
    away = f"""
if [ $(cat {cluster.folder}/last) -gt 100 ] && [ $(wc -l < {cluster.folder}/missed) -lt 4 ]; then
    echo >> {cluster.folder}/missed
    echo "Unable to contact slurm controller (connect failure)" >&2; exit 1
fi
"""
    (cluster.folder / "missed").touch()
    for path in (cluster.folder / "sbatch", cluster.folder / "squeue"):
        first, _, others = path.read_text().partition("\n")
        path.write_text(f"{first}\n{away}{others}")
    assert cli.main(["tune", *WORDS, "--trials", "3", "--parallel", "1", "train.py"]) == 0
    said = capfd.readouterr().err
    assert said.count("it is asked again each 0 s") == 1 and "Unable to contact" in said, said
    assert len((cluster.folder / "missed").read_text()) == 4 and cluster.most_at_once == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (["--time", "5"], "--time goes with --slurm"),
        (["--slurm", "--time", "soon"], "expected time to be as 2:00:00"),
        (["--slurm", "-n", "3", "--nodes", "2"], "3 ranks cannot be as many on each of 2 nodes"),
        (["--slurm", "--partitoin", "all"], "there is no option --partitoin; did you mean --partition?"),
    ],
)
def test_wrong_words_start_nothing(cluster, words, message, capsys):
    assert cli.main(["tune", "--search", "space.yaml", *words, "train.py"]) == 2
    assert message in capsys.readouterr().err and not Path("runs").exists() and cluster.calls == []


def test_without_slurm(cluster, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))  # Slurm may be in /usr/bin
    assert cli.main(["tune", *WORDS, "train.py"]) == 1
    assert "there is no sbatch on this machine. Submit from a login node" in capsys.readouterr().err
    with pytest.raises(TypeError, match=r"expected cluster to be matex_tf.Slurm\(...\); given 'slurm'"):
        matex_tf.tune("train.py", search="space.yaml", cluster="slurm")
    assert not Path("runs").exists()


def test_the_command_line_wins_over_the_users_file(cluster):
    Path("matex.toml").write_text("[slurm]\nranks-per-node = 8\naccount = 'mine'\n")
    for given, ranks, each in (({}, None, 8), ({}, 3, 3), ({"nodes": 2}, 4, 2), ({"ranks_per_node": 2}, None, 2)):
        found = tuning._merge_job_options((), ranks, given)
        assert (found["slurm"]["ranks_per_node"], found["slurm"]["account"]) == (each, "mine")
        assert found["ranks"] == each * given.get("nodes", 1)


def test_from_python(cluster):
    found = matex_tf.tune("train.py", search="space.yaml", trials=1, cluster=matex_tf.Slurm(partition="all"))
    assert found.command.startswith("matex submit --slurm --partition=all train.py --x=") and cluster.queue == []
    with pytest.raises(setup.NoSearchError, match="expected time to be"):
        setup.run_search(Path(found.folder), slurm={"time": "soon"})


def test_where_slurm_does_not_answer_the_search_ends_and_says_what_may_run(tmp_path, monkeypatch):
    def answer(job):
        raise UnreachableError("scontrol: Unable to contact slurm controller")

    monkeypatch.setattr(slurm.SLURM, "find_state", answer)
    monkeypatch.setattr(slurm.SLURM, "end_job", answer)
    monkeypatch.setattr(following, "ASK_EACH", 0.0)
    monkeypatch.setattr(job_trial, "GRACE", 0.0)
    said = []
    trial = JobTrial(
        tmp_path,
        Job("7", str(tmp_path)),
        Rules(Objective(), saves_states=True),
        0.0,
        lambda text, kind: said.append(text),
    )
    (tmp_path / "job.json").touch()
    assert trial.poll() is None and said == ["scontrol: Unable to contact slurm controller; it is asked again"]
    trial.stop_trial("")
    time.sleep(0.01)
    assert trial.poll().state == STOPPED and said[-1] == "job 7 may still run: scancel 7"
    assert (tmp_path / "job.json").exists(), "a search that goes on finds it again, and ends it"


def test_a_job_that_slurm_queues_again_waits_and_what_that_means_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "ASK_EACH", 0.0)
    state = State(WAITING, "PENDING (BeginTime)", restarts=1, meaning="Slurm lets some time pass")
    monkeypatch.setattr(slurm.SLURM, "find_state", lambda job: state)
    said = []
    trial = JobTrial(
        tmp_path,
        Job("7", str(tmp_path)),
        replace(SAVING, limit=9.0),
        0.0,
        lambda *told: said.append(told),
    )
    (tmp_path / job_trial.BEGAN).write_text("7\n")
    os.utime(tmp_path / job_trial.BEGAN, (0, 0))
    trial.waits = False
    assert trial.seconds > 9 and trial.poll() is None and trial.waits and trial.seconds == 0
    assert not (tmp_path / job_trial.STOP_REQUEST).exists(), "its limit counts while it runs"
    assert said == [("job 7 PENDING (BeginTime), requeued (1): Slurm lets some time pass", "PENDING (BeginTime)")]


@pytest.mark.parametrize(
    "state, kept, expected, why",
    [
        (State(ENDED, "TIMEOUT"), True, STOPPED, ""),
        (State(ENDED, "NODE_FAIL"), False, FAILED, "NODE_FAIL"),
        (State(ENDED, "CANCELLED", code=143), True, FAILED, "CANCELLED"),
        (State(ENDED, "OUT_OF_MEMORY"), True, FAILED, "OUT_OF_MEMORY"),
        (State(ENDED, "FAILED", code=1), False, FAILED, "no output: does the job's node see"),
        (State(ENDED, "FAILED", code=78), True, FAILED, "exit code 78"),
        (State(FORGOTTEN, "is not known"), True, FAILED, "its job is not known"),
    ],
)
def test_what_a_job_cannot_tell_slurm_does(tmp_path, monkeypatch, state, kept, expected, why):
    monkeypatch.setattr(following, "ASK_EACH", 0.0)
    monkeypatch.setattr(slurm.SLURM, "find_state", lambda job: state)
    trial = JobTrial(tmp_path, Job("7", str(tmp_path)), SAVING, 0.0, lambda text, kind: None)
    if kept:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "state-1").touch()
        (tmp_path / "output").touch()
    (tmp_path / job_trial.BEGAN).write_text("7\n")
    outcome = trial.poll()
    assert outcome.state == expected and why in outcome.why
    assert (tmp_path / job_trial.BEGAN).exists() == (expected == FAILED), "what goes on is submitted again"


def test_a_trial_whose_job_will_not_start_has_failed(tmp_path, monkeypatch):
    cancelled = []
    monkeypatch.setattr(
        slurm.SLURM, "find_state", lambda _: State(STUCK, "PENDING (BadConstraints)", meaning="it will not start")
    )
    monkeypatch.setattr(slurm.SLURM, "end_job", lambda one: cancelled.append(one.id))
    monkeypatch.setattr(following, "ASK_EACH", 0.0)
    trial = JobTrial(tmp_path, Job("4711", str(tmp_path)), Rules(Objective()), 0.0, lambda text, kind: None)
    outcome = trial.poll()
    assert outcome.state == FAILED and "will not start" in outcome.why and cancelled == ["4711"]
