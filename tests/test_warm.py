"""Programs that start as children of a server: each is as fresh as a Python of its own, and ends as one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import launch

SHOWS = """
import json, os, random, signal, sys
import numpy as np
import tensorflow as tf
names = sorted(name for name in sys.modules if name.split(".")[0] == "matex_tf")
print("SHOWN " + json.dumps({
    "argv": sys.argv[1:], "path": sys.path, "name": __name__, "main": sys.modules["__main__"].__name__,
    "folder": os.getcwd(), "environment": dict(sorted(os.environ.items())), "ours": names,
    "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1)],
    "eager": tf.executing_eagerly(), "dtype": tf.keras.backend.floatx(), "left": hasattr(tf, "left_behind"),
    "files": sorted(os.readlink(f"/proc/self/fd/{n}")[:5] for n in os.listdir("/proc/self/fd") if int(n) > 2
                    and os.path.exists(f"/proc/self/fd/{n}") and "socket" in os.readlink(f"/proc/self/fd/{n}")),
}))
"""
LEAVES = """
import os, random, sys
import numpy as np
import tensorflow as tf
tf.left_behind = True
tf.keras.backend.set_floatx("float64")
os.environ["LEFT_BEHIND"] = "1"
os.chdir("/")
np.random.seed(1)
tf.compat.v1.disable_eager_execution()
sys.path.insert(0, "/left/behind")
"""


def shown(result):
    (line,) = [line for line in result.check().stdout.splitlines() if line.startswith("SHOWN")]
    return line


def test_a_program_sees_what_it_sees_in_a_python_of_its_own(tmp_path):
    script = tmp_path / "shows.py"
    script.write_text(SHOWS)
    launch.run_alone(LEAVES).check()
    found = [shown(launch.run_alone(script, "a", env={"X": "1"}, cwd=tmp_path, cold=cold)) for cold in (False, True)]
    assert found[0] == found[1]


@pytest.mark.parametrize("end, code", [("sys.exit(3)", 3), ("1 / 0", 1), ("os._exit(5)", 5), ("pass", 0),
                                       ("os.kill(os.getpid(), 9)", -9), ("os.abort()", -6)])  # fmt: skip
def test_it_ends_as_it_ends_alone(end, code):
    result = launch.run_alone(f"import os, sys\nprint('begun', flush=True)\n{end}\n")
    assert result.returncode == code and result.stdout == "begun\n"
    assert ("ZeroDivisionError" in result.stderr) == ("/ 0" in end)


ENDS = """
import atexit, sys, threading, time
class Left:
    def __del__(self):
        print("deleted")
left = Left()
left.itself = left
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.5), print("a thread"))).start()
sys.exit(*(eval(code) for code in sys.argv[1:]))
"""


@pytest.mark.parametrize("codes", [(), ("None",), ("3",), ("-1",), ("'a text'",)])
def test_what_is_due_at_its_end_is_done(codes):
    warm, cold = (launch.run_alone(ENDS, *codes, cold=cold) for cold in (False, True))
    assert (warm.returncode, warm.stderr) == (cold.returncode, cold.stderr)
    assert sorted(warm.stdout.splitlines()) == sorted(cold.stdout.splitlines()) == ["a thread", "at exit", "deleted"]


def test_ranks_have_seeds_and_addresses_of_their_own():
    program = "import numpy as np, random\nprint(np.random.rand(), random.random(), id(np.ndarray.__doc__))\n"
    lines = [line.split() for line in launch.run(2, program, module=False).check().stdout.splitlines()]
    assert all(first != second for first, second in zip(*lines)), lines


@pytest.mark.parametrize("closed", [(), (0, 1, 2)])
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, -15), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_signals_reach_it(tmp_path, number, code, closed):
    note = tmp_path / "pid"
    program = launch.script_file(
        f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    os._exit(130)\n"
    )
    words = launch.warmed([sys.executable, program], launch.environment())

    def prepare():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what tests start in the background ignores it
        for file in closed:
            os.close(file)

    child = subprocess.Popen(words, preexec_fn=prepare)
    deadline = time.monotonic() + 30
    while not (note.exists() and note.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(number)
    assert child.wait(30) == code
    inner = int(note.read_text())
    while time.monotonic() < deadline:
        if not os.path.exists(f"/proc/{inner}"):
            return
        time.sleep(0.05)
    asked = " ".join(map(os.readlink, map("/proc/self/fd/{}".format, range(3))))
    pytest.fail(f"it still runs: {Path(f'/proc/{inner}/status').read_text()}\nopen here: {asked}")


ASKS = """
import sys
import launch
program = "import os, time\\nparent = open('/proc/self/stat').read().rpartition(')')[2].split()[1]\\n"
program += "print(parent, os.getpid(), flush=True)\\n"
if sys.argv[1] == "stays":
    program += f"open({sys.argv[2]!r}, 'w').write(str(os.getpid()))\\ntime.sleep(300)\\n"
print(launch.run_alone(program).check().stdout)
"""


def test_processes_share_a_server_that_outlives_none_of_them(tmp_path):
    """Programs end with the process that has asked for them, and servers with the process for which they are."""
    note, owner = tmp_path / "pid", subprocess.Popen(["sleep", "300"])
    env = {**os.environ, launch.SHARED: f"{owner.pid}:{tmp_path}", "PYTHONPATH": str(launch.HERE)}
    words = [sys.executable, "-c", ASKS]
    try:
        first, second = (
            subprocess.Popen([*words, how, str(note)], env=env, stdout=subprocess.PIPE, text=True)
            for how in ("stays", "ends")
        )
        server, ended = map(int, second.communicate(timeout=120)[0].split())
        wait_for(lambda: note.exists() and note.read_text())
        stays = int(note.read_text())
        with open(f"/proc/{stays}/stat") as file:
            assert int(file.read().rpartition(")")[2].split()[1]) == server
        assert not os.path.exists(f"/proc/{ended}")
        first.kill()
        first.wait()
        wait_for(lambda: not os.path.exists(f"/proc/{stays}"))
        assert os.path.exists(f"/proc/{server}")
    finally:
        owner.kill()
        owner.wait()
    wait_for(lambda: not os.path.exists(f"/proc/{server}"))


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
