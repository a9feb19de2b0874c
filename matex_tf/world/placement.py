"""Sets cores, threads and GPUs of each local rank before TensorFlow starts its thread pools.

Open MPI's mpirun binds each of two ranks to one core, even on a host with 64 cores, and TensorFlow sizes its pools by
the allowed cores: the other cores would stay idle. So this module distributes the cores of a host over its ranks, in
contiguous sets, with the hardware threads of a core together. For example, of 8 cores rank 0 of 2 gets cores 0 to 3.
Threads or a binding that the user has chosen stay as they are. (The placement of a tensor is another concept.)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from glob import glob
from typing import TypeVar

from matex_tf import settings
from matex_tf.world import mpirun_options
from matex_tf.world.launcher_processes import LauncherProcess, find_launcher, read_environment

CPU_FOLDER = "/sys/devices/system/cpu"
# Environment variables by which a user chooses threads (THREAD_) or cores (BINDING_). The value of a MAPPING_ variable
# may choose cores, too (`mpirun_options.is_binding_policy`).
THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
BINDING_VARIABLES = (
    "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "I_MPI_PIN_DOMAIN", "I_MPI_PIN_PROCESSOR_LIST", "HYDRA_BINDING",
    "PRTE_MCA_hwloc_default_binding_policy", "PRTE_MCA_hwloc_default_cpu_list", "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_hwloc_base_cpu_list", "OMPI_MCA_rmaps_rank_file_path",
)  # fmt: skip
MAPPING_VARIABLES = ("PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_mapping_policy")
Core = tuple[int, ...]
"""The CPUs (hardware threads) of a core, by their numbers."""
T = TypeVar("T")


# ---- pure functions, which do not read the machine


def parse_cpu_list(text: str) -> list[int]:
    """Parse a Linux CPU list: "0-2,8" is [0, 1, 2, 8]."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Format a Linux CPU list: [0, 1, 2, 8] is "0-2,8"."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def choose_cores(cores: Sequence[T], local_rank: int, local_size: int) -> list[T]:
    """The cores of one local rank: contiguous, equal in number up to one; all cores if there are more ranks than cores.

    If three ranks were bound to two cores, the rank with its own core would always wait for the two that share one.
    """
    if local_size > len(cores):
        return list(cores)
    start = local_rank * len(cores) // local_size
    stop = (local_rank + 1) * len(cores) // local_size
    return list(cores[start:stop])


def choose_part(cores: Sequence[T], part: str) -> list[T]:
    """A part of a host's cores, or of its GPUs. Example: for `part` "2/3" the second third; "" is all of them."""
    number, _, part_count = part.partition("/")
    return choose_cores(cores, int(number) - 1, int(part_count)) if part else list(cores)


