"""The library in one process: it uses one MPI, has kernels for GPUs, and needs no MPI without other ranks."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf

import launch
from matex_tf import errors, ops
from matex_tf.errors import BuildError
from matex_tf.ops import build, interface

ALONE = """
import sys
import numpy as np
import tensorflow as tf
from matex_tf import ops
from matex_tf.world import world

assert not world.is_active()
assert ops.allreduce(tf.constant([1, 2])).numpy().tolist() == [1, 2]
assert ops.allgather(tf.constant(3.0)).numpy().tolist() == [3.0]
assert ops.broadcast(tf.constant("text" != "")).numpy()
ops.barrier()
ops.announce_turns([1, 2])
ops.rendezvous(ops.Kind.CONTROL, 1, "nothing")
assert tf.function(lambda x: ops.allreduce(x, "max"))(tf.constant(2.0)).numpy() == 2.0
reduced = ops.reduce_gradients([tf.ones(2), tf.fill([], float("nan"))], ["a", "b"], 0.5)
assert reduced[0].numpy().tolist() == [0.5, 0.5]
assert ops.reduce_gradients([tf.fill([], float("nan"))], ["b"], 0.0)[0].numpy() == 0
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    session.run([ops.allreduce(tf.constant(1.0)), ops.barrier()])
assert ops.count_updates() == 0
assert "mpi4py" not in sys.modules
import matex_tf.ops.library
assert sys.modules["matex_tf.ops.library"]._library is None

# The ops can be loaded nevertheless: their kernels for GPUs take tensors in host memory.
ops.load_tensorflow_ops()
from tensorflow.python.framework import kernels
for name in (*ops.OP_TYPES, "MatexKeepOrder"):
    found = kernels.get_registered_kernels_for_op(name).kernel
    devices = {kernel.device_type: set(kernel.host_memory_arg) for kernel in found}
    assert set(devices) == {"CPU", "GPU"}, name
    print(name, sorted(devices["GPU"]))
assert "mpi4py" not in sys.modules

array = np.arange(30_000_000, dtype=np.float64).reshape(3000, 10_000)
value = ops.hash_content(array)
assert 0 <= value < 1 << 64 and value == ops.hash_content(array.copy())
assert value == ops.hash_content(np.asfortranarray(array)), "by content, not by layout in memory"
assert ops.hash_content(array[::2]) == ops.hash_content(array[::2].copy())
others = [ops.hash_content(array, 1), ops.hash_content(array.reshape(-1)), ops.hash_content(array.view(np.int64))]
changed = array.copy()
changed[2999, 9999] += 1
others.append(ops.hash_content(changed))
others += [ops.hash_content(np.zeros(0)), ops.hash_content(np.zeros((0, 3))), ops.hash_content(np.float32(0))]
assert len({value, *others}) == 8
assert ops.hash_content(np.array(["a", "b"])) != ops.hash_content(np.array(["a", "c"]))
try:
    ops.hash_content(np.array([object()]))
except TypeError as error:
    print(error)
print("alone: ok")
"""

HOST_MEMORY = {
    "MatexAllreduce": ["order", "x", "y"],
    "MatexBroadcast": ["order", "x", "y"],
    "MatexAllgather": ["order", "rows", "x", "y"],
    "MatexBarrier": ["order"],
    "MatexKeepOrder": ["order"],
    "MatexReduceGradients": ["gradients", "order", "reduced", "weight"],
    "MatexReduceOnDevice": ["weight"],
}

UNEQUAL = """
import sys
import tensorflow as tf
from matex_tf import errors, ops
from matex_tf.world import world

rank = world.get_world().rank

def step():
    return ops.reduce_gradients([tf.ones([3]), tf.ones([4 + rank])], ["kernel", "bias"], 1.0, "the update of a test")

def caught(function):
    try:
        function()
    except (tf.errors.FailedPreconditionError, errors.MismatchError) as error:
        assert "'bias'" in str(error) and "float32 [4] on rank 0" in str(error), error
        assert "float32 [5] on rank 1" in str(error) and "the update of a test" in str(error), error
        assert f"rank {rank} of 2 on " in str(error), error
        return
    raise AssertionError("no error")

def in_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(step())

