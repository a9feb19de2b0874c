"""Cores, threads and GPUs of local ranks: what is computed, and what ranks under a real mpirun get."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

import launch
from matex_tf.world import placement, task_environment

HYPERTHREADED = [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("text, cpus", [("0-3,8,10-11", [0, 1, 2, 3, 8, 10, 11]), ("5", [5]), ("", []), ("0\n", [0])])
def test_cpu_lists_are_read_and_written(text, cpus):
    assert placement.parse_cpu_list(text) == cpus
    assert placement.format_cpu_list(cpus) == text.strip()


@pytest.mark.parametrize("count", range(1, 17))
@pytest.mark.parametrize("ranks", range(1, 9))
def test_shares_are_contiguous_balanced_and_disjoint(count, ranks):
    cores = [(n, n + count) for n in range(count)]
    shares = [placement.choose_cores(cores, rank, ranks) for rank in range(ranks)]
    if ranks > count:
        assert all(share == cores for share in shares)
    else:
        assert [core for share in shares for core in share] == cores
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def fake_sysfs(folder, siblings, nodes):
    for cpu, text in siblings.items():
        topology = folder / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    for node, text in nodes.items():
        (folder / "node" / f"node{node}").mkdir(parents=True)
        (folder / "node" / f"node{node}" / "cpulist").write_text(text + "\n")
    return str(folder / "cpu")


def test_threads_of_a_core_stay_together_and_nodes_in_order(tmp_path, monkeypatch):
    siblings = {n: f"{n % 4},{n % 4 + 4}" for n in range(8)}
    monkeypatch.setattr(placement, "CPU_FOLDER", fake_sysfs(tmp_path, siblings, {0: "0,2,4,6", 1: "1,3,5,7"}))
    assert placement.list_cores(range(8)) == [(0, 4), (2, 6), (1, 5), (3, 7)]
    assert placement.list_cores([0, 1, 4]) == [(0, 4), (1,)], "only CPUs that the process may use"


def test_a_machine_that_tells_nothing_of_its_cores_has_one_for_each_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "CPU_FOLDER", str(tmp_path))
    assert placement.list_cores([3, 1]) == [(1,), (3,)]


@pytest.mark.parametrize(
    "cpus, sharing, quota, local_size, threads",
    [
        (4, 1, None, 2, None),  # a thread for each CPU is TensorFlow's own choice
        (1, 1, None, 2, None),
        (2, 3, None, 3, 1),  # three ranks on two CPUs
        (8, 1, 4.0, 2, 2),  # a container limited to four CPUs of sixteen
        (8, 1, 64.0, 2, None),
        (8, 1, 0.5, 2, 1),
    ],
)
def test_threads(cpus, sharing, quota, local_size, threads):
    assert placement.choose_thread_count(cpus, sharing, quota, local_size) == threads


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"])
@pytest.mark.parametrize("mode", ["auto", "spread"])
def test_threads_that_the_user_set_are_his(name, mode):
    assert placement.is_chosen_by_user({name: "4"}, mode)
    assert not placement.is_chosen_by_user({name: ""}, mode)


def test_binding_that_the_user_set_is_his_unless_told_to_spread():
    for environment in (
        {"PRTE_MCA_hwloc_default_binding_policy": "core"},
        {"PRTE_MCA_rmaps_default_mapping_policy": "ppr:2:package"},
        {"OMPI_MCA_rmaps_base_mapping_policy": "slot:pe=4"},
        {"KMP_AFFINITY": "compact"},
    ):
        assert placement.is_chosen_by_user(environment, "auto"), environment
        assert not placement.is_chosen_by_user(environment, "spread"), environment
    assert not placement.is_chosen_by_user({"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}, "auto")


@pytest.mark.parametrize(
    "words, meant",
    [
        ("prterun -n 2 python train.py", False),
        ("prterun -n 2 python train.py --bind-to core", False),
        ("mpirun -n 2 --bind-to core python train.py", True),
        ("mpirun -n 2 --bind-to none python train.py", True),
        ("mpirun --map-by ppr:1:numa:pe=4 -n 2 python train.py", True),
        ("mpirun --map-by=slot:pe=2 -n 2 python train.py", True),
        ("mpirun -map-by=slot:pe=2 -n 2 python train.py", True),
        ("mpirun --map-by :OVERSUBSCRIBE -n 2 python train.py", False),
        ("mpirun --map-by ppr:2:node -n 2 python train.py", False),
        ("mpirun --host a:2,b:2 --mca pml ob1 -n 4 python train.py", False),
    ],
)
def test_binding_on_the_command_line_of_mpirun(words, meant):
    assert placement.is_bound_by_launcher("prterun", words.split(), {}) == meant


@pytest.mark.parametrize("policy, meant", [("", False), ("none", False), ("quiet,mask_cpu:0x3", True), ("cores", True)])
def test_binding_by_srun(policy, meant):
    assert placement.is_bound_by_launcher("slurmstepd", ["slurmstepd"], {"SLURM_CPU_BIND": policy}) == meant


def test_one_core_for_more_than_two_ranks_was_asked_for():
    assert placement.is_narrower_than_default({1, 5}, HYPERTHREADED, world_size=4)
    assert not placement.is_narrower_than_default({1, 5}, HYPERTHREADED, world_size=2)
    assert not placement.is_narrower_than_default({0, 1, 4, 5}, HYPERTHREADED, world_size=4)
    assert not placement.is_narrower_than_default({0}, [(0,)], world_size=4)


@pytest.mark.parametrize(
    "count, visible, chosen",
    [
        (0, None, [None, None, None]),
        (1, None, [None, None, None]),
        (2, None, ["0", "1", "0"]),
        (4, None, ["0", "1", "2"]),
        (4, "2", ["2", "2", "2"]),
        (4, "2,3", ["2", "3", "2"]),
        (4, "GPU-aa,GPU-bb", ["GPU-aa", "GPU-bb", "GPU-aa"]),
        (4, "", ["", "", ""]),
    ],
)
def test_each_rank_sees_its_own_gpu(count, visible, chosen, clean_environment):
    assert [place_gpu(clean_environment, count, visible, rank, 3)[0] for rank in range(3)] == chosen


def place_gpu(monkeypatch, count, visible, local_rank, local_size, part=""):
    """The variables of a rank on a node with `count` GPUs: CUDA_VISIBLE_DEVICES, TF_FORCE_GPU_ALLOW_GROWTH."""
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    monkeypatch.setattr(placement, "count_gpus", lambda: count)
    monkeypatch.setattr(os, "environ", variables)
    placement.place_gpu(local_rank, local_size, part)
    return variables.get("CUDA_VISIBLE_DEVICES"), variables.get("TF_FORCE_GPU_ALLOW_GROWTH")


def test_ranks_that_share_a_gpu_do_not_take_its_memory_whole(clean_environment):
    assert place_gpu(clean_environment, 2, None, 1, 2) == ("1", None)
    assert place_gpu(clean_environment, 2, None, 2, 3) == ("0", "true")
    assert place_gpu(clean_environment, 4, "3,4,5,6", 1, 2, part="2/2") == ("6", None)
    assert place_gpu(clean_environment, 0, None, 0, 2, part="2/2") == (None, None)
    assert placement.choose_part([1], "2/3") == [1]


def test_the_limit_of_a_container_is_read(monkeypatch):
    files = {"/proc/self/cgroup": "0::/job/step\n", "/sys/fs/cgroup/job/cpu.max": "250000 100000\n"}
    monkeypatch.setattr(placement, "read_file", lambda path: files.get(path, ""))
    assert placement.read_cpu_quota() == 2.5
    files["/sys/fs/cgroup/job/cpu.max"] = "max 100000\n"
    assert placement.read_cpu_quota() is None
    files["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"], files["/sys/fs/cgroup/cpu/cpu.cfs_period_us"] = "50000\n", "100000\n"
    assert placement.read_cpu_quota() == 0.5


# Bare mpirun, without the library attached: each rank places itself and tells which CPUs all of its threads have.
RANK = """
import json, os, sys, threading
from matex_tf.world import placement
wait = threading.Event()
threading.Thread(target=wait.wait, daemon=True).start()
rank, size = (int(os.environ["OMPI_COMM_WORLD_LOCAL_" + name]) for name in ("RANK", "SIZE"))
placement.apply_placement(rank, size)
masks = {tuple(sorted(os.sched_getaffinity(int(thread)))) for thread in os.listdir("/proc/self/task")}
assert len(masks) == 1, masks
print(json.dumps([rank, masks.pop(), os.environ.get("TF_NUM_INTRAOP_THREADS")]), flush=True)
"""


def places(*options, ranks=2, env=None, prefix=()):
    """What each of `ranks` ranks tells of itself under `mpirun options`, in order of rank."""
    environment = launch.environment({"MATEX_DISABLE": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", **(env or {})})
    environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    command = [
        *prefix,
        launch.mpirun().path,
        "-n",
        str(ranks),
        *options,
        launch.sys.executable,
        launch.script_file(RANK),
    ]
    result = launch.execute(command, environment, timeout=60).check()
    return sorted(json.loads(line) for line in result.stdout.splitlines() if line.startswith("["))


CPUS = sorted(os.sched_getaffinity(0))
CORES = placement.list_cores()


def test_two_pinned_ranks_are_spread_over_the_node():
    told = places()
    assert sorted(cpu for _, cpus, _ in told for cpu in cpus) == (CPUS if len(CORES) > 1 else CPUS * 2)
    assert [cpus for _, cpus, _ in told] == [
        sorted(cpu for core in placement.choose_cores(CORES, rank, 2) for cpu in core) for rank in range(2)
    ]


def test_a_single_pinned_rank_gets_the_node():
    assert places(ranks=1)[0][1] == CPUS


def test_more_ranks_than_cores_share_them_with_a_thread_each():
    ranks = len(CORES) + 1
    if ranks > 9:
        ranks, prefix = 2, ["taskset", "-c", str(CPUS[0])]
    else:
        prefix = []
    told = places("--map-by", ":OVERSUBSCRIBE", ranks=ranks, prefix=prefix)
    expected = [CPUS[0]] if prefix else CPUS
    assert all(cpus == expected and threads == "1" for _, cpus, threads in told)


def test_ranks_stay_where_the_launcher_was_held():
    told = places(prefix=["taskset", "-c", str(CPUS[-1])])
    assert [cpus for _, cpus, _ in told] == [[CPUS[-1]]] * 2


@pytest.mark.parametrize(
    "options, env",
    [
        (["--bind-to", "none"], {}),
        (["--bind-to", "core"], {}),
        ([], {"OMP_NUM_THREADS": "3"}),
        ([], {"MATEX_PLACEMENT": "off"}),
        ([], {"PRTE_MCA_hwloc_default_binding_policy": "core"}),
    ],
)
def test_what_the_user_settled_is_left(options, env):
    told = places(*options, env=env)
    before = [CPUS] * 2 if options == ["--bind-to", "none"] else [list(core) for core in CORES[:2]] * 2
    assert [cpus for _, cpus, _ in told] == before[:2]
    assert all(threads is None for _, _, threads in told)


def test_spread_overrides_binding():
    told = places("--bind-to", "none", env={"MATEX_PLACEMENT": "spread:2/2"})
    mine = [cpu for core in CORES[len(CORES) // 2 :] for cpu in core]
    shared = len(CORES) < 3  # two ranks in the second half of the cores
    assert sorted(cpu for _, cpus, _ in told for cpu in cpus) == sorted(mine * 2 if shared else mine)


def test_tensorflow_sizes_its_pools_by_the_cores_of_the_rank():
    """Its own choice of threads is what placement relies on: it makes more of them where it may use more CPUs."""
    program = (
        "import os, tensorflow as tf\n"
        "a = tf.random.normal([500, 500]); tf.linalg.matmul(a, a).numpy()\n"
        "print(len(os.listdir('/proc/self/task')))\n"
    )
    counts = []
    for cpus in ([CPUS[0]], CPUS):
        command = ["taskset", "-c", ",".join(map(str, cpus)), launch.sys.executable, "-c", program]
        child = subprocess.run(
            command, env=task_environment.remove_job_variables(os.environ), capture_output=True, text=True, timeout=120
        )
        counts.append(int(child.stdout.split()[-1]))
    assert counts[1] > counts[0] or len(CPUS) == 1, counts
