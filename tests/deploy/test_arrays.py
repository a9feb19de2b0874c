"""Arrays of jobs of Slurm, and the options of sbatch that have names of their own."""

from __future__ import annotations

import dataclasses
import os
import subprocess

import pytest

from matex_tf.deploy import slurm
from matex_tf.deploy.job import ENDED, EXIT_UNKNOWN, RUNNING, WAITING, Job, JobError
from matex_tf.deploy.sbatch import arrays, job_script
from matex_tf.launch import cli

NAMED = {"qos": "long", "constraint": "a100&ib", "gres": "gpu:a100:4", "dependency": "afterok:4711"}


@pytest.fixture(autouse=True)
def script(tmp_path, nothing_of_this_user):
    (tmp_path / "a.py").touch()


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("0-3", [0, 1, 2, 3]),
        ("1,5,9", [1, 5, 9]),
        ("0-15:4", [0, 4, 8, 12]),
        ("7", [7]),
        ("0-2,2-4%2", [0, 1, 2, 3, 4]),
    ],
)
def test_the_tasks_of_an_array(text, numbers):
    assert job_script.parse_array(text) == numbers and slurm.Slurm(array=text).array == text


@pytest.mark.parametrize(
    "text", ["3-0", "a", "1-", "-3", "1;2", "0-3:0", "0-3%", "0-3%0", "0-99999999", "1,,2", " 1", "1 2"]
)
def test_a_bad_array_is_refused_before_anything_is_sent(text, fakes, capsys):
    assert cli.main(["submit", "--slurm", f"--array={text}", "a.py"]) == 2
    assert "expected array to " in capsys.readouterr().err and fakes.calls == []


def test_options_of_sbatch_with_names_of_their_own(capsys):
    words = [f"--{name}={value}" for name, value in NAMED.items()]
    assert cli.main(["submit", "--slurm", "--dry-run", *words, "--exclusive", "--cpus", "2", "a.py"]) == 0
    heads = [
        line.removeprefix("#SBATCH ") for line in capsys.readouterr().out.splitlines() if line.startswith("#SBATCH")
    ]
    assert {word.replace("&", "") for word in words} <= {head.strip('"').replace("&", "") for head in heads}
    assert "--exclusive" in heads and "--cpus-per-task=2" in heads


@pytest.mark.parametrize(
    "words, said",
    [
        (["--pbs", "--qos", "long"], "--qos goes with --slurm"),
        (["--kubernetes", "--array", "0-3"], "--array goes with --slurm"),
        (["--slurm", "--gres", "gpu:2", "--gpus-per-node", "2"], "both say how many GPUs"),
        (["--slurm", "--launcher", "mpiexec"], "expected launcher to be mpirun or srun"),
        (["--slurm", "--launcher", "srun", "--run", "--elastic"], "does without `matex run`"),
    ],
)
def test_options_that_do_not_go_together(words, said, capsys):
    assert cli.main(["submit", *words, "a.py"]) == 2
    assert said in capsys.readouterr().err


def test_each_task_has_a_folder_of_its_own(fakes, tmp_path):
    fakes.add("sbatch", "echo 12")
    fakes.add("matex", 'echo "task $SLURM_ARRAY_TASK_ID keeps $MATEX_STATE"; exit $SLURM_ARRAY_TASK_ID')
    job = slurm.SLURM.submit_job(slurm.Slurm(name="a", array="3,5", matex="matex"), ["a.py"])
    (call,) = [call for call in fakes.calls if call.startswith("sbatch")]
    assert "--array=3,5" in call and "--output=runs/a-1/task-%a/output" in call
    for number in (3, 5):
        folder = tmp_path / "runs" / "a-1" / f"task-{number}"
        env = {"SLURM_JOB_ID": str(10 + number), "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": str(number)}
        done = subprocess.run(
            ["bash", tmp_path / "runs" / "a-1" / "job.sh"], env={**os.environ, **env}, capture_output=True, text=True
        )
        assert done.returncode == number and f"task {number} keeps {folder}/state" in done.stdout, done.stderr
        assert (folder / "exit-code").read_text() == f"{number}\n" and f"12_{number}" in (
            folder / "job.json"
        ).read_text()
    assert job.folder == "runs/a-1"


@pytest.mark.parametrize(
    "dependency", ["afterok:12", "afterany:11:12", "after:11+5,afterok:12?singleton", "afterok:12_3"]
)
def test_a_job_after_one_that_is_not_there_is_refused(fakes, dependency):
    """Slurm would start it at once."""
    known = "[ $3 = 11 ] && echo JobId=11 || { echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }"
    fakes.add("scontrol", known)
    fakes.add("sbatch", "echo 13")
    with pytest.raises(JobError, match="Slurm knows no job 12, or no longer"):
        slurm.SLURM.submit_job(slurm.Slurm(name="a", dependency=dependency), ["a.py"])
    assert not any(call.startswith("sbatch") for call in fakes.calls) and not os.path.exists("runs")
    assert slurm.SLURM.submit_job(slurm.Slurm(name="a", dependency="after:11+12,singleton"), ["a.py"]).id == "13"