def in_monitored_session():
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        reduced = step()
        with tf.compat.v1.train.MonitoredSession() as session:
            session.run(reduced)

for function in (step, tf.function(step), in_session, in_monitored_session, ops.barrier,
                 lambda: ops.rendezvous(ops.Kind.CONTROL, 0, "a message"), lambda: ops.allreduce(1.0)):
    caught(function)
assert ops.count_updates() == 0
with open(sys.argv[1] + f"/rank{rank}", "w") as file:
    file.write("caught")
"""


def test_alone():
    result = launch.run_alone(ALONE, cold=True).check()
    for name, arguments in HOST_MEMORY.items():
        assert f"{name} {arguments}" in result.stdout
    assert "expected an array of numbers" in result.stdout
    assert "alone: ok" in result.stdout


def test_ranks_that_differ_fail_however_tensorflow_runs_the_op(tmp_path):
    """No way of running hangs or tries for ever, and the launch ends with an exit code that is not 0."""
    result = launch.run(2, UNEQUAL, str(tmp_path), env={"MATEX_OUTPUT": "all"}, module=False)
    assert {file.name for file in tmp_path.iterdir()} == {"rank0", "rank1"}, result.output[-4000:]
    assert result.returncode != 0


def test_a_library_finds_mpi_after_the_environment_that_built_it_is_gone(tmp_path):
    """One that another environment of the same MPI has built is linked to that one's folder."""
    plan = build.make_engine_plan()
    elsewhere = re.compile(rb"(?<=\0)(/[\w.+~-]+)+/lib(64)?(?=[\0:])")  # the run path
    content = elsewhere.sub(lambda found: b"/gone".ljust(len(found[0]), b"!"), build.ensure_library(plan).read_bytes())
    (tmp_path / plan.library).write_bytes(content)
    (tmp_path / f"{plan.key}.json").write_text(json.dumps({"digest": hashlib.sha256(content).hexdigest()}))
    program = "from matex_tf.ops.library import get_library\nprint(get_library().c.matex_mpi_version())\n"
    result = launch.run_alone(program, env={"MATEX_OPS_DIR": str(tmp_path), "LD_LIBRARY_PATH": ""}, cold=True).check()
    assert plan.mpi.partition(",")[0] in result.stdout and "building" not in result.output


def test_two_mpi_libraries(monkeypatch):
    library = sys.modules["matex_tf.ops.library"]
    monkeypatch.setitem(
        sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(Get_library_version=lambda: "Open MPI v5\0"))
    )
    same = SimpleNamespace(matex_mpi_version=lambda: b"Open MPI v5")
    other = SimpleNamespace(matex_mpi_version=lambda: b"MPICH 4")
    monkeypatch.setattr(interface, "list_mapped_mpi_libraries", lambda: ["/a/libmpi.so.40"])
    library._check_mpi(same)
    with pytest.raises(errors.SetupError, match="Open MPI v5.*MPICH 4"):
        library._check_mpi(other)
    monkeypatch.setattr(interface, "list_mapped_mpi_libraries", lambda: ["/a/libmpi.so.40", "/b/libmpi.so.12"])
    with pytest.raises(errors.SetupError, match="/a/libmpi.so.40, /b/libmpi.so.12"):
        library._check_mpi(same)


def test_mpi_libraries_are_told_from_their_companions():
    pattern = sys.modules["matex_tf.ops.interface"]._MPI_LIBRARY
    assert all(
        pattern.match(name)
        for name in ("libmpi.so.40.30.4", "libmpich.so.12", "libmpi.so", "libmpi_ibm.so.3", "libmpi_cray.so.12")
    )
    assert not any(
        pattern.match(name)
        for name in ("libmpi_cxx.so.40", "libmpi_mpifh.so.40", "libmpicxx.so.12", "libmpifort.so.12", "libmpijava.so")
    )


@pytest.mark.parametrize("load, failure", [(interface.load_library, OSError), (tf.load_op_library, tf.errors.OpError)])
def test_library_that_cannot_be_loaded(tmp_path, load, failure):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(BuildError, match="broken.so cannot be loaded.*Delete that file"):
        sys.modules["matex_tf.ops.library"]._load_file(broken, load, failure)


def test_public_names():
    assert set(ops.__all__) <= set(dir(ops))
