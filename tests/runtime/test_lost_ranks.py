"""A rank that is lost is named with its host, the others end, and what was being saved is whole.

`benchmarks/faults.py` tries many more moments and ways.
"""

import re
import socket

import pytest

import launch

ENDS = """
import ctypes, os, signal, sys
import matex_tf
from matex_tf.runtime import objects
objects.barrier("before the end")
if matex_tf.rank() == 1 or "all" in sys.argv:
    eval(sys.argv[1])
objects.barrier("after the end")
print("went on")
"""


@pytest.mark.parametrize(
    "how, code", [("os.kill(os.getpid(), signal.SIGKILL)", 137), ("os._exit(3)", 3), ("ctypes.CDLL(None)._exit(0)", 1)]
)
def test_a_rank_that_ends_is_named_and_the_others_end(how, code):
    result = launch.run(2, ENDS, how, timeout=200, cold=True)
    assert result.returncode == code and "went on" not in result.stdout, result.output
    # mpirun breaks its lines.
    host = re.escape(socket.gethostname().split(".")[0])
    assert re.search(rf"rank 1\b.{{0,60}}\b{host}\b", " ".join(result.stderr.split())), result.stderr


@pytest.mark.parametrize("name", ["ends.py", "my_script_ops.py"])  # as TensorFlow's own module is named
def test_a_script_may_end_all_ranks_by_exit_at_once(name, tmp_path):
    path = tmp_path / name
    path.write_text(ENDS)
    launch.run(2, path, "os._exit(0)", "all", timeout=200, cold=True).check()


def test_an_exit_at_once_within_an_op_aborts_all():
    how = "__import__('tensorflow').py_function(lambda: os._exit(0), [], [])"
    result = launch.run(2, ENDS, how, "all", timeout=200, cold=True)
    assert result.returncode and "went on" not in result.stdout, result.output


SAVES = """
import os, signal, sys, zipfile
import numpy as np
import keras
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.save("model.keras")
model.save_weights("model.weights.h5")
write = zipfile.ZipFile.writestr
def killed(self, name, *args, **kwargs):
    write(self, name, *args, **kwargs)
    self.fp.flush()
    os.kill(os.getpid(), signal.SIGKILL)
zipfile.ZipFile.writestr = killed
model.set_weights([np.ones((3, 2)), np.ones(2)])
model.save("model.keras")
"""
LOADS = """
import keras, os
assert float(abs(keras.models.load_model("model.keras").get_weights()[1]).max()) == 0
print(sorted(name for name in os.listdir() if name[0] != "."))
"""


def test_rank_0_killed_while_it_overwrites_a_model_leaves_the_old_one(tmp_path):
    assert launch.run(2, SAVES, timeout=200, cwd=tmp_path).returncode == 137
    found = launch.run_alone(LOADS, cwd=tmp_path).check()
    assert found.stdout == "['model.keras', 'model.weights.h5']\n"


LATE_ERROR = """
import colorsys, ctypes, os, sys
import matex_tf

class Late:
    def __del__(self, hook=lambda sys=sys: sys.excepthook, write=os.write):
        error = ValueError("as the interpreter ends")
        hook()(ValueError, error, None)  # as extension modules do in what they free
        write(1, b"freed")

colorsys.late = Late()  # Python clears its modules after the script and all exit functions
"""


def test_an_error_that_python_meets_after_the_end_of_a_script_fails_no_run(tmp_path):
    (tmp_path / "late.py").write_text(LATE_ERROR)
    ended = launch.matex_run(2, tmp_path / "late.py", cold=True).check()
    assert ended.stdout == "freed" and "ranks" not in ended.stderr, ended.output
    assert "ValueError: as the interpreter ends" in ended.stderr, "Python shows it, as alone"