def shown(task, state, code="0:0", nodes="h1"):
    return (
        f"JobId=1{task[0]} ArrayJobId=12 ArrayTaskId={task} JobName=a ArrayTaskId=7\n   JobState={state} Reason=None\n"
        f"   Restarts=0 ExitCode={code}\n   NodeList={nodes}\n"
    )


@pytest.mark.parametrize(
    "tasks, phase, words, code",
    [
        ([shown("0", "RUNNING"), shown("1-3%2", "PENDING", nodes="(null)")], RUNNING, ["1 RUNNING", "3 PENDING"], None),
        ([shown("0", "COMPLETED"), shown("1-3", "PENDING", nodes="")], WAITING, ["1 COMPLETED", "3 PENDING"], None),
        ([shown(str(n), "COMPLETED") for n in range(4)], ENDED, ["4 COMPLETED"], 0),
        ([shown("2", "FAILED", "3:0"), *(shown(str(n), "COMPLETED") for n in (0, 1, 3))], ENDED, ["1 FAILED"], 3),
        ([shown("0", "COMPLETED")], ENDED, ["1 COMPLETED", "2 ENDED", "1 not known"], 5),
        ([shown("0", "PENDING", nodes="")], WAITING, ["1 PENDING", "2 ENDED", "1 not known"], None),
    ],
)
def test_where_an_array_is(fakes, tmp_path, tasks, phase, words, code):
    """Slurm forgets the tasks one by one; the first exit code that is not 0 is that of the array."""
    for number in range(4):
        (tmp_path / "run" / f"task-{number}").mkdir(parents=True)
    (tmp_path / "run" / "task-1" / "exit-code").write_text("0\n")
    (tmp_path / "run" / "task-2" / "exit-code").write_text("5\n")
    (tmp_path / "said").write_text("\n".join(tasks))
    fakes.add("scontrol", f'[ "$SLURM_BITSTR_LEN" = 0 ] && cat {tmp_path}/said')  # else 0-1,3,7,18 may be 0-1,3,7,1...
    found = slurm.SLURM.find_state(Job("12", str(tmp_path / "run")))
    assert found.phase == phase and found.code == code and all(word in found.words for word in words), found
    unseen = slurm.SLURM.find_state(Job("12", "/not/seen/here"))
    assert unseen.phase == phase and (unseen.code == code or len(tasks) == 1)
    fakes.add("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm.SLURM.find_state(Job("12", str(tmp_path / "run"))).code == EXIT_UNKNOWN


@pytest.mark.parametrize("task", ["task-4294967294", "task-2", "task-%a"])
def test_an_array_is_found_by_its_number_from_any_folder(fakes, tmp_path, task):
    """The output that Slurm names is that of one task. A task is found by its own number."""
    (tmp_path / "task-1").mkdir()
    array = shown("0", "COMPLETED") + f"   StdOut={tmp_path}/task-1/{task}/output\n"
    for text, folder in ((array, tmp_path / "task-1"), (array.replace("Array", ""), tmp_path / "task-1" / task)):
        (tmp_path / "said").write_text(text)
        fakes.add("scontrol", f"cat {tmp_path}/said")
        assert slurm.SLURM.find_job("12").folder == str(folder)
    (tmp_path / "said").write_text(array)
    assert slurm.SLURM.find_job("10").folder == str(tmp_path / "task-1" / task), "of task 0 only"


def test_the_output_of_tasks_is_told_apart(tmp_path):
    for number in (0, 10, 9):
        (tmp_path / f"task-{number}").mkdir()
    folders = arrays.list_folders(str(tmp_path))
    assert [folder.name for folder in folders] == ["task-0", "task-9", "task-10"]
    read = arrays.make_reader(folders)
    assert read() == b""
    (tmp_path / "task-9" / "output").write_text("nine\n")
    (tmp_path / "task-10" / "output").write_text("ten")
    assert read().decode() == f"==> {tmp_path}/task-9\nnine\n==> {tmp_path}/task-10\nten"
    with (tmp_path / "task-10" / "output").open("a") as file:
        file.write(" or more")
    assert read() == b" or more"
    (tmp_path / "task-0" / "output").write_text("none\n")
    assert read().decode() == f"\n==> {tmp_path}/task-0\nnone\n"


def test_srun_starts_the_ranks_where_there_is_no_mpirun():
    asked = slurm.Slurm(name="a", nodes=2, ranks_per_node=3, launcher="srun", matex="/opt/tf/bin/matex")
    text = slurm.SLURM.format_job(asked, ["a.py", "--lr", "1"], "runs/a-1")
    step = "srun --mpi=pmix --nodes=2 --ntasks=6 --kill-on-bad-exit=1 --ntasks-per-node=3"
    assert (
        f"{step} --cpu-bind=none /opt/tf/bin/python -m matex_tf a.py --lr 1 & child=$!" in text
        and "matex run" not in text
    )
    text = slurm.SLURM.format_job(dataclasses.replace(asked, cpus=4), ["a.py"], "runs/a-1")
    assert f"{step} --cpus-per-task=4 /opt/tf/bin/python -m matex_tf a.py & child=$!" in text
