"""`matex run --restarts`: what counts as lost, how long it waits, and which hosts and ranks it goes on with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from fake_mpirun import say, started

import launch as launching
from matex_tf.launch import cli, mpirun_command, process, restarts, run_end, run_options
from matex_tf.launch.hosts import answering
from matex_tf.launch.hosts.places import Attempt, Places
from matex_tf.resilience import script_file
from matex_tf.runtime.rank_records import Record
from matex_tf.world import mpirun_options
from matex_tf.world.exit_codes import EXIT_UNPROVED
from matex_tf.world.hosts import host_lists

pytestmark = pytest.mark.waits

FAILED = {"rank": 1, "text": "rank 1 failed\n", "abort_code": 1}
ENDED = say(state="ended")


@pytest.mark.parametrize(
    "code, words, heard, expected",
    [
        (0, ["begun", "ended"], [], restarts.COMPLETED),
        (3, ["begun", "ended"], [], restarts.OWN_CODE),  # the script's own exit code
        (0, ["begun", "ended", "writing"], [], restarts.LOST),  # with what Python writes as it ends
        (137, ["begun", "ended", "writing"], [], restarts.LOST),
        (3, ["begun", "ended", "chose 3", "writing"], [], restarts.OWN_CODE),  # for which mpirun ends rank 0
        (1, ["begun", "failed"], [], restarts.OWN_CODE),  # an error of the script's
        (2, [], [], restarts.OWN_CODE),  # it never began: a wrong setting, no compiler
        (137, [], [], restarts.LOST),
        (137, ["begun", "failed"], [], restarts.LOST),  # others fail when one is killed
        (139, ["begun"], [], restarts.LOST),
        (0, ["begun"], [], restarts.LOST),  # mpirun says 0 of a lost host
        (0, [], [], restarts.LOST),
        (0, ["begun", "failed"], [], restarts.LOST),
        (1, ["begun"], [], restarts.LOST),
        (70, ["begun"], [], restarts.LOST),
        (75, ["begun"], [], restarts.LOST),  # of whoever ends so nobody has asked that
        (75, ["begun", "ended"], [], restarts.OWN_CODE),  # the script's own exit code
        (75, ["begun", "failed"], [], restarts.OWN_CODE),
        (75, ["begun", "ask-again"], [], restarts.STOPPED),
        (130, ["begun", "failed"], [], restarts.LOST),
        (130, ["begun", "failed", "with 130"], [], restarts.OWN_CODE),  # the error's own: KeyboardInterrupt
        (200, ["begun", "failed", "with 200"], [], restarts.OWN_CODE),  # sys.exit(200)
        (255, ["begun"], [], restarts.LOST),  # so ends ssh where its host is gone
        (1, ["begun", "ask-again"], [], restarts.STOPPED),
        (0, ["begun", "ended", "ask-again"], [], restarts.STOPPED),  # Slurm preempts: ranks and daemons are asked alike
        (0, ["begun", "left", "change"], [], restarts.CHANGED),
        (0, ["begun", "left"], [], restarts.LOST),  # a shared folder does not show the change yet
        (0, ["begun", "left", "change"], [signal.SIGTERM], restarts.STOPPED),  # which is for good
        (0, ["begun", "left", "change", "ask-again"], [], restarts.STOPPED),
        (0, ["begun", "left", "change"], [signal.SIGINT], restarts.INTERRUPTED),
        (143, ["begun"], [signal.SIGTERM], restarts.STOPPED),
        (138, [], [signal.SIGUSR1], restarts.STOPPED),  # while TensorFlow is imported
        (130, ["begun"], [signal.SIGINT], restarts.INTERRUPTED),  # a person has had enough
        (1, ["begun", "ask-again"], [signal.SIGINT], restarts.INTERRUPTED),  # mpirun has told the ranks by SIGTERM
        (75, ["begun"], [signal.SIGTERM, signal.SIGHUP], restarts.INTERRUPTED),
        (0, ["begun", "ended"], [signal.SIGINT], restarts.COMPLETED),  # too late
    ],
)
def test_what_is_lost(code, words, heard, expected):
    states = [Record(state=word) for word in words if word in ("begun", "ended", "left")]
    codes = [int(word.split()[1]) for word in words if word.startswith("with ")]
    failed = Record(**{**FAILED, "abort_code": codes[0] if codes else 1})
    others = {"failed": failed, "chose 3": Record(state="ended", codes=(3,)), "ask-again": Record(asks_again=True)}
    records = states + [others[word] for word in words if word in others]
    end = run_end.RunEnd(records, "writing" not in words)
    assert restarts.judge_end(code, end, "change" in words, set(heard)) == expected


def test_pauses_grow_up_to_a_minute():
    assert [restarts.compute_pause(number) for number in (1, 2, 3, 9)] == [1, 2, 4, 60]


def test_a_state_is_found_again_by_the_same_command_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("SLURM_", "PBS_", "LSB_", "COBALT_")):
            monkeypatch.delenv(name)
    mine = run_options.name_state_folder(["train.py", "--rate", "1"])
    assert os.path.dirname(mine) == str(tmp_path) and mine == run_options.name_state_folder(["train.py", "--rate", "1"])
    assert mine != run_options.name_state_folder(["train.py", "--rate", "2"])
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "PBS_ARRAY_INDEX", "LSB_JOBINDEX"):
        monkeypatch.setenv(name, "7")
        assert mine != run_options.name_state_folder(["train.py", "--rate", "1"])
        monkeypatch.delenv(name)


def test_words_that_are_no_utf_8_name_a_state(monkeypatch):
    words = [os.fsdecode(b"caf\xe9.py")]
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    assert run_options.name_state_folder(words) != run_options.name_state_folder(["caf.py"])
    assert script_file.digest_script() == script_file.digest_script()


HOSTS = [host_lists.Host("a", 2), host_lists.Host("b", 2), host_lists.Host("c", 4)]


@pytest.mark.parametrize(
    "options, expected",
    [
        ("--host a:2,b:2,c:4 --mca pml ob1", HOSTS),
        ("-H a,a,b,b,c:4", HOSTS),
        ("--host=a:2 -x NAME=b --host b:2,c:4", HOSTS),
        ("--mca host x -x H", []),
        ("", []),
    ],
)
def test_hosts_of_a_command_line(options, expected):
    assert host_lists.list_hosts(options.split(), {}) == expected


def test_hosts_of_a_file(tmp_path):
    (tmp_path / "hosts").write_text("# ours\na slots=2\nb:2\n\nc  slots = 4  # large\n")
    assert host_lists.list_hosts(["--hostfile", str(tmp_path / "hosts")], {}) == HOSTS
    (tmp_path / "hosts").write_text("a max-slots=8 slots=2\nb max_slots=2\nc slots=4 max_slots=8\n")
    assert host_lists.list_hosts(["--hostfile", str(tmp_path / "hosts")], {}) == HOSTS


def test_hosts_of_an_allocation(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-4]" ] && printf "n1\\nn2\\nn3\\nn4\\n"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    job = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_CPUS_ON_NODE": "64"}
    taken = [host_lists.Host(name, slots) for name, slots in zip(("n1", "n2", "n3", "n4"), (16, 16, 2, 1))]
    assert host_lists.list_hosts([], {**job, "SLURM_TASKS_PER_NODE": "16(x2),2,1"}) == taken
    assert host_lists.list_hosts([], job) == [host_lists.Host(name, 1) for name in ("n1", "n2", "n3", "n4")]
    assert host_lists.list_hosts(["--host", "a"], job) == [host_lists.Host("a", 1)]


def test_hosts_that_are_left():
    left = [HOSTS[0], HOSTS[2]]
    words = "--host a:2,b:2,c:4 --mca pml ob1 --hostfile x --tag-output".split()
    assert (
        host_lists.replace_hosts(words, left, mpirun_options.OPENMPI)
        == "--mca pml ob1 --tag-output --host a:2,c:4".split()
    )
    assert host_lists.replace_hosts(words, left, mpirun_options.MPICH)[-2:] == ["-hosts", "a:2,c:4"]
    mpirun = mpirun_command.Mpirun("mpirun", mpirun_options.OPENMPI, "5.0")
    for hosts, ranks, fewer in ((left, 8, 6), (left, 4, 3), (HOSTS[:1], 1, 1)):
        assert Places(Attempt(ranks, words[:2]), mpirun).make_attempt(hosts).ranks == fewer


def test_a_host_is_asked_in_the_way_that_the_run_takes():
    words = "--host a:2 --mca plm_rsh_agent agent -x NAME=1 --launch-agent prted --prtemca a b".split()
    asked = answering.make_reach_command("mpirun", words, HOSTS[1])
    reached = "mpirun --mca plm_rsh_agent agent --launch-agent prted --prtemca a b --host b -n 1 true"
    assert asked == reached.split()


def test_hosts_that_do_not_answer_are_left_out(tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text('#!/bin/sh\ncase "$*" in *"--host b "*) exit 1;; esac\n')
    mpirun.chmod(0o755)
    assert answering.find_answering(HOSTS, str(mpirun), []) == [HOSTS[0], HOSTS[2]]


def test_a_lost_run_is_started_again_until_it_ends_well(tmp_path, monkeypatch, capfd):
    ends = ["exit 137", "kill -SEGV $$", ENDED]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends)
    assert code == 0 and starts == ["-n 4 train.py"] * 3
    assert re.search(r"a rank was killed by SIGKILL \(exit code 137\) after \d+ s; restart 1 of 3", said), said
    assert "ended well after 2 restarts: a rank was killed by SIGKILL" in said and "SIGSEGV" in said


def test_restarts_come_to_an_end(tmp_path, monkeypatch, capfd):
    code, said, starts = started(tmp_path, monkeypatch, capfd, ["exit 137"] * 5, restart=2)
    assert code == 137 and len(starts) == 3
    assert "given up after 2 restarts: 3 times a rank was killed by SIGKILL" in said and "goes on from" in said


GOES_ON = "{0.name} before the restart; the same command goes on from"
BEGINS_ANEW = "interrupted by {0.name} (exit code {1}); the same command starts over, because no state was saved"


@pytest.mark.parametrize(
    "told, ends_with, tells",
    [
        (signal.SIGTERM, 75, GOES_ON),
        (signal.SIGUSR1, 75, GOES_ON),
        (signal.SIGINT, 128 + signal.SIGINT, BEGINS_ANEW),
        (signal.SIGHUP, 128 + signal.SIGHUP, BEGINS_ANEW),
    ],
)
def test_who_is_asked_to_end_before_a_restart_is_to_be_put_back_and_who_is_interrupted_is_not(
    tmp_path, monkeypatch, capfd, told, ends_with, tells
):
    timer = threading.Timer(1.0, os.kill, (os.getpid(), told))
    monkeypatch.setattr(restarts, "compute_pause", lambda number: 20.0)
    before = signal.getsignal(told)
    timer.start()
    code, said, starts = started(tmp_path, monkeypatch, capfd, ["exit 137"] * 2)
    assert code == ends_with and len(starts) == 1 and signal.getsignal(told) == before
    assert tells.format(told, code) in said


def test_a_script_that_fails_is_not_started_again(tmp_path, monkeypatch, capfd):
    ends = [f"{say(**FAILED)}; exit 1"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends)
    assert code == 1 and len(starts) == 1 and said.strip() == FAILED["text"].strip()


def test_a_rank_that_is_lost_after_the_end_of_the_script_is_told_and_trains_nothing_again(tmp_path, monkeypatch, capfd):
    ends = [f"{ENDED}; exit 137"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends)
    assert code == 137 and len(starts) == 1
    assert "killed by SIGKILL (exit code 137) after all ranks had reached the end of the script" in said

    (tmp_path / "starts").unlink()
    ends = [f'{ENDED}; touch "$MATEX_PROOF/rank-fake.writing"; exit 137', ENDED]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends)
    assert code == 0 and len(starts) == 2 and "are complete" not in said, "of the first rank nobody knows that it ended"


def test_of_processes_that_are_each_for_itself_nobody_knows_that_they_have_ended(tmp_path, monkeypatch, capfd):
    code, said, starts = started(tmp_path, monkeypatch, capfd, [f"{say(state='separate')}; exit 137"])
    assert code == 137 and len(starts) == 1 and "had reached the end" not in said


def test_a_host_that_is_gone_is_left_out(tmp_path, monkeypatch, capfd):
    ends = ["exit 1", ENDED]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=["--host", "a:2,b:2"])
    assert code == 0 and starts == ["--host a:2,b:2 -n 4 train.py", "--host a:2 -n 2 train.py"]
    assert "no answer from b; continuing with 2 ranks on a" in said


def test_of_one_place_that_is_left_two_ranks_are_started(tmp_path, monkeypatch, capfd):
    ends = ["exit 1", ENDED]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=["--host", "a,b"])
    assert code == 0 and starts[1] == "--host a:1 --map-by :OVERSUBSCRIBE -n 2 train.py"
    assert "no answer from b; continuing with 2 ranks on a" in said


def test_in_an_allocation_a_step_that_was_lost_holds_nothing_up(tmp_path, monkeypatch, capfd):
    """Slurm would have new steps wait for the cores of the one whose host is lost, until it believes that it is."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    ends = ["exit 1", f'[ "$SLURM_OVERLAP" = 1 ] && {ENDED}']
    monkeypatch.setenv("SLURM_OVERLAP", "0")
    code, _, starts = started(tmp_path, monkeypatch, capfd, ends)
    assert code == 0 and len(starts) == 2


