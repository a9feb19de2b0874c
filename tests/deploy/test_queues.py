"""Jobs of PBS, LSF and Flux: their text, the answers of schedulers, and a run that goes on in another job."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from matex_tf.deploy import command, run_folder
from matex_tf.deploy.clusters import CLUSTERS, KINDS
from matex_tf.deploy.job import ENDED, FORGOTTEN, RUNNING, WAITING, Job, JobError, UnreachableError
from matex_tf.launch import cli

# The options of two nodes with two ranks each, of four cores and one GPU, for two hours, by each manual.
OPTIONS = {
    "pbs": """\
#PBS -N my_train
#PBS -l select=2:ncpus=8:mpiprocs=2:ngpus=2
#PBS -l place=scatter
#PBS -l walltime=2:00:00
#PBS -A science
#PBS -q long
#PBS -o runs/a-1/scheduler-output
#PBS -j oe
#PBS -r y
#PBS -V
#PBS -S /bin/bash
#PBS -l mem=8gb
cd "$PBS_O_WORKDIR" || exit 78
""",
    "lsf": """\
#BSUB -J my_train
#BSUB -n 16
#BSUB -R "span[ptile=8]"
#BSUB -gpu "num=2"
#BSUB -W 2:00
#BSUB -P science
#BSUB -q long
#BSUB -o runs/a-1/scheduler-output
#BSUB -r
#BSUB -l mem=8gb
""",
    "flux": """\
# flux: --job-name=my_train
# flux: --nodes=2
# flux: --nslots=4
# flux: --cores-per-slot=4
# flux: --gpus-per-slot=1
# flux: --time-limit=7200s
# flux: --bank=science
# flux: --queue=long
# flux: --output=runs/a-1/scheduler-output
# flux: -l mem=8gb
""",
}
WHOLE = {"pbs": "#PBS -l place=scatter:exclhost\n", "lsf": "#BSUB -x\n", "flux": "# flux: --exclusive\n"}
QUEUES = [*OPTIONS]
BIN = "/usr/bin:/bin"
pytestmark = pytest.mark.usefixtures("nothing_of_this_user")


@pytest.mark.parametrize("queue", QUEUES)
def test_the_options_of_a_job(queue):
    asked = KINDS[queue](
        nodes=2, ranks_per_node=2, cpus=4, gpus_per_node=2, time="2:00:00", name="my train", account="science",
        queue="long", option=["-l mem=8gb"],
    )  # fmt: skip
    text = CLUSTERS[queue].format_job(asked, ["train.py"], "runs/a-1")
    assert text.startswith("#!/bin/bash\n" + OPTIONS[queue] + "submit_folder=$PWD run_folder=")
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert WHOLE[queue] not in text and WHOLE[queue] in CLUSTERS[queue].format_job(
        KINDS[queue](name="a"), ["train.py"], "runs/a-1"
    )


ANSWERS = {
    "pbs": """
case "$*" in *-W*) echo "102.server";; *) echo "101.server"; esac
""",
    "lsf": """
cat > /dev/null
case "$*" in *-w*) n=102;; *) n=101;; esac; echo "Job <$n> is submitted to queue <long>."
""",
    "flux": """
