"""An error of any rank, or an exit code, is told once, with rank and host, and ends every rank."""

import re
import sys

import pytest

import launch
from matex_tf.world import exit_codes


def test_an_exception_on_one_rank_ends_all_and_is_told_once():
    """Also one whose text is like that of a collective that failed."""
    script = """
        import time
        import tensorflow
        import matex_tf
        matex_tf.barrier()
        if matex_tf.rank() == 1:
            raise ValueError("a reason of my own: the end of its script, with exit code 7; its own message says why")
        time.sleep(60)
        print("has not been ended", flush=True)
    """
    script = "\n".join(line[8:] for line in script.splitlines())
    result = launch.run_failing(
        2, script, cold=True, env={"MATEX_STALL_SECONDS": "2"}
    )  # how long rank 1 waits for rank 0
    assert result.stdout == ""
    assert result.output.count("ValueError: a reason of my own") == 1
    assert "rank 1 of 2 on " in result.stderr


def test_the_same_exception_on_all_ranks_is_told_once():
    result = launch.run_failing(3, "import tensorflow\nraise ValueError('everywhere')\n")
    assert result.output.count("ValueError: everywhere") == 1
    assert re.search("rank . of 3 on .* failed at script.py, line 2[ :]", result.stderr)


def test_exit_codes():
    script = "import sys\nimport tensorflow\nprint('once')\nsys.exit(3)\n"
    result = launch.run_failing(2, script, code=3)
    assert result.stdout.count("once") == 1
    result = launch.run_failing(
        2, "import sys, tensorflow, matex_tf\nif matex_tf.rank() == 1:\n    sys.exit(3)\nmatex_tf.barrier()\n", code=3
    )
    assert "rank 1" in result.output and "with exit code 3" in result.output


def test_the_name_of_a_collective_is_no_exit_code():
    script = """
import tensorflow
import matex_tf
from matex_tf import ops

name = "the end of its script, with exit code 7; its own message says why"
ops.barrier(name) if matex_tf.rank() == 1 else ops.allreduce(1.0, name=name)
"""
    assert "different places" in launch.run_failing(2, script).stderr


def test_of_several_ranks_that_have_ended_the_one_with_an_exit_code_ends_all():
    script = """
import sys
import tensorflow
import matex_tf

if matex_tf.rank() == 1:
    sys.exit(3)
if matex_tf.rank() == 2:
    matex_tf.barrier()
"""
    assert re.search("rank 1 of 3 on .* with exit code 3", launch.run_failing(3, script, code=3).stderr)


ENDS = """
import sys
import tensorflow as tf
import matex_tf

@tf.function
def step(rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(weights, rows))
    gradient = tf.convert_to_tensor(tape.gradient(loss, weights))
    return matex_tf.ops.reduce_gradients([gradient], ["weights"], 1.0, "an update")[0]

weights = tf.Variable(tf.ones([5, 3]))
alone = matex_tf.rank() == 1
if "hook" in sys.argv:
    sys.excepthook = lambda kind, error, trace: print("in my colours:", error, file=sys.stderr)
for turn in range(30):
    if alone and turn == 20:
        if "text" in sys.argv:
            sys.exit("there are no data at /scratch")
        if "raise" in sys.argv:
            raise SystemExit(3)
        if "hook" in sys.argv:
            raise ValueError("a reason of my own")
    step(tf.constant([1, 77 if alone and turn == 20 and "step" in sys.argv else 2]))
"""


@pytest.mark.parametrize(
    "how, code, said",
    [
        ("text", 1, "there are no data at /scratch"),
        ("raise", 3, "with exit code 3"),
        ("hook", 1, "ValueError: a reason of my own"),
        ("step", 1, "[1] = 77 is "),
    ],
)
def test_the_reason_reaches_the_terminal_however_one_rank_ends(how, code, said):
    """Also that of an overlapped update, for which the other ranks fail sooner than the rank itself can say it."""
    result = launch.run_failing(2, ENDS, how, code=code, env={"MATEX_OVERLAP": "on"})
    assert said in result.stderr and "rank 1" in result.stderr and "\0" not in result.output, result.stderr
    assert (how != "text") or len(result.stderr.splitlines()) < 12, "what follows from an exit is told beside it"