def test_hosts_that_do_not_answer_are_waited_for_together(tmp_path, monkeypatch):
    monkeypatch.setattr(answering, "SECONDS", 2.0)
    patience, wait = [], subprocess.Popen.wait

    def noted(child, timeout=None):
        patience.append(timeout)
        return wait(child, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", noted)
    mpirun = tmp_path / "mpirun"
    mpirun.write_text('#!/bin/sh\ncase "$*" in *good*) exit 0;; esac\nexec sleep 300\n')
    mpirun.chmod(0o755)
    asked = [host_lists.Host(name, 1) for name in ("b", "c", "d", "good", "e")]
    assert answering.find_answering(asked, str(mpirun), []) == [host_lists.Host("good", 1)]
    asked_for = [seconds for seconds in patience if seconds is not None]
    assert asked_for[0] > 0 and asked_for[1] == 0, "the second has as long as the first"


def test_who_does_not_answer_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(answering, "SECONDS", 0.5)
    mpirun, note = tmp_path / "mpirun", tmp_path / "child"
    mpirun.write_text(f"#!/bin/sh\nsleep 300 & echo $! > {note}; echo $OMPI_ALLOW_RUN_AS_ROOT >> {note}; wait\n")
    mpirun.chmod(0o755)
    assert answering.find_answering([host_lists.Host("b", 1)], str(mpirun), []) == []
    child, root = note.read_text().splitlines()
    assert root == ("1" if os.geteuid() == 0 else os.environ.get("OMPI_ALLOW_RUN_AS_ROOT", ""))
    for _ in range(100):
        if not os.path.exists(f"/proc/{child}") or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {child} is still there")


@pytest.mark.parametrize("number, asked, code", [(signal.SIGTERM, "USR1", 75), (signal.SIGINT, "INT", 130)])
def test_sigterm_is_a_warning_to_the_ranks_that_asks_for_requeue_and_an_interrupt_is_not(tmp_path, number, asked, code):
    mpirun, state = tmp_path / "mpirun", tmp_path / "state"
    mpirun.write_text(
        f"#!/bin/sh\nend() {{ kill $!; {say(asks_again=True)}; exit 1; }}\ntrap end {asked}\n"
        "sleep 20 & echo ready; wait $!\n"
    )
    mpirun.chmod(0o755)
    state.mkdir(mode=0o700)
    (state / "state-3").touch()
    program = (
        "import sys; from matex_tf.launch import cli, command_line; "
        "command_line.make_command_line = lambda run, mpirun: [sys.argv[1]]; "
        "sys.exit(cli.main(['run', '-n', '2', '--restarts', '3', sys.argv[1]]))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(mpirun)],
        env=launching.environment({"MATEX_STATE": str(state)}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    assert child.stdout.readline() == "ready\n"
    os.killpg(child.pid, number)
    assert child.wait(10) == code
    said = {
        signal.SIGINT: f"interrupted by SIGINT (exit code 130); the same command goes on from {state}",
        signal.SIGTERM: "the run was asked to end, and its ranks have ended (exit code 75). mpirun's message "
        f"about an abort or a signal reports this end; the same command goes on from {state}",
    }
    assert child.stderr.read() == f"matex: {said[number]}\n"


def test_a_run_that_asks_to_go_on_is_not_lost(tmp_path):
    """One whose state the script's own environment names: mpirun calls the end of its ranks 0."""
    (tmp_path / "rank-a").write_text(json.dumps({"asks_again": True}))
    assert process.run_to_end(["true"], str(tmp_path)) == 75


@pytest.mark.parametrize(
    "words, message",
    [
        ("--restarts 0 -n 2 train.py", "--restarts expects the number of restarts, 1 or more; '0'"),
        ("--restarts -n 2 train.py", "--restarts expects"),
        ("--restarts 2 --check train.py", "do not go together"),
    ],
)
def test_what_cannot_be_asked(words, message):
    with pytest.raises(click.UsageError, match=message):
        cli.parse_run(words.split())


def test_what_is_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.parse_run("--restarts 3 -n 2 train.py --restarts 5".split()).restarts == 3
    assert cli.main("run --restarts=3 -n 2 --dry-run train.py".split()) == 0
    assert f"MATEX_STATE={run_options.name_state_folder(['train.py'])}" in capsys.readouterr().out
    monkeypatch.setenv("MATEX_STATE", "")  # no state is kept, unless a restart needs it
    assert cli.main("run --restarts=3 -n 2 --dry-run train.py".split()) == 0
    assert f"MATEX_STATE={run_options.name_state_folder(['train.py'])}" in capsys.readouterr().out
    assert not list(Path(tmp_path).iterdir())
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(process, "run_to_end", lambda *_: 77)
    assert cli.main("run -n 2 train.py".split()) == 77, "it waits for no restart"


def test_the_file_of_a_script_is_found_however_it_is_started(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/__init__.py", "package/train.py", "package/__main__.py"):
        (tmp_path / name).write_text("raise AssertionError('it was imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    start = ["-u", "-m", "matex_tf"]
    for words, file in (
        (["train.py", "-m", "package"], "train.py"),
        (["-m", "package.train"], "package/train.py"),
        (["-m", "package", "x.py"], "package/__main__.py"),
        (["package"], "package/__main__.py"),
    ):
        assert os.path.samefile(script_file.find_script([*start, *words]), tmp_path / file)
    assert script_file.find_script([*start, "-m", "nothing"]) is None
    assert script_file.find_script(["train.py"]) == getattr(sys.modules["__main__"], "__file__", None)


def test_the_signal_by_which_a_run_is_asked_to_end_is_told_by_its_name(tmp_path):
    """mpirun passes on SIGUSR1 in place of SIGTERM; ranks find there which it was."""
    mpirun = "trap 'kill $!; exit 0' USR1; sleep 20 & kill -TERM $PPID; wait $!"
    program = (
        "import signal, sys; from matex_tf.launch import process; from matex_tf.runtime import rank_records\n"
        "heard, before = set(), rank_records.read_request()\n"
        "instead = {signal.SIGTERM: signal.SIGUSR1}\n"
        "process.wait_for_ranks(['sh', '-c', sys.argv[1]], sys.argv[2], heard, instead)\n"
        "print(before, *heard, rank_records.read_request())\n"
    )
    command = [sys.executable, "-c", program, mpirun, str(tmp_path)]
    found = launching.execute(command, launching.environment({"MATEX_PROOF": str(tmp_path)}), 60).check()
    assert found.stdout.split() == ["None", str(int(signal.SIGTERM)), "SIGTERM"]


def test_hosts_that_do_not_answer_are_named_at_the_end(tmp_path, capfd):
    gone = "no answer from b: down, or cut off"
    for code in (0, 255):
        folder = tmp_path / str(code)
        folder.mkdir()
        ended = process.run_to_end(["sh", "-c", f"exit {code}"], str(folder), lambda: gone)
        assert ended == (code or EXIT_UNPROVED)
        (folder / "rank-a").write_text(json.dumps({"state": "ended"}))  # with an exit code of the script's own
        assert process.run_to_end(["sh", "-c", "exit 3"], str(folder), lambda: "never asked") == 3
        said = capfd.readouterr().err
        assert f"{gone} (exit code {ended})" in said and "never asked" not in said


def test_a_signal_is_passed_on_also_where_its_name_cannot_be_noted(tmp_path):
    mpirun = "trap 'kill $!; exit 9' USR1; sleep 20 & rmdir $0; kill -TERM $PPID; wait $!"
    program = (
        "import signal, sys; from matex_tf.launch import process\n"
        "instead = {signal.SIGTERM: signal.SIGUSR1}\n"
        "print(process.wait_for_ranks(['sh', '-c', sys.argv[1], sys.argv[2]], sys.argv[2], set(), instead))\n"
    )
    (tmp_path / "proof").mkdir()
    command = [sys.executable, "-c", program, mpirun, str(tmp_path / "proof")]
    assert launching.execute(command, launching.environment({}), 60).check().stdout.split() == ["9"]
