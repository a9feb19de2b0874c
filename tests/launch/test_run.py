"""A whole `matex run`: its output, its exit code, its events, and what its ranks have."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_mpirun import say
from matex_command import PLAIN, matex

import launch
from matex_tf.__main__ import main
from matex_tf.world import exit_codes

pytestmark = pytest.mark.waits


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


def test_what_happens_to_a_recorded_run_is_written_down(tmp_path):
    (tmp_path / "a.py").write_text("raise SystemExit(3)")
    assert matex("run", "--record", "a b", "-n", 2, "a.py", "x y", env=PLAIN, cwd=tmp_path).returncode == 3
    lines = [json.loads(line) for line in (tmp_path / "a b" / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["matex run a.py 'x y'", "ended with exit code 3"]
    assert lines[-1]["end"] == 3
    (tmp_path / "file").write_text("")
    found = matex("run", "--record", "file", "-n", 2, "a.py", env=PLAIN, cwd=tmp_path)
    assert found.returncode == 2 and "--record file: File exists. Name a writable folder" in found.stderr


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
    for target, code in (("/dev/full", 120), ("file", 0), ("/dev/null", 0), ("&-", 0)):
        line = ["bash", "-c", f"{words} >{target}"]
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


@pytest.mark.parametrize("target, safe", [("links/x.py", ""), ("links/x.py", "1"), ("app", "")])
def test_modules_are_found_where_python_finds_them(tmp_path, target, safe):
    """`x.py` is a link; a script that is started by it imports what lies next to the file. `app` is a folder."""
    for name in ("real", "links", "app"):
        (tmp_path / name).mkdir()
    for name in ("real/x.py", "app/__main__.py"):
        (tmp_path / name).write_text("import sys\nprint(sys.path, __file__)\n")
    (tmp_path / "links" / "x.py").symlink_to(tmp_path / "real" / "x.py")
    ways = ([sys.executable, *way, target] for way in ([], ["-m", "matex_tf"]))
    environment = launch.environment({"PYTHONSAFEPATH": safe})
    alone, ours = (launch.execute(words, environment, 60, tmp_path).check().stdout for words in ways)
    assert ours == alone


@pytest.mark.parametrize("name, message", [
    ("package.train", "cannot import name 'absent' from 'os'"), ("absent.train", "there is no module 'absent.train'"),
    (".train", "there is no module '.train'"),
])  # fmt: skip
def test_an_error_of_a_parent_package_is_no_missing_module(tmp_path, name, message):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from os import absent\n")
    result = launch.execute([sys.executable, "-m", "matex_tf", "-m", name], launch.environment(PLAIN), 60, tmp_path)
    assert result.returncode == 1 and message in result.stderr


@pytest.mark.parametrize("arguments", [["absent.py"], ["-m", "absent"]])
def test_a_missing_script_is_an_end_with_an_exit_code(monkeypatch, arguments):
    for name in ("exit_code", "exit_text", "_is_watched"):
        monkeypatch.setattr(exit_codes, name, getattr(exit_codes, name))  # restored after the test
    with pytest.raises(SystemExit):
        main(arguments)
    assert exit_codes.exit_code == 1 and "absent" in exit_codes.exit_text


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
        "import sys; from matex_tf.launch import cli, command_line; "
        "command_line.make_command_line = lambda run, mpirun: [sys.argv[1]]; "
        "sys.exit(cli.main(['run', '-n', '2', sys.argv[1]]))"
    )
    result = launch.execute([sys.executable, "-c", program, str(mpirun)], launch.environment(), 60, tmp_path)
    assert result.returncode == (0 if says else 71), result.output
    assert ("a rank or a host was lost" in result.stderr) == (not says)


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
