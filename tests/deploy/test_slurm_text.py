"""What a job takes of Slurm, and its script: defaults, wrong values, and words that arrive as they were typed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from matex_tf.deploy import options, run_folder, shell_text, slurm
from matex_tf.launch import cli

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --time=2:00:00
#SBATCH --account=science
#SBATCH --output=runs/train-1/output
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --exclusive
submit_folder=$PWD run_folder="$PWD"/runs/train-1
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
srun --nodes=4 --ntasks=4 --ntasks-per-node=1 LOOK || exit 78
export MATEX_STATE="$run_folder/state"
export MATEX_RECORD="$run_folder"
matex run --restarts 3 -n 8 --elastic train.py --epochs 90 & child=$!
[ "$asked" != early ] || kill -USR1 $child
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
wait $child 2> /dev/null; last=$?; [ $last -eq 127 ] || code=$last
[ -z "$asked" ] || [ $code -ne 138 ] || code=75
cd "$submit_folder"
if [ $code -eq 75 ]; then
    kept=$([ -d "$run_folder/state" ] && echo "state kept" || echo "no state yet")
    printf 'matex: job %s %s after %d:%02d:%02d, %s; to be requeued (%d)\\n' "$SLURM_JOB_ID" \\
        "$([ -n "$asked" ] && echo asked to end || echo ended with exit code 75)" \\
        $((SECONDS / 3600)) $((SECONDS / 60 % 60)) $((SECONDS % 60)) "$kept" $((${SLURM_RESTART_COUNT:-0} + 1))
    scontrol requeue "$SLURM_JOB_ID" && exit $code
    echo "matex: Slurm did not put job $SLURM_JOB_ID back; $kept. In $PWD, sbatch runs/train-1/job.sh" \\
        "goes on" >&2
fi
echo $code > "$run_folder/exit-code"
exit $code
"""
ASKED = slurm.Slurm(
    nodes=4, ranks_per_node=2, time="2:00:00", name="train", account="science", setup=("module load openmpi",),
    run=("--elastic",), sbatch=("--exclusive",),
)  # fmt: skip
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)


pytestmark = pytest.mark.usefixtures("nothing_of_this_user")


WARNED = "bash -c 'trap \"exit {}\" USR1; kill -USR1 $PPID; while :; do sleep 0.01; done'"


