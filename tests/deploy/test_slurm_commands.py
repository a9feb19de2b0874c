"""What `matex submit`, `follow` and `cancel` ask of Slurm and make of its answers, which stand-ins give."""

from __future__ import annotations

import getpass
import io
import json
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from fake_commands import Fakes

from matex_tf.deploy import following, job, python, refusals, run_folder, slurm
from matex_tf.deploy.sbatch import messages as slurm_messages
from matex_tf.launch import cli

SHOWN = """\
JobId=4711 JobName=train JobState=FAILED
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={again} BatchFlag=1 Reboot=0 ExitCode={code}
   SubmitTime={submitted} EligibleTime={submitted}
   StartTime=Unknown EndTime={ended} Deadline=N/A
   NodeList={nodes}
   WorkDir=/home/ann/JobState=NONE
   StdOut={output}
"""
GONE = "slurm_load_jobs error: Invalid job id specified"


def shown(
    state, reason="None", again=0, code="0:0", nodes="(null)", output="/home/ann/runs/train-1/output", submitted=None,
    ended=None,
):  # fmt: skip
    """What Slurm says of a job; `submitted` and `ended` are seconds since 1970."""
    moments = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) if at else "Unknown" for at in (submitted, ended))
    submitted, ended = moments
    return SHOWN.format(
        state=state, reason=reason, again=again, code=code, nodes=nodes, output=output, submitted=submitted, ended=ended
    )


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Stand-ins that a test adds to, in front of all other commands; the current folder has a script."""
    folder, work = tmp_path / "bin", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "train.py").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(following, "ASK_EACH", 0.0)
    monkeypatch.setattr(following, "LOOK_EACH", 0.01)
    found = Fakes(folder)
    found.add("sacct", "exit 1")
    return found


def said(capfd):
    out, err = capfd.readouterr()
    return out, [line.removeprefix("matex: ") for line in err.splitlines()]


def test_a_job_is_submitted_and_followed_to_its_exit_code(fakes, capfd):
    fakes.add("sbatch", 'printf "epoch 1\\rEpoch 1/2\\nloss" > "$(dirname "${@: -1}")/output"; echo "4711;cluster"')
    fakes.add("scontrol", "next state")
    fakes.answers(
        "state",
        shown("PENDING", "Priority"),
        shown("RUNNING", nodes="n[1-2]"),
        shown("PENDING", "BeginTime", again=1),
        shown("RUNNING", again=1, nodes="n[3-4]"),
        shown("FAILED", "NonZeroExitCode", again=1, code="3:0", nodes="n[3-4]"),
    )
    assert cli.main(["submit", "--slurm", "--nodes", "2", "--partition", "all", "train.py"]) == 3
    out, lines = said(capfd)
    assert out == "Epoch 1/2\nloss"
    assert lines == [
        (
            "job 4711 on partition all: 2 whole nodes, 2 ranks; runs/train-1 "
            "(follow: matex follow 4711; watch: matex top runs/train-1; end: matex cancel 4711)"
        ),
        "4711 PENDING (Priority): others come first",
        "4711 RUNNING on n[1-2]",
        "4711 PENDING (BeginTime), requeued (1): Slurm lets some time pass before it starts a job again",
        "4711 RUNNING on n[3-4], requeued (1)",
        "4711 FAILED in 2 allocations, exit code 3",
    ]
    words = fakes.calls[0].split(" ")
    lines = [line.split(" ")[1] for line in Path("runs/train-1/job.sh").read_text().splitlines() if "#SBATCH" in line]
    assert words == ["sbatch", "--parsable", *lines, "runs/train-1/job.sh"], "variables win over lines of the script"
    noted = json.loads(Path("runs/train-1/job.json").read_text())
    assert (noted["cluster"], noted["job"]) == ("slurm", "4711")
    assert "train.py & child" in Path("runs/train-1/job.sh").read_text()


@pytest.mark.parametrize(
    "words, expected",
    [
        ("invalid partition specified: nosuch", "there is no such partition. The partitions are: all, big"),
        ("Invalid account or account/partition combination specified", "the account is not known"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "longer than the partition allows"),
        ("Requested node configuration is not available", "no node of the partition has what the job asks for"),
        ("CPU count per node can not be satisfied", "lower --cpus or --ranks-per-node"),
        ("Memory specification can not be satisfied", "so much memory: lower what --sbatch=--mem"),
        ("More processors requested than permitted", "fewer cores in all: lower --nodes, --cpus"),
        ("invalid number of nodes (-N 2-1)", "the nodes that options of --sbatch name are not as many"),
        ("Node count specification invalid", "so many nodes: lower --nodes"),
        ("Required partition not available (inactive or drain)", "takes no jobs now"),
        ("User's group not permitted to use this partition", "you may not use the partition"),
        ("something new", "sbatch: something new"),
    ],
)
def test_a_refusal_has_slurms_words_and_what_they_mean(fakes, capfd, words, expected):
    fakes.add("sbatch", f'echo "sbatch: error: {words}" >&2; exit 1')
    fakes.add("sinfo", "printf 'big\\nall\\n'")
    fakes.add("squeue", "echo '12 /elsewhere/job.sh'")
    fakes.add("scancel", "")
    assert cli.main(["submit", "--slurm", "train.py"]) == 1
    lines = "\n".join(said(capfd)[1])
    assert f"submit: sbatch: {words}" in lines.replace("matex ", "") and expected in lines
    assert list(Path("runs").iterdir()) == [] and not any(call.startswith("scancel") for call in fakes.calls)


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_reads_the_refusal(monkeypatch, error):
    monkeypatch.setattr(getpass, "getuser", Mock(side_effect=error("getpwuid(): uid not found: 1000")))
    text = refusals.explain_refusal("sbatch", "Invalid account", slurm_messages.REFUSALS)
    assert text.startswith("sbatch: Invalid account\nThat is: the account is not known")


@pytest.mark.parametrize("how", ["exit 1", "echo 'no number'", "kill -INT $PPID; sleep 5"])
def test_a_failed_submit_leaves_nothing_queued(fakes, capfd, how):
    fakes.add("sbatch", f'realpath "${{@: -1}}" > {fakes.folder}/script; {how}')
    fakes.add("squeue", f"echo '12 /elsewhere/job.sh'; echo \"13 $(cat {fakes.folder}/script)\"")
    fakes.add("scancel", "")
    assert cli.main(["submit", "--slurm", "train.py"]) in (1, 130)
    assert [call for call in fakes.calls if call.startswith("scancel")] == ["scancel 13"]
    assert list(Path("runs").iterdir()) == []


def test_where_nobody_knows_whether_it_is_queued_that_is_said(fakes, capfd):
    fakes.add("sbatch", "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1")
    fakes.add("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert cli.main(["submit", "--slurm", "train.py"]) == 1
    lines = "\n".join(said(capfd)[1])
    assert "too busy" in lines and "check with `squeue -u $USER` whether runs/train-1/job.sh was queued" in lines
    assert Path("runs/train-1/job.sh").is_file()


def test_without_slurm(fakes, capfd, monkeypatch):
    monkeypatch.setenv("PATH", str(fakes.folder))
    assert cli.main(["submit", "--slurm", "train.py"]) == 1
    assert "there is no sbatch on this machine. Submit from a login node" in said(capfd)[1][0]
    assert not Path("runs").exists()


def test_how_long_a_job_took_is_told_over_all_its_allocations(fakes, tmp_path):
    fakes.add("scontrol", '[ "$SLURM_TIME_FORMAT" = standard ] && next state')
    fakes.answers(
        "state", shown("COMPLETED", submitted=1000, ended=1083), *2 * [shown("COMPLETED", again=1, ended=12540)]
    )
    assert str(slurm.SLURM.find_state(job.Job("4711"))) == "COMPLETED after 0:01:23, exit code 0"
    assert str(slurm.SLURM.find_state(job.Job("4711"))) == "COMPLETED in 2 allocations, exit code 0"
    (tmp_path / "job.json").write_text(run_folder.format_note("slurm", "4711", submitted="1000"))
    again = slurm.SLURM.find_state(job.Job("4711", str(tmp_path)))
    assert str(again) == "COMPLETED after 3:12:20 in 2 allocations, exit code 0"


def test_a_job_that_waits_long_says_so_again_and_again(fakes, capfd):
    now = time.time()
    waits = [shown("PENDING", "Priority", submitted=now - ago) for ago in (0, 30, 90, 100, 200, 300)]
    fakes.add("scontrol", "next state")
    fakes.answers("state", *waits, shown("COMPLETED", submitted=1000, ended=1001))
    assert slurm.SLURM.follow_job(job.Job("4711")) == 0
    lines = said(capfd)[1]
    assert lines[0] == "4711 PENDING (Priority): others come first"
    assert [line.split(";")[0][:-1] for line in lines[1:-1]] == [
        f"4711 has waited for 0:0{at}" for at in ("1:3", "3:2")
    ]
    assert all(line.endswith("; PENDING (Priority): others come first") for line in lines[1:-1])


UNSET = """\
echo "$0: error: fetch_config: DNS SRV lookup failed" | sed 's#.*/##' >&2
echo "$0: fatal: Could not establish a configuration source" | sed 's#.*/##' >&2; exit 1
"""


def test_on_a_machine_of_no_cluster(fakes, capfd):
    for name in ("sbatch", "squeue", "scontrol", "sinfo", "scancel"):
        fakes.add(name, UNSET)
    assert cli.main(["submit", "--slurm", "train.py"]) == 1 and list(Path("runs").iterdir()) == []
    said_by = "matex {}: {}: fetch_config: DNS SRV lookup failed; Could not establish a configuration source"
    means = "That is: this machine has Slurm's commands, but belongs to no cluster: submit from a login node of yours."
    assert said(capfd)[1] == [said_by.format("submit", "sbatch"), means]
    for name in ("follow", "cancel"):
        assert cli.main([name, "4711"]) == 1
        assert said(capfd)[1] == [said_by.format(name, "scontrol"), means]


@pytest.mark.parametrize(
    "reason, means",
    [
        ("PartitionTimeLimit", "the partition allows less than --time"),
        ("PartitionNodeLimit", "the partition allows fewer nodes than --nodes"),
        ("PartitionConfig", "the partition lacks so many nodes or cores"),
        ("BadConstraints", "no node has what it asks for"),
        ("DependencyNeverSatisfied", "a job of --dependency ended otherwise"),
        (
            "Job's_account_not_known,_so_it_can't_use_this_partition_(a_allows_b)",
            "the account may not use the partition",
        ),
        ("QOSMaxWallDurationPerJobLimit", "may not ask for so much"),
        ("AssocMaxGRESPerJob", "may not ask for so much"),
    ],
)
def test_a_job_that_will_not_start_is_an_error(fakes, capfd, reason, means):
    fakes.add("scontrol", "next state")
    fakes.answers("state", shown("PENDING", "Priority"), shown("PENDING", reason))
    fakes.add("sinfo", "echo 'small 1 4 5:00'")
    assert cli.main(["follow", "4711"]) == job.EXIT_UNKNOWN
    lines = said(capfd)[1]
    assert lines[-2].startswith(f"4711 PENDING ({reason}): ") and means in lines[-2]
    assert lines[-2].endswith("; it will not start. Partitions, their nodes, cores and limits are: small 1 4 5:00")
    assert lines[-1] == "4711 is still queued (out of the queue: matex cancel 4711)"
    fakes.add("scancel", "")
    assert cli.main(["cancel", "4711"]) == 0 and "scancel 4711" in fakes.calls
    run = python.LaunchedRun(slurm.SLURM, job.Job("4711"))
    assert run.wait() == job.EXIT_UNKNOWN and "will not start" in run.state()


@pytest.mark.parametrize(
    "reason, partition",
    [
        ("PartitionTimeLimit", "short,long"), ("QOSGrpCpuLimit", "all"), ("AssocMaxJobsLimit", "all"),
        ("JobHeldUser", "all"), ("ReqNodeNotAvail,_UnavailableNodes:h3", "all"), ("Resources", "all"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", "all"),
    ],
)  # fmt: skip
def test_a_job_that_may_start_is_followed_on(fakes, capfd, reason, partition):
    """Of several partitions the job may start in another than the one that has the reason, and where it has run."""
    fakes.add("scontrol", "next state")
    waiting = shown("PENDING", reason).replace(
        "   Requeue=", f"   Partition={partition} AllocNode:Sid=h1:1\n   Requeue="
    )
    again = shown("PENDING", "PartitionNodeLimit", again=1)
    fakes.answers("state", waiting, waiting, again, shown("COMPLETED", again=1))
    assert cli.main(["follow", "4711"]) == 0
    assert said(capfd)[1][0].startswith(f"4711 PENDING ({reason})")


def test_a_job_is_not_told_of_the_job_that_submits_it(fakes, monkeypatch):
    """Within an allocation; what a cluster says to everybody stays."""
    fakes.add("sbatch", f"env > {fakes.folder}/told; echo 4711")
    own = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_NODE": "100", "SLURM_NTASKS": "1", "PMIX_RANK": "0"}
    stays = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_MPI_TYPE": "pmix", "SLURM_CLUSTERS": "b", "SBATCH_ACCOUNT": "a"}
    for name, value in {**own, **stays}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["submit", "--slurm", "--no-follow", "train.py"]) == 0
    told = dict(line.partition("=")[::2] for line in (fakes.folder / "told").read_text().splitlines())
    assert not told.keys() & own.keys() and stays.items() <= told.items()


def test_a_folder_is_that_of_the_job_that_was_queued_last(fakes, capfd):
    """`sbatch runs/train-7/job.sh` makes another job of the folder, which notes itself once it runs.

    The job may be an array. Slurm before 20.11 knows no --me.
    """
    run = Path("runs/train-7")
    run.mkdir(parents=True)
    run_folder.write_note(run, "slurm", "4711")
    fakes.add(
        "squeue",
        '[[ $* != *--me* ]] || { echo "unrecognized option: --me" >&2; exit 1; }\n'
        '[[ $* = *%F* ]] && last=4713 || last="4713_[1-3]"\n'
        f"echo '12 /elsewhere/job.sh'; echo $last {run.absolute()}/job.sh; echo '4712 {run.absolute()}/job.sh'",
    )
    fakes.add("scontrol", "next state")
    fakes.answers("state", shown("COMPLETED"))
    assert cli.main(["follow", str(run)]) == 0 and fakes.calls[-1] == "scontrol show job 4713"
    fakes.add("squeue", "exit 1")
    assert cli.main(["follow", str(run)]) == 0 and fakes.calls[-1] == "scontrol show job 4711"


def test_ctrl_c_leaves_the_job(fakes, capfd):
    fakes.add("scontrol", "kill -INT $PPID; sleep 5")
    assert cli.main(["follow", "4711"]) == 130
    fakes.add("sbatch", "echo 4711")
    assert cli.main(["submit", "--slurm", "train.py"]) == 130
    assert said(capfd)[1][-1] == "4711 goes on (follow: matex follow 4711; end: matex cancel 4711)"
    assert not any(call.startswith("scancel") for call in fakes.calls)


def test_a_scheduler_that_is_away_is_asked_again(fakes, capfd):
    fakes.add("scontrol", 'next state; [ "$(cat $at.n)" -gt 2 ] || { echo "Unable to contact" >&2; exit 1; }')
    fakes.answers("state", "", "", shown("COMPLETED", nodes="n1"))
    assert slurm.SLURM.follow_job(job.Job("4711")) == 0
    lines = said(capfd)[1]
    assert lines[0].startswith("scontrol: Unable to contact; asked again") and lines[1:] == [
        "4711 COMPLETED, exit code 0"
    ]


def test_the_end_of_a_job_that_slurm_has_let_go_of(fakes, tmp_path):
    fakes.add("scontrol", f"echo '{GONE}' >&2; exit 1")
    assert slurm.SLURM.find_state(job.Job("4711")).phase == job.FORGOTTEN
    (tmp_path / "exit-code").write_text("3\n")
    assert slurm.SLURM.find_state(job.Job("4711", str(tmp_path))).code == 3
    fakes.add("sacct", "echo 'CANCELLED by 1000|0:15'")
    assert slurm.SLURM.find_state(job.Job("4711", str(tmp_path))) == job.State(job.ENDED, "CANCELLED by 1000", code=143)
    fakes.add("sacct", "printf 'COMPLETED|0:0\\nFAILED|4:0\\nCOMPLETED|0:0\\n'")  # the tasks of an array
    assert slurm.SLURM.find_state(job.Job("4711")) == job.State(job.ENDED, "2 COMPLETED, 1 FAILED", code=4)
    fakes.add("sacct", "printf 'COMPLETED|0:0\\nRUNNING|0:0\\n'")
    assert slurm.SLURM.find_state(job.Job("4711")).phase == job.FORGOTTEN


@pytest.mark.parametrize(
    "name, codes, expected",
    [
        ("COMPLETED", "0:0", 0), ("FAILED", "3:0", 3), ("CANCELLED", "0:15", 143), ("TIMEOUT", "0:0", None),
        ("OUT_OF_MEMORY", "0:125", None), ("NODE_FAIL", "", None), ("FAILED", "137:0", 137),
    ],
)  # fmt: skip
def test_exit_codes(name, codes, expected):
    assert slurm_messages.parse_exit_code(name, codes) == expected


def test_only_a_job_that_is_there_can_be_cancelled(fakes, capfd):
    fakes.add("scontrol", "next state")
    fakes.answers("state", shown("RUNNING", nodes="n1"), shown("RUNNING", nodes="n1"), shown("CANCELLED", code="0:15"))
    fakes.add("scancel", "")
    assert cli.main(["cancel", "4711"]) == 0 and "scancel 4711" in fakes.calls
    assert cli.main(["cancel", "4711"]) == 1
    assert "4711 CANCELLED, exit code 143: there is nothing to cancel" in said(capfd)[1][-1]


def test_a_job_is_found_by_its_folder_and_by_its_number(fakes, capfd):
    run = Path("runs/train-7")
    run.mkdir(parents=True)
    (run / "output").write_text("lines\n")
    fakes.add("scontrol", "next state")
    fakes.answers("state", shown("COMPLETED", output=f"{run.absolute()}/output"))
    assert cli.main(["follow", "4711"]) == 0 and said(capfd)[0] == "lines\n"
    (run / "job.json").write_text('{"cluster": "slurm", "job": "4712"}')
    assert cli.main(["follow", str(run)]) == 0 and said(capfd)[0] == "lines\n"
    assert fakes.calls[-1] == "scontrol show job 4712"


@pytest.mark.parametrize(
    "name, message",
    [
        ("Train", "expected a job's number"),
        ("runs", "is not the folder of a job"),
        ("", "expected a job's number or name, or the folder of its run, as runs/train-1; given ''"),
    ],
)
def test_what_is_no_job(fakes, capfd, name, message):
    Path("runs").mkdir()
    assert cli.main(["follow", name]) == 2 and message in said(capfd)[1][0]
    Path("runs/job.json").write_text("[]")  # another program has made it
    assert cli.main(["follow", name]) == 2 and message in said(capfd)[1][0]


def test_a_job_that_could_not_write_is_told(fakes, capfd):
    fakes.add("scontrol", "next state")
    fakes.answers("state", shown("FAILED", code="1:0"))
    assert cli.main(["follow", "4711"]) == 1
    assert "Does the node on which it started see that folder?" in said(capfd)[1][-1]


def test_progress_bars_are_their_last_state_in_a_file(monkeypatch):
    target = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(target))
    print("before")
    output = following.Output()
    for piece in (b"first\n", b"1/9\r", b"2/9\r3/", b"9\r", b"9/9\n", b"two\r\nab", b"c\r\r"):
        output.write(piece)
    output.close()
    assert target.getvalue() == b"before\nfirst\n9/9\ntwo\nabc"


def test_folders_of_runs_are_new_whoever_else_makes_one(fakes):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: run_folder.make_folder("a b/../c"), range(40)))
    assert len(set(made)) == 40 and {path.parent for path in made} == {Path("runs")}