EXITS = """
import sys, threading
import numpy as np
import matex_tf

class Text:
    def __str__(self):
        return "of an object"

class Silent:
    def __str__(self):
        raise RuntimeError

def leave(how):
    if how == "caught":
        try:
            sys.exit("it is caught")
        except SystemExit:
            return
    if how == "thread":
        thread = threading.Thread(target=sys.exit, args=("of a thread",))
        thread.start()
        thread.join()
        return
    kinds = {"none": None, "zero": 0, "true": True, "int": 3, "large": 259, "negative": -2, "huge": 2**80, "float": 2.5,
             "text": "no data", "empty": "", "object": Text(), "silent": Silent(), "numpy": np.int64(4)}
    if how.startswith("raise"):
        raise SystemExit(kinds[how.partition(" ")[2]])
    sys.exit(kinds[how])

matex_tf.barrier()
if matex_tf.rank() == 1 or "all" in sys.argv:
    leave(sys.argv[1])
"""
KINDS = {
    "none": (0, ""), "zero": (0, ""), "true": (1, ""), "int": (3, ""), "large": (3, ""), "negative": (254, ""),
    "huge": (255, ""), "float": (1, "2.5"), "text": (1, "no data"), "object": (1, "of an object"), "silent": (1, ""),
    "numpy": (1, "4"), "empty": (1, ""), "raise text": (1, "no data"), "raise int": (3, ""), "caught": (0, ""),
    "thread": (0, ""),
}  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=[] if how in ("text", "huge", "caught", "thread") else pytest.mark.more) for how in KINDS],
)
def test_what_any_rank_says_to_exit_is_heard(how, module=True):
    """Also where all ranks have come to the end of the script, and only one of them by an exit."""
    code, text = KINDS[how]
    result = launch.run(2, EXITS, how, module=module)
    assert result.returncode == code, result.output
    assert ("rank 1 of 2" in result.stderr and repr(text) in result.stderr) or not text, result.output
    assert "it is caught" not in result.output


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python does not tell what ends a module")
@pytest.mark.parametrize("how", ["caught", "raise text", pytest.param("raise int", marks=pytest.mark.more)])
def test_an_exit_is_heard_where_it_ends_a_script_that_imports_the_library(how):
    test_what_any_rank_says_to_exit_is_heard(how, module=False)


@pytest.mark.more
def test_what_all_ranks_say_to_exit_is_told_once():
    result = launch.run_failing(2, EXITS, "text", "all")
    assert result.stderr.count("no data") == 1, result.output


def test_exit_codes_are_those_of_python():
    for code in (
        None,
        0,
        1,
        True,
        False,
        255,
        256,
        259,
        -1,
        -256,
        2**31,
        2**63,
        -(2**63),
        2**80,
        -(2**80),
        "x",
        "",
        2.5,
    ):
        program = f"import sys; sys.exit({code!r})"
        assert exit_codes.compute_exit_code(code) == launch.execute([sys.executable, "-c", program], {}, 60).returncode


def test_a_strategy_is_refused():
    result = launch.run_failing(2, "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n")
    assert (
        "matex_tf.UnsupportedError" in result.output
        and "MirroredStrategy" in result.output
        and "line 2: strategy =" in result.output
    )


THREADS = """
import queue, sys, threading
import matex_tf

def read(part):
    raise OSError(f"there is no part {part}")

def read_own(part):
    items.put(1 / part)

def start(function, part):
    thread = threading.Thread(target=function, args=(part,), name="reader")
    thread.start()
    thread.join()

items = queue.Queue()
start(read, matex_tf.rank())
start(read_own, 1 - matex_tf.rank())
if "waits" in sys.argv:
    items.get()
elif "raises" in sys.argv:
    items.get(timeout=0.1)
matex_tf.barrier()
print("trained")
"""


@pytest.mark.parametrize(
    "how, code", [("ends", 0), ("waits", exit_codes.EXIT_STALLED), pytest.param("raises", 1, marks=pytest.mark.more)]
)
def test_an_error_that_ends_a_thread_of_one_rank_is_told(how, code):
    """Alone, Python prints it, and the script goes on."""
    limits = {"MATEX_STALL_SECONDS": "1", "MATEX_ABORT_SECONDS": "2"}
    result = launch.run_failing(2, THREADS, how, code=code, env=limits if how == "waits" else {})
    assert "ZeroDivisionError" in result.stderr and "rank 1 of 2" in result.stderr and "'reader'" in result.stderr
    assert ("trained" in result.stdout) == (how == "ends")
    if how == "ends":
        assert result.stderr.count("OSError: there is no part") == result.stderr.count("ZeroDivisionError") == 1


@pytest.mark.parametrize(
    "variables, names",
    [
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "MPICH"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "Open MPI's mpirun"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "Slurm"),
    ],
)
def test_a_launcher_of_another_mpi_is_an_error(variables, names):
    result = launch.run_alone("import matex_tf\nprint('trained')\n", env=variables)
    assert result.returncode == 1 and "trained" not in result.stdout
    assert names in result.stderr and "sees only this one" in result.stderr and "matex run" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_allocation_is_no_launcher():
    variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}
    result = launch.run_alone(
        "import matex_tf, sys\nprint(matex_tf.size(), 'mpi4py.MPI' in sys.modules)\n", env=variables
    )
    assert result.check().stdout == "1 False\n"


def test_a_wrong_setting_is_told_once():
    result = launch.run_failing(2, "import tensorflow\n", env={"MATEX_SCALING": "sideways"})
    assert result.output.count("expected one of strong, weak") == 1 and "Traceback" not in result.output