def choose_thread_count(cpus: int, ranks_sharing: int, quota: float | None, local_size: int) -> int | None:
    """The number of threads of a rank's pools; None if TensorFlow's own choice, one for each CPU, is right.

    Args:
        cpus: the number of CPUs that the rank may use.
        ranks_sharing: the number of ranks that use those CPUs.
        quota: the number of busy CPUs that the container's limit allows all `local_size` ranks; None: no limit.
    """
    thread_count = max(1, cpus // ranks_sharing)
    if quota is not None:
        thread_count = min(thread_count, max(1, int(quota / local_size)))
    return None if thread_count == cpus else thread_count


def is_chosen_by_user(environment: Mapping[str, str], mode: str) -> bool:
    """Whether an environment variable shows that the user has set threads or a binding.

    In `mode` "spread" only threads count: the user has left the binding to this library.
    """
    if any(environment.get(name) for name in THREAD_VARIABLES):
        return True
    if mode == "spread":
        return False
    policies = [environment.get(name, "") for name in MAPPING_VARIABLES]
    return any(environment.get(name) for name in BINDING_VARIABLES) or any(
        map(mpirun_options.is_binding_policy, policies)
    )


def is_bound_by_launcher(name: str, command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the user told the launcher how to bind. `name`: of the launcher's process; `command`: its words."""
    if name == "slurmstepd":
        policy = environment.get("SLURM_CPU_BIND_TYPE") or environment.get("SLURM_CPU_BIND", "")
        return any(part not in ("", "none", "quiet", "verbose") for part in policy.split(","))
    options, _ = mpirun_options.split_options(command[1:])
    return mpirun_options.has_binding_option(options)


def is_narrower_than_default(allowed_cpus: set[int], cores: Sequence[Core], world_size: int) -> bool:
    """Whether the user has bound this rank to one core: Open MPI's default does so only in runs of one or two ranks.

    Needed on hosts with only a daemon of mpirun, whose command line lacks mpirun's options.
    """
    return world_size > 2 and len(cores) > 1 and any(allowed_cpus <= set(core) for core in cores)


def list_gpus(count: int, visible: str | None) -> list[str]:
    """The names of a host's GPUs.

    Args:
        count: the number of GPUs of the host.
        visible: the value of CUDA_VISIBLE_DEVICES of the host; None if it is not set.
    """
    if visible is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in visible.split(",") if name.strip()]


# ---- functions that read the machine


def read_file(path: str) -> str:
    """The text of a file of /proc or /sys, "" if it cannot be read."""
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def list_cores(cpus: Iterable[int] | None = None) -> list[Core]:
    """The cores among `cpus` (default: all CPUs of this process), each with its hardware threads.

    They are sorted by NUMA node, so that the contiguous cores of a rank share memory where possible.
    """
    usable_cpus = set(os.sched_getaffinity(0) if cpus is None else cpus)
    node_of = {
        cpu: int(os.path.basename(folder)[4:])
        for folder in glob(f"{CPU_FOLDER}/../node/node[0-9]*")
        for cpu in parse_cpu_list(read_file(f"{folder}/cpulist"))
    }
    cores = set()
    for cpu in usable_cpus:
        siblings = parse_cpu_list(read_file(f"{CPU_FOLDER}/cpu{cpu}/topology/thread_siblings_list")) or [cpu]
        cores.add(tuple(sibling for sibling in siblings if sibling in usable_cpus))
    return sorted(cores, key=lambda core: (node_of.get(core[0], 0), core))


def read_cpu_quota() -> float | None:
    """The number of busy CPUs that the container's limit allows this process, such as 2.5; None: no limit.

    Reads cgroup v2, whose groups each have a limit (the limit of the innermost group that has one counts), then v1.
    """
    group = ""
    for line in read_file("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            group = line[3:]
    while True:
        limit = read_file(f"/sys/fs/cgroup{group.rstrip('/')}/cpu.max").split()  # quota and period, or "max" and period
        if len(limit) == 2 and limit[0] != "max":
            return int(limit[0]) / int(limit[1])
        if group in ("", "/"):
            break
        group = os.path.dirname(group)
    quota, period = (read_file(f"/sys/fs/cgroup/cpu/cpu.cfs_{kind}_us").strip() for kind in ("quota", "period"))
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def find_host_cpus(launcher: LauncherProcess | None) -> set[int]:
    """The CPUs that the ranks of this host may use: the cpuset, restricted to the affinity of the launcher."""
    own_affinity = os.sched_getaffinity(0)
    try:
        # The kernel intersects a mask with the cpuset: request all CPUs, and read back the result.
        os.sched_setaffinity(0, range(max(parse_cpu_list(read_file(f"{CPU_FOLDER}/possible")) or own_affinity) + 1))
        allowed_cpus = os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, own_affinity)
    if launcher is not None:
        try:
            allowed_cpus = (allowed_cpus & os.sched_getaffinity(launcher.process)) or allowed_cpus
        except OSError:
            pass  # the launcher belongs to another user: only the cpuset limits
    return allowed_cpus


def count_gpus() -> int:
    """The number of NVIDIA GPUs that can be opened on this host."""
    return len(glob("/dev/nvidia[0-9]*"))


# ---- functions that change the process


def bind_all_threads(cpus: Iterable[int]) -> None:
    """Set the affinity of every thread of this process, including threads of MPI and NumPy, to `cpus`."""
    mask = set(cpus)
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), mask)
        except ProcessLookupError:
            pass  # the thread has ended meanwhile


def place_cores(local_rank: int, local_size: int, mode: str, part: str = "") -> None:
    """Assign this rank its cores and, if they are shared or limited, its number of threads.

    Args:
        mode: the placement mode, "auto" or "spread"; with "spread", a binding by the launcher is replaced.
        part: see `choose_part`.
    """
    launcher = find_launcher()
    if launcher is None and local_size < 2 and mode != "spread":
        return  # started alone: the affinity is that of the user's shell
    if _is_left_to_user(launcher, mode):
        return
    usable_cores = choose_part(list_cores(find_host_cpus(launcher)), part)
    cpus = [cpu for core in choose_cores(usable_cores, local_rank, local_size) for cpu in core]
    bind_all_threads(cpus)
    ranks_sharing = local_size if local_size > len(usable_cores) else 1
    thread_count = choose_thread_count(len(cpus), ranks_sharing, read_cpu_quota(), local_size)
    if thread_count is not None:
        for name in THREAD_VARIABLES:
            os.environ.setdefault(name, str(thread_count))


def _is_left_to_user(launcher: LauncherProcess | None, mode: str) -> bool:
    """Whether this rank's cores must stay as they are, because the user has chosen cores or threads."""
    # mpirun does not pass its own variables on, and the library removes the variables of the task after reading them.
    launcher_environment = {} if launcher is None else read_environment(launcher.process)
    environment = {**launcher_environment, **read_environment(os.getpid()), **os.environ}
    if is_chosen_by_user(environment, mode):
        return True
    if mode == "spread":
        return False
    if launcher is not None and is_bound_by_launcher(launcher.name, launcher.words, environment):
        return True
    world_size = int(environment.get("OMPI_COMM_WORLD_SIZE", 0))
    return is_narrower_than_default(os.sched_getaffinity(0), list_cores(find_host_cpus(None)), world_size)


def place_gpu(local_rank: int, local_size: int, part: str = "") -> None:
    """Restrict this rank to its own GPU if the host has several: the ranks take the GPUs in turn. `part`: as above."""
    gpus = choose_part(list_gpus(count_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")), part)
    if len(gpus) > 1 or (gpus and part):
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[local_rank % len(gpus)]
    if 0 < len(gpus) < local_size:
        # Ranks that share a GPU must not each take all of its memory.
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def apply_placement(local_rank: int, local_size: int) -> None:
    """Set cores, threads and GPU of this local rank, before TensorFlow is imported.

    `local_rank` counts from 0 to `local_size` - 1 over the ranks of this host.
    """
    mode, _, part = settings.get_settings().placement.partition(":")
    if mode != "off":
        place_cores(local_rank, local_size, mode, part)
        place_gpu(local_rank, local_size, part)