case "$*" in "getattr jobid") echo f101;; hostlist*) cat "$FAKE_HOSTS";; "--parent batch"*) echo f102;;
*) echo f101;; esac
""",
}
NUMBERS = {"pbs": ("101.server", "102.server"), "lsf": ("101", "102"), "flux": ("f101", "f102")}
SUBMITS = {"pbs": "qsub", "lsf": "bsub", "flux": "flux"}
NEXT = {
    "pbs": "qsub -W depend=afterany:101.server runs/a-1/job.sh",
    "lsf": "bsub -w ended(101)",
    "flux": "flux --parent batch --dependency=afterany:f101 runs/a-1/job.sh",
}


def run_job(fakes, queue, body, hosts="h1\nh1\nh2\nh2\n", warn=False, time="", setup=("echo set up",), answer=""):
    """The script of a job of two nodes, whose `matex` is `body`: its exit code and what it printed."""
    fakes.add("matex", body)
    fakes.add(SUBMITS[queue], answer or ANSWERS[queue])
    asked = KINDS[queue](nodes=2, ranks_per_node=2, name="a", matex="matex", time=time, setup=setup)
    folder = run_folder.make_folder("a")
    (folder / "job.sh").write_text(CLUSTERS[queue].format_job(asked, ["train.py"], str(folder)))
    here = fakes.folder.parent
    (here / "node-file").write_text(hosts)
    files = dict.fromkeys(("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "FAKE_HOSTS"), str(here / "node-file"))
    env = {"PATH": os.environ["PATH"], "PBS_JOBID": "101.server", "LSB_JOBID": "101", "PBS_O_WORKDIR": str(here)}
    with subprocess.Popen(["bash", folder / "job.sh"], cwd=here, env=env | files) as child:
        if warn:
            while not (here / "began").exists():
                assert child.poll() is None
            child.send_signal(signal.SIGUSR1)
        code = child.wait(timeout=30)
    return code, (folder / "output").read_text(), folder


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("code", [0, 3])
def test_a_job_runs_on_its_hosts_and_notes_its_exit_code(fakes, queue, code):
    fakes.add("sleep", "exec /bin/sleep 60")
    body = f"until grep -q ^sleep {fakes.folder}/calls; do :; done; exit {code}"
    # 10 minutes without 2 for the end, of which the setup took 100 seconds
    found, output, folder = run_job(fakes, queue, body, time="10:00", setup=("SECONDS=100; echo set up",))
    assert {"sleep 380", "sleep 379"} & set(fakes.calls)
    assert found == code and (folder / "exit-code").read_text() == f"{code}\n" and output == "set up\n"
    assert (folder / "hosts").read_text() == "h1 slots=2\nh2 slots=2\n"
    assert f"matex run --restarts 3 -n 4 --hostfile {folder.absolute()}/hosts train.py" in fakes.calls
    cluster, job = run_folder.read_note(folder)
    assert (cluster, job.id) == (queue, NUMBERS[queue][0])


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("how", ["warned", "asks", "limit"])
def test_a_run_that_is_to_go_on_does_so_in_another_job(fakes, queue, how):
    """Also one that the script itself warns of the time limit, and one that ends by that warning."""
    body = "exit 75" if how == "asks" else "touch began; exec sleep 60"
    code, output, folder = run_job(fakes, queue, body, warn=how == "warned", time="0:01" if how == "limit" else "")
    told = "ended with exit code 75" if how == "asks" else "asked to end"
    first, second = NUMBERS[queue]
    assert code == 75 and f"matex: job {first} {told} after 0:00:0" in output and "no state yet" in output
    assert f"matex: job {first} goes on as job {second}\n" in output and NEXT[queue] in fakes.calls
    assert run_folder.read_note(folder)[1].id == second and not (folder / "exit-code").exists()
    # The user knows the first job.
    assert command.find_job(first, "") == (CLUSTERS[queue], Job(first, str(folder)))
    assert CLUSTERS[queue].find_newest(Job(first, str(folder))).id == second


@pytest.mark.parametrize("queue", QUEUES)
def test_a_job_whose_setup_changes_the_folder_goes_on(fakes, queue, tmp_path):
    """The command runs in the new folder and finds its hosts. The successor is submitted from the old folder."""
    (tmp_path / "else where").mkdir()
    body = 'pwd; while [ "$1" != --hostfile ]; do shift; done; cat "$2"; exit 75'
    is_here = f'[ "$PWD" = {shlex.quote(str(tmp_path))} ] && [ -f runs/a-1/job.sh ]'
    answer = f'case "$*" in *afterany*|*ended*) {is_here} || exit 1;; esac{ANSWERS[queue]}'
    code, output, _ = run_job(fakes, queue, body, setup=('cd "else where"',), answer=answer)
    assert output.startswith(f"{tmp_path}/else where\nh1 slots=2\nh2 slots=2\n")
    first, second = NUMBERS[queue]
    assert code == 75 and f"matex: job {first} goes on as job {second}\n" in output and NEXT[queue] in fakes.calls


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("name", ["my train", "a'b\"c", "$HOME;%j{{id}}", "-o", "ä\\"])
def test_the_output_of_a_job_of_any_name_is_one_plain_word(queue, name):
    folder = run_folder.make_folder(name)
    text = CLUSTERS[queue].format_job(KINDS[queue](name=name), ["a.py"], str(folder))
    (path,) = re.findall(r"(?m)^(?:#PBS -o |#BSUB -o |# flux: --output=)(.*)$", text)
    assert re.fullmatch(r"runs/[A-Za-z0-9._-]+/scheduler-output", path) and Path(path).parent == folder


@pytest.mark.parametrize("queue", QUEUES)
def test_a_job_that_cannot_go_on_says_so(fakes, queue):
    fakes.add("matex", "exit 75")
    folder = run_folder.make_folder("a")
    script = CLUSTERS[queue].format_job(KINDS[queue](name="a", matex="matex"), ["a.py"], str(folder))
    fakes.add(SUBMITS[queue], 'case "$*" in "getattr jobid") echo f101;; *) echo not allowed here; exit 1;; esac')
    env = {"PATH": os.environ["PATH"], "PBS_JOBID": "101.server", "LSB_JOBID": "101", "PBS_O_WORKDIR": os.getcwd()}
    assert subprocess.run(["bash", "-c", script], env=env).returncode == 75
    assert "took no job that goes on" in (folder / "output").read_text()
    assert run_folder.read_note(folder)[1].id == NUMBERS[queue][0] and (folder / "exit-code").read_text() == "75\n"


def test_a_job_without_the_hosts_that_it_asked_for_does_not_run(fakes):
    """Ranks would share a host in silence. The clock of its time limit does not outlive it."""
    fakes.add("sleep", "")
    code, output, _ = run_job(fakes, "pbs", "exit 0", hosts="h1\nh1\n", time="1:00:00")
    assert code == os.EX_CONFIG and "was to have 2 hosts, and has: h1" in output
    assert not any(call.startswith(("matex", "sleep")) for call in fakes.calls)


# What schedulers say of jobs, as their manuals and sources have it

PBS_JOB = (
    "Job Id: 1.s\n    Job_Name = a\n    job_state = {}\n    exec_host = h1/0*2+h2/0*2\n{}"
    "    comment = Not Running:\n\tNo\n"
)
STATES = {
    "pbs": [
        (PBS_JOB.format("Q", ""), WAITING, "QUEUED", None),
        (PBS_JOB.format("H", ""), WAITING, "HELD", None),
        (PBS_JOB.format("R", ""), RUNNING, "RUNNING on h1, h2", None),
        (PBS_JOB.format("F", "    Exit_status = 3\n"), ENDED, "FINISHED", 3),
        (PBS_JOB.format("F", "    Exit_status = 271\n"), ENDED, "FINISHED", 128 + 15),
        (PBS_JOB.format("F", "    Exit_status = -3\n"), ENDED, "FINISHED", 1),
        ("Job Id:\t1\n\tjob_state = C\n\texec_host = h1/1+h2/1\n\n", ENDED, "FINISHED", None),
    ],
    "lsf": [
        ("PEND|-|-|New job is waiting for scheduling;\n", WAITING, "PENDING (New job is waiting", None),
        ("RUN|-|8*h1:8*h2|-\n", RUNNING, "RUNNING on h1, h2", None),
        ("DONE|-|8*h1:8*h2|-\n", ENDED, "DONE", 0),
        ("EXIT|3|h1|-\n", ENDED, "EXIT", 3),
        ("EXIT|-|-|-\n", ENDED, "EXIT", None),
    ],
    "flux": [
        ("DEPEND|||depends:after-any=f1\n", WAITING, "DEPEND (depends:after-any=f1)", None),
        ("SCHED|||eta:now\n", WAITING, "SCHED", None),
        ("RUN||h[1-2]|h[1-2]\n", RUNNING, "RUNNING on h[1-2]", None),
        ("COMPLETED|0|h1|h1\n", ENDED, "COMPLETED", 0),
        ("FAILED|3|h1|h1\n", ENDED, "FAILED", 3),
        ("TIMEOUT|-15|h1|h1\n", ENDED, "TIMEOUT", 128 + 15),
        ("CANCELED|-128||\n", ENDED, "CANCELED", None),
    ],
}


@pytest.mark.parametrize("queue, text, phase, words, code", [(q, *one) for q in QUEUES for one in STATES[q]])
def test_what_a_scheduler_says_of_a_job(queue, text, phase, words, code):
    found = CLUSTERS[queue].read_state(text)
    assert (found.phase, found.code) == (phase, code) and found.words.startswith(words)
    assert CLUSTERS[queue].read_state("") is None


UNKNOWN = {
    "pbs": ("qstat", "echo 'qstat: Unknown Job Id 1.server' >&2; exit 153"),
    "lsf": ("bjobs", "echo 'Job <1> is not found' >&2; exit 255"),
    "flux": ("flux", "echo 'flux-jobs: ERROR: job f1 not found' >&2; exit 1"),
}


@pytest.mark.parametrize("queue", QUEUES)
def test_the_end_of_a_job_that_its_scheduler_has_forgotten(fakes, queue, tmp_path):
    fakes.add(*UNKNOWN[queue])
    does, job = CLUSTERS[queue], Job("1", str(tmp_path))
    assert does.find_state(job).phase == FORGOTTEN
    (tmp_path / run_folder.EXIT_CODE).write_text("7\n")
    assert (does.find_state(job).phase, does.find_state(job).code) == (ENDED, 7)
    fakes.add(UNKNOWN[queue][0], "echo 'cannot connect to server' >&2; exit 1")
    with pytest.raises(UnreachableError, match="cannot connect"):
        does.find_state(job)


REFUSALS = {
    "pbs": ("qsub: Unknown queue\n", "qstat", "Queue Max\n----- ---\nlong 0\nshort 0\n"),
    "lsf": ("nosuch: No such queue. Job not submitted.\n", "bqueues", "long\nshort\n"),
    "flux": ("flux-batch: ERROR: [Errno 22] Invalid queue 'nosuch' specified\n", "flux", "long\nshort\n"),
}


@pytest.mark.parametrize("queue", QUEUES)
def test_a_refused_job_leaves_nothing_and_names_the_queues(fakes, queue, tmp_path):
    says, lists, queues = REFUSALS[queue]
    (tmp_path / "says").write_text(says)
    (tmp_path / "queues").write_text(queues)
    fakes.add(lists, "cat queues")
    is_one = lists == SUBMITS[queue]
    fakes.add(SUBMITS[queue], f"{'[ $1 = batch ] || { cat queues; exit; }' if is_one else ''}\ncat says >&2; exit 1")
    with pytest.raises(JobError, match="there is no such queue.* The queues are: long, short"):
        CLUSTERS[queue].submit_job(KINDS[queue](name="a", queue="nosuch", cpus=1), ["a.py"])
    assert not any(tmp_path.glob("runs/*"))


@pytest.mark.parametrize("queue", QUEUES)
def test_a_job_that_cannot_be_noted_is_cancelled(fakes, queue, monkeypatch):
    """The disk is full, for example. The folder that the job needs does not remain."""
    fakes.add(SUBMITS[queue], ANSWERS[queue])
    cancel = CLUSTERS[queue].cancel_command
    if queue != "flux":
        fakes.add(cancel[0], "")
    monkeypatch.setattr(run_folder, "write_note", Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        CLUSTERS[queue].submit_job(KINDS[queue](name="a"), ["a.py"])
    assert fakes.calls[-1] == " ".join([*cancel, NUMBERS[queue][0]]) and not any(Path("runs").iterdir())


@pytest.mark.parametrize("queue", QUEUES)
def test_what_a_job_does_without_is_said(fakes, queue, capsys):
    fakes.add(SUBMITS[queue], ANSWERS[queue])
    CLUSTERS[queue].submit_job(KINDS[queue](name="a"), ["a.py"])
    assert ["--cpus" in line or "--time" in line for line in capsys.readouterr().err.splitlines()] == [True, True]
    CLUSTERS[queue].submit_job(KINDS[queue](name="a", cpus=1, time="1:00:00"), ["a.py"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("queue", QUEUES)
def test_a_machine_without_the_scheduler_says_where_to_submit(queue, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "a.py").touch()
    assert cli.main(["submit", f"--{queue}", "a.py"]) == 1
    told = capsys.readouterr().err
    assert f"there is no {SUBMITS[queue]} on this machine. Submit from a login node" in told
    assert "--cpus" not in told and not (tmp_path / "runs").exists()
    assert not any(tmp_path.glob("runs/*"))


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize(
    "words, said",
    [
        (["--partition", "all"], "--partition goes with --slurm"),
        (["--queue", "a b"], "expected queue to be one word"),
        (["--cpus", "0"], "expected cpus to be a whole number"),
        (["--option", "mem=8gb"], "expected option to be one line that begins with -"),
        (["--time", "2h"], "expected time to be as 2:00:00"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(fakes, queue, words, said, tmp_path, capsys):
    (tmp_path / "a.py").touch()
    assert cli.main(["submit", f"--{queue}", *words, "a.py"]) == 2
    assert said in capsys.readouterr().err and fakes.calls == []


@pytest.mark.parametrize("queue", QUEUES)
def test_a_job_is_followed_into_the_one_that_goes_on_and_cancelled_there(fakes, queue, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("matex_tf.deploy.following.ASK_EACH", 0.0)
    monkeypatch.setattr("matex_tf.deploy.following.LOOK_EACH", 0.0)
    (tmp_path / "a.py").touch()
    ended, running = STATES[queue][3][0], STATES[queue][2 if queue != "lsf" else 1][0]
    first, second = NUMBERS[queue]
    note = json.dumps({"cluster": queue, "job": second})
    (tmp_path / "ended").write_text(ended)
    (tmp_path / "running").write_text(running)
    (tmp_path / "count").write_text("")
    # The first job notes the second once it is asked for; the second is seen to run, then to have ended.
    tells = f"""