# POSIXLY_CORRECT makes bash that of --posix. A PBS without -S runs the script by the user's login shell.
@pytest.mark.parametrize("shell", [("bash",), ("bash", "--posix"), ("sh",)])
@pytest.mark.parametrize("command, code", [(WARNED.format(0), 0), (WARNED.format(3), 3), ("(exit 3)", 3)])
def test_a_run_that_ends_as_it_is_warned_has_its_own_exit_code(tmp_path, command, code, shell):
    # Between the signal and the next `wait` of the script, the run ends.
    slow_kill = 'kill() { sleep 0.3; command kill "$@"; }\n'
    text = shell_text.format_script("", str(tmp_path), slow_kill, command, "")
    ended = subprocess.run([*shell, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert ended.returncode == code and (tmp_path / "exit-code").read_text() == f"{code}\n", ended.stderr
    assert not ended.stderr


def test_the_script_of_a_job():
    text = slurm.SLURM.format_job(ASKED, ["train.py", "--epochs", "90"], "runs/train-1")
    assert re.sub('bash -c .* look "\\$run_folder"', "LOOK", text) == SCRIPT
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


@pytest.mark.parametrize("time, warning", [("", 120), ("8", 120), ("1-0", 120), ("4:00", 60), ("0:40", 10)])
def test_a_short_job_is_warned_within_its_time(time, warning):
    assert f"--signal=B:USR1@{warning}\n" in slurm.SLURM.format_job(
        slurm.Slurm(time=time, name="a"), ["a.py"], "runs/a-1"
    )


def test_one_rank_keeps_its_state_and_looks_at_no_other_node():
    text = slurm.SLURM.format_job(slurm.Slurm(name="a"), ["a.py"], "runs/a-1")
    assert "MATEX_STATE" in text and "--restarts 3 -n 1" in text and "srun" not in text


@pytest.mark.parametrize(
    "run, code, told",
    [
        ("touch began; exec sleep 60", 75, "asked to end"),
        ("mkdir runs/a-1/state; exit 75", 75, "ended with exit code 75"),
        ("exit 3", 3, ""),
    ],
)
def test_a_run_that_asks_again_is_requeued(tmp_path, run, code, told):
    """Also one that ends by the warning itself, since it was not ready for it."""
    for name, body in (("matex", run), ("scontrol", "echo scontrol $*")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    (tmp_path / "runs" / "a-1").mkdir(parents=True)
    text = slurm.SLURM.format_job(slurm.Slurm(name="a", matex="./matex"), ["a.py"], "runs/a-1")
    env = {"PATH": f"{tmp_path}:/bin:/usr/bin", "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"}
    with subprocess.Popen(["bash", "-c", text], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as child:
        if "sleep" in run:
            while not (tmp_path / "began").exists():
                assert child.poll() is None
            child.send_signal(signal.SIGUSR1)
        out, _ = child.communicate(timeout=30)
    assert child.returncode == code
    kept = "state kept" if "state" in run else "no state yet"
    again = rf"matex: job 4711 {told} after 0:00:0\d, {kept}; to be requeued \(2\)\nscontrol requeue 4711\n"
    assert re.fullmatch(again if told else "", out), out
    assert (tmp_path / "runs" / "a-1" / "exit-code").exists() is (code == 3)


def test_a_job_that_slurm_does_not_requeue_names_the_folder_of_submission(tmp_path):
    for name, body in (("matex", "exit 75"), ("scontrol", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    (tmp_path / "runs" / "a-1").mkdir(parents=True)
    text = slurm.SLURM.format_job(slurm.Slurm(name="a", setup=("cd /",)), ["a.py"], "runs/a-1")
    env = {"PATH": f"{tmp_path}:/bin:/usr/bin", "SLURM_JOB_ID": "4711"}
    ended = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 75 and f"In {tmp_path}, sbatch runs/a-1/job.sh" in ended.stderr
    assert (tmp_path / "runs" / "a-1" / "exit-code").read_text() == "75\n"
    # A later job, which ends before its run begins, does not have the exit code of the first.
    text = slurm.SLURM.format_job(slurm.Slurm(name="a", setup=("exit 4",)), ["a.py"], "runs/a-1")
    assert subprocess.run(["bash", "-c", text], cwd=tmp_path, env=env).returncode == 4
    assert not (tmp_path / "runs" / "a-1" / "exit-code").exists()


def test_a_job_notes_itself_where_another_was_noted(tmp_path):
    """As one that `sbatch job.sh` makes, with when it was submitted: as Slurm says at its first start, or as noted."""
    for name, body in (("matex", ""), ("squeue", '[ "$SLURM_TIME_FORMAT" = %s ] && cat submitted')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    folder = tmp_path / "runs" / "a-1"
    folder.mkdir(parents=True)
    before = time.time()
    run_folder.write_note(folder, "slurm", "4711")
    noted = run_folder.find_submit_time(str(folder))
    assert noted is not None and before - 1 <= noted <= time.time() + 1
    text = slurm.SLURM.format_job(slurm.Slurm(name="a", matex="./matex"), ["a.py"], "runs/a-1")
    starts = [("4711", "1000", "1", noted), ("4712", "2000", "", 2000), ("4712", "3000", "1", 2000)]
    unknown = [("4713", "", "", None), ("4714", 'a"\n7', "", None), ("4715", "5000", "1", None)]
    for number, submitted, again, expected in [*starts, ("471", "4000", "0", 4000), *unknown]:
        (tmp_path / "submitted").write_text(submitted)
        env = {"PATH": f"{tmp_path}:/bin:/usr/bin", "SLURM_JOB_ID": number, "SLURM_RESTART_COUNT": again}
        subprocess.run(["bash", "-c", text], cwd=tmp_path, env=env, check=True)
        assert run_folder.read_note(folder) == ("slurm", slurm.Job(number, str(folder)))
        assert run_folder.find_submit_time(str(folder)) == expected
    # A full disk, on which `echo` fails, leaves the note of the job before.
    full = 'echo() { printf "{"; return 1; }\n'
    subprocess.run(["bash", "-c", full + text], cwd=tmp_path, env={**env, "SLURM_JOB_ID": "4716"}, check=True)
    assert run_folder.read_note(folder)[1].id == "4715"


def as_sbatch_reads(line: str) -> list[str]:
    """The words of a line after #SBATCH, as `_get_argument` of Slurm's sbatch finds them."""
    words, word, mark, escaped, begun = [], "", "", False, False
    for letter in line + "\n":
        if not mark and letter.isspace():
            if begun:
                words.append(word)
            word, begun, escaped = "", False, False
            continue
        begun = True
        if escaped:
            word, escaped = word + letter, False
        elif letter == "\\":
            escaped = True
        elif mark and letter == mark:
            mark = ""
        elif not mark and letter in "\"'":
            mark = letter
        elif not mark and letter == "#":
            break
        else:
            word += letter
    return words


@given(name=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(str.isprintable))
def test_a_name_arrives_as_it_was_typed(name):
    text = slurm.SLURM.format_job(slurm.Slurm(name=name, sbatch=(f"--comment={name}",)), ["a.py"], "runs/a-1")
    words = [as_sbatch_reads(line.removeprefix("#SBATCH ")) for line in text.split("\n") if line.startswith("#SBATCH")]
    assert [f"--job-name={name}"] in words and [f"--comment={name}"] in words


@hypothesis_settings(max_examples=60, deadline=None)
@given(words=st.lists(WORDS, min_size=1, max_size=4), folder=WORDS)
def test_arguments_arrive_as_they_were_typed(words, folder, tmp_path_factory):
    where = tmp_path_factory.mktemp("typed") / ("in" + folder.replace("/", ""))
    where.mkdir()
    (where / "matex").write_text('#!/bin/bash\nprintf "%s\\0" "$MATEX_STATE" "$@" > given\n')
    (where / "matex").chmod(stat.S_IRWXU)
    asked = slurm.Slurm(ranks_per_node=2, name="a", matex=shlex.quote(str(where / "matex")))
    text = slurm.SLURM.format_job(asked, words, "runs/a-1")
    subprocess.run(["bash", "-c", text], cwd=where, stderr=subprocess.DEVNULL)
    state, *given = (where / "given").read_bytes().decode().split("\0")[:-1]
    assert state == f"{where}/runs/a-1/state" and given == ["run", "--restarts", "3", "-n", "2", *words]


def test_defaults_of_two_files_and_of_the_command_line(tmp_path, capsys):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "matex.toml").write_text(
        '[slurm]\naccount = "mine"\npartition = "slow"\nranks-per-node = 2\nsetup = ["module load a"]\n'
    )
    (tmp_path / "matex.toml").write_text('[slurm]\npartition = "fast"\nsetup = "module load b"\n')
    assert (
        cli.main(["submit", "--slurm", "--dry-run", "--setup", "module load c", "--nodes", "2", "x.py", "--time"]) == 0
    )
    said = capsys.readouterr().out
    assert "--account=mine\n" in said and "--partition=fast\n" in said and "--ntasks-per-node=2\n" in said
    assert "module load a\nmodule load b\nmodule load c\n" in said
    assert "run --restarts 3 -n 4 x.py --time & child" in said and not (tmp_path / "runs").exists()
    assert cli.main(["submit", "--slurm", "--dry-run", "-n", "6", "--nodes", "2", "x.py"]) == 0
    assert "--ntasks-per-node=3\n" in capsys.readouterr().out, "the command line wins"
    assert cli.main(["submit", "--slurm", "--dry-run", "-n", "6", "--ranks-per-node", "2", "x.py"]) == 2
    assert "6 ranks do not go with 1 nodes of 2 ranks each" in capsys.readouterr().err
    assert cli.main(["submit", "--slurm", "--dry-run", "-n", "8", "--ranks-per-node", "1", "x.py"]) == 2
    assert "8 ranks do not go with 1 nodes of 1 ranks each" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, message",
    [
        ("[slurm]\npartitoin = 'a'\n", "matex.toml: there is no option partitoin; did you mean partition"),
        ("[slrum]\npartition = 'a'\n", r"matex.toml: there is no table \[slrum\]; did you mean \[slurm\]"),
        ("[slurm]\nnodes = 'two'\n", "matex.toml: slurm: expected nodes to be a whole number, 1 or more; given 'two'"),
        ("slurm = 3\n", r"matex.toml: expected \[slurm\] to be a table; given 3"),
        ("[slurm\n", "matex.toml: .*read as TOML"),
        ("[slurm]\nsetup = [1]\n", "matex.toml: expected setup to be a list of texts"),
    ],
)
def test_what_a_file_cannot_say(tmp_path, text, message):
    (tmp_path / "matex.toml").write_text(text)
    with pytest.raises((TypeError, ValueError), match=message):
        options.merge_options(slurm.Slurm, {})


@pytest.mark.parametrize(
    "words, message",
    [
        (["train.py"], "no cluster is named. For example: matex submit --slurm"),
        (["--slurm"], "no script is named"),
        (["--slurm", "no-such.py"], "there is no file no-such.py in"),
        (["--slurm", "--node", "4", "x.py"], "there is no option --node; did you mean --nodes?"),
        (["--slurm", "--nice", "9", "x.py"], "there is no option --nice. For an option of sbatch: --sbatch=--nice..."),
        (["--kubernetes", "--nice", "9", "x.py"], "there is no option --nice\n"),
        (["--slurm", "--nodes", "0", "x.py"], "expected nodes to be a whole number, 1 or more; given 0"),
        (["--slurm", "--nodes", "two", "x.py"], "'two' is not a valid integer"),
        (["--slurm", "--restarts", "-1", "x.py"], "expected restarts to be a whole number, 0 or more; given -1"),
        (["--slurm", "--time", "2h", "x.py"], "expected time to be as 2:00:00 (hours)"),
        (["--slurm", "--time", "0:00", "x.py"], "more than nothing"),
        (["--slurm", "--name", "a\nb", "x.py"], "expected name to be one line of printable text; given 'a\\nb'"),
        (["--slurm", "--sbatch", "exclusive", "x.py"], "expected sbatch to be options such as --qos=long"),
        (["--slurm", "--run", "'", "x.py"], "expected run and matex to be words as for a shell"),
        (["--slurm", "--cpus", "0", "x.py"], "expected cpus to be a whole number, 1 or more, of each rank; given '0'"),
        (
            ["--slurm", "x.py", "--node", "4"],
            "there is no option --node; did you mean --nodes? To pass it to the script",
        ),
        (["x.py", "--nodes", "4"], "no cluster is named. For example: matex submit --slurm"),
        (["--slurm", "x.py", "--nodes", "two"], "'two' is not a valid integer"),
    ],
)
def test_what_submit_cannot_do(words, message, capsys):
    assert cli.main(["submit", *words]) == 2
    assert message in capsys.readouterr().err and not os.path.exists("runs")


@pytest.mark.parametrize(
    "time, expected",
    [("30", 1800), ("30:10", 1810), ("2:00:00", 7200), ("1-12", 129600), ("1-12:30", 131400), ("1-0:0:1", 86401)],
)
def test_time_limits_as_slurm_has_them(time, expected):
    assert options.parse_time(time) == expected


def test_a_job_of_a_module(capsys):
    assert cli.main(["submit", "--slurm", "--dry-run", "-m", "package.module", "-m", "1"]) == 0
    said = capsys.readouterr().out
    assert "run --restarts 3 -n 1 -m package.module -m 1 & child" in said and "--job-name=package.module\n" in said


@pytest.mark.parametrize(
    "words, nodes, time, runs",
    [
        (["--slurm", "train.py", "--nodes", "4", "--time", "2:00:00"], 4, "2:00:00", "train.py"),
        (["train.py", "--nodes=4", "--slurm"], 4, "", "train.py"),
        (["--slurm", "train.py", "data", "--lr", "-1", "--nodes", "4", "-n4"], 4, "", "train.py data --lr -1"),
        (["--slurm", "train.py", "--nodes", "4", "--", "--time", "3", "--"], 4, "", "train.py --time 3 --"),
        (["--slurm", "-m", "package.train", "-m", "1", "--nodes", "4"], 4, "", "-m package.train -m 1"),
        (["--slurm", "train.py", "--epochs", "90"], 1, "", "train.py --epochs 90"),
        (["--slurm", "train.py", "--env", "CartPole-v1", "--nodes", "4"], 4, "", "train.py --env CartPole-v1"),
        (["--slurm", "train.py", "--", "--epochs", "90"], 1, "", "train.py --epochs 90"),
        (["--slurm", "--nodes", "4", "train.py", "--time", "3"], 4, "", "train.py --time 3"),
        (["--slurm", "--nodes", "4", "train.py", "--", "--node"], 4, "", "train.py -- --node"),
        (["--slurm", "--", "train.py", "--nodes", "4"], 1, "", "train.py --nodes 4"),
    ],
)
def test_options_of_the_job_may_follow_the_script(words, nodes, time, runs, capsys):
    assert cli.main(["submit", "--dry-run", *words]) == 0
    text = capsys.readouterr().out
    assert f"#SBATCH --nodes={nodes}\n" in text and f"run --restarts 3 -n {nodes} {runs} & child" in text
    assert not time or f"#SBATCH --time={time}\n" in text
    assert ("#SBATCH --time=" in text) == bool(time)


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["train.py", "--nodes", "4", "--epochs", "9", "--name", "a b"],
            "matex: --nodes 4 --name 'a b' after train.py goes to the job; the script's own arguments may follow `--`",
        ),
        (["--nodes", "4", "train.py", "--name", "a", "--time=3"], "matex: --name, --time=3 after train.py goes to the"),
        (["--nodes", "4", "train.py", "--epochs", "9", "--", "--name", "a"], ""),
        (["train.py", "--epochs", "9"], ""),
    ],
)
def test_words_that_may_be_meant_otherwise_are_told(words, said, capsys):
    assert cli.main(["submit", "--slurm", "--dry-run", *words]) == 0
    told = capsys.readouterr().err
    assert said in told if said else told == ""


def test_each_rank_gets_the_cores_that_are_asked_for(tmp_path, capsys):
    (tmp_path / "matex.toml").write_text("[slurm]\ncpus = 4\n")
    assert cli.main(["submit", "--slurm", "--dry-run", "x.py"]) == 0
    assert "#SBATCH --cpus-per-task=4\n" in capsys.readouterr().out
    assert cli.main(["submit", "--slurm", "--dry-run", "--cpus", "8", "x.py"]) == 0
    assert "#SBATCH --cpus-per-task=8\n" in capsys.readouterr().out
    assert options.format_options(slurm.Slurm(cpus=8)) == ["--cpus=8"]
