"""What ranks print on its way into files and pipes: whole, in order, and told where some of it is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from matex_tf.launch import output_file

PROGRAM = (
    "import os, subprocess, sys; from matex_tf.launch import output_file\n"
    "with output_file.Outlet() as out:\n    {}\n"
    "sys.exit(out.correct_exit_code(0))\n"
)


def execute(work, **files):
    command = [sys.executable, "-c", PROGRAM.format(work)]
    return subprocess.run(command, timeout=50, **files)


def test_what_mpirun_says_has_no_nul_byte_and_who_keeps_its_output_is_not_waited_for(tmp_path):
    work = (
        "os.write(2, b'one\\0two\\n' * 9999); os.write(1, b'a\\0b'); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid))"
    )
    try:
        with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
            execute(work, stdout=out, stderr=err).check_returncode()
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (tmp_path / "err").read_bytes() == b"onetwo\n" * 9999 and (tmp_path / "out").read_bytes() == b"a\0b"


def test_output_and_errors_that_lead_to_one_place_keep_their_order():
    """Also where a piece ends between a line and the NUL byte after it; within a line the byte is the script's own."""
    work = "[(os.write(2, b'err\\n'), os.write(2, b'\\0'), os.write(1, b'out a\\0b\\n')) for _ in range(500)]"
    found = execute(work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert found.returncode == 0 and found.stdout == b"err\nout a\0b\n" * 500


def test_errors_that_cannot_be_written_are_lost_output():
    """So is what leads to the same full device; a code of the run's own stays."""
    with open("/dev/full", "wb") as full:
        assert execute("os.write(2, b'a reason')", stderr=full).returncode == 120
        assert execute("os.write(1, b'a number')", stdout=full, stderr=subprocess.STDOUT).returncode == 120
        told = execute("os.write(1, b'a number')", stdout=full, stderr=subprocess.PIPE)
    assert told.returncode == 120 and b"standard output: No space left" in told.stderr


def test_a_full_pipe_that_does_not_block_is_waited_for():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [sys.executable, "-c", PROGRAM.format("os.write(2, b'x' * (1 << 20))")]
    with open(reader, "rb") as errors, subprocess.Popen(command, stderr=writer) as process:
        os.close(writer)
        time.sleep(0.5)
        assert len(errors.read()) == 1 << 20
    assert process.returncode == 0


@pytest.mark.parametrize("home, told", [(sys.base_prefix, b""), ("/missing", b"a full disk will not be reported")])
def test_output_stays_where_no_process_can_copy_it(home, told, tmp_path):
    """As of a Python that does not find its library in PYTHONHOME, which a Python somewhere else needs."""
    work = "os.write(1, b'a number')"
    program = f"import os; os.environ['PYTHONHOME'] = {home!r}\n" + PROGRAM.format(work)
    with open(tmp_path / "out", "wb") as out:
        ran = subprocess.run([sys.executable, "-c", program], stdout=out, stderr=subprocess.PIPE, timeout=50)
    assert ran.returncode == 0 and (tmp_path / "out").read_bytes() == b"a number"
    assert told in ran.stderr and (bool(told) or not ran.stderr)


def test_signals_are_not_blocked_after_a_failed_start(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(FileNotFoundError, match="missing"):
        output_file._Copy([1]).start()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