echo >> count
case "$*" in *{first}*) echo '{note}' > runs/a-1/job.json; cat ended;;
*) [ $(wc -l < count) -lt 4 ] && cat running || cat ended;; esac
"""
    if queue == "flux":
        fakes.add("flux", f'case "$1" in batch) echo {first};; cancel) exit 0;; *) {tells};; esac')
    else:
        fakes.add(SUBMITS[queue], ANSWERS[queue])
        fakes.add(CLUSTERS[queue].list_command, tells)
        fakes.add(CLUSTERS[queue].cancel_command[0], "exit 0")
    code = cli.main(["submit", f"--{queue}", "--cpus", "1", "a.py"])
    said = capsys.readouterr().err
    assert f"{first} RUNNING on " in said and f", as job {second}\n" in said, said
    assert code == (3 if queue == "pbs" else 0 if queue == "flux" else 3)
    (tmp_path / "count").write_text("")
    assert cli.main(["cancel", "runs/a-1"]) == 0
    assert any(call.endswith(second) and ("del" in call or "kill" in call or "cancel" in call) for call in fakes.calls)


@pytest.mark.parametrize(
    "name, command", [("12.server", "qstat"), ("12[3].server", "qstat"), ("12", "bjobs"), ("12", "qstat")]
)
def test_a_job_without_a_folder_here_is_asked_for_where_such_names_are(fakes, name, command, monkeypatch, capsys):
    """A number alone is one of the scheduler whose commands this machine has."""
    monkeypatch.setattr("matex_tf.deploy.command.shutil.which", lambda one: command if one == command else None)
    fakes.add(command, "echo 'Unknown Job Id, is not found' >&2; exit 1")
    assert cli.main(["follow", name]) == 1
    assert f"{name} is not known to {'LSF' if command == 'bjobs' else 'PBS'}" in capsys.readouterr().err


@pytest.mark.parametrize("queue", QUEUES)
def test_a_job_that_has_a_folder_here_is_found_by_its_name(fakes, queue, tmp_path, capsys):
    folder = run_folder.make_folder("a")
    run_folder.write_note(folder, queue, "77")
    (folder / run_folder.EXIT_CODE).write_text("9\n")
    for note in ("", "[]", "{}"):  # a full disk has left them
        (run_folder.make_folder("damaged") / run_folder.NOTE).write_text(note)
    fakes.add(*UNKNOWN[queue])
    assert cli.main(["follow", "77"]) == 9
    assert "77 ENDED, exit code 9" in capsys.readouterr().err
