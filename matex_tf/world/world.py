"""The MPI world of this process: its ranks, their communicators, and its start.

`get_world` makes it at the first call, and starts MPI only if the environment shows that a launcher made this process
one task of several. After a loss in an elastic run, `shrinking` gives the same object the ranks and communicators of
the survivors. Ranks exchange Python objects through `runtime.objects`, which numbers each exchange in the sequence of
collectives.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Any

from matex_tf import errors, settings
from matex_tf.lazy import MPI
from matex_tf.world import (
    launcher_variables,
    missing_mpi,
    mpi_calls,
    mpirun_options,
    phantom_rank,
    task_environment,
    time_limit,
)


@dataclass
class World:
    """The ranks of this run. Without a launcher: rank 0 of 1."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # the number of this rank among the `local_size` ranks of its node
    local_size: int = 1
    host: str = field(default_factory=socket.gethostname)
    hosts: list[str] = field(default_factory=list)  # the host of each rank
    nodes: list[int] = field(default_factory=list)  # the node of each rank (`node`)
    communicators: dict[str, Any] = field(default_factory=dict)
    servers: int = 0  # the number of ranks that only serve: they own pieces of variables, and compute no rows
    life: Any = None  # with MATEX_ELASTIC, the communicator on which ranks agree about the survivors; otherwise None
    is_active: bool = False
    """Whether this process runs the code of ranks. A single process does so if it is the survivor of several ranks, or
    if a setting needs that code: MATEX_STATE under a launcher, or MATEX_MICROBATCH.
    """
    is_phantom: bool = False
    """Whether the other ranks do not exist, as when `matex plan` measures the computation of a rank."""
    has_lost: bool = False  # whether ranks were lost and the survivors have continued
    process: int = field(default_factory=os.getpid)  # the process id: a forked child is no rank

    @property
    def trainers(self) -> int:
        """The number of ranks that compute rows of batches. They are the first ranks; the `servers` come after them."""
        return self.size - self.servers

    @property
    def has_several_hosts(self) -> bool:
        return len(set(self.hosts)) > 1

    @property
    def node(self) -> int:
        """The number of this rank's node, which is the lowest rank of the node.

        A node is the ranks that share memory: the ranks of a host, or in tests some of them (MATEX_RANKS_PER_NODE).
        """
        return self.nodes[self.rank] if self.nodes else 0

    @property
    def has_several_nodes(self) -> bool:
        return len(set(self.nodes)) > 1

    @property
    def place(self) -> str:
        return f"rank {self.rank} ({self.host})"


_COMMUNICATORS = ("sequence", "gradients", "overlapped", "control", "readers", "watch")  # see docs/protocol.md
_world: World | None = None
_task: task_environment.Task | None = None  # the launcher's description of this process; None before `_join_task`


def _describe_rank() -> str:
    """This rank's name for error messages, also before the world is made."""
    world = _world or (World(_task.rank, _task.size) if _task else World())
    size_text = f" of {world.size}" if world.size else ""  # some launchers do not give the size
    return f"rank {world.rank}{size_text} on {world.host}"


errors.describe_rank = _describe_rank  # `errors` cannot import this module, which imports `errors`


def get_world() -> World:
    """The world of this process. The first call, in `attach`, starts MPI if a launcher started several tasks.

    Raises `SetupError` if the launcher started several tasks and MPI sees only one.
    """
    global _world
    if _world is None or _world.process != os.getpid():
        # A forked child shares the memory of its parent, but is no rank.
        _world = World() if _world is not None else _start_world()
    return _world


def is_active() -> bool:
    """Whether this process works as a rank, even if it is the only one."""
    return get_world().is_active


def keeps_state() -> bool:
    """Whether the state of this run is saved. A single rank then works like one of several."""
    # The variable first: a script without a launcher runs also with invalid settings, which must not be read then.
    return settings.PREFIX + "STATE" in os.environ and bool(settings.get_settings().state)


def get_communicator(name: str) -> Any:
    """The library's duplicate of the world's communicator for one purpose; see `_COMMUNICATORS`."""
    return get_world().communicators[name]


def has_threads() -> bool:
    """Whether several threads of this process may call MPI at once."""
    if get_world().is_phantom:  # no thread calls MPI at all
        return True
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def _start_world() -> World:
    # Without a launcher, settings are read only if one of them makes a world: MATEX_PLAN or MATEX_MICROBATCH. Otherwise
    # invalid settings would end a script that does not need them.
    if settings.PREFIX + "PLAN" in os.environ:
        phantom = settings.get_settings().plan
        if phantom and phantom.ranks:
            return phantom_rank.make_phantom_world(World, phantom)
    task = task_environment.find_task(os.environ)
    may_have_others = task is not None and task.size != 1  # a size of 0 is an unknown size
    if task is not None and (may_have_others or keeps_state()) and not settings.get_settings().disable:
        _set_open_mpi_defaults()
        activity = "has waited for MPI to start and the others to come"
        with time_limit.limit_wait(task.rank, task.size, activity, UNREACHABLE):
            return _join_task(task)
    if settings.PREFIX + "MICROBATCH" in os.environ:
        current_settings = settings.get_settings()
        if current_settings.microbatch and not current_settings.disable:
            return phantom_rank.make_single_world(World)
    return World()


UNREACHABLE = (
    "One may not have started yet. Or hosts cannot reach each other because of a firewall or a wrong network "
    "interface (docker0): name the right interface, with Open MPI by `--mca btl_tcp_if_include eth0`."
)


def _join_task(task: task_environment.Task) -> World:
    """Start MPI, and make the world of all tasks. Collective.

    Raises:
        SetupError: MPI cannot be loaded, sees only this task, or has no threads.
    """
    global _task
    _task = task
    try:
        mpi_calls.start_mpi()
    except (ImportError, RuntimeError) as error:
        raise errors.SetupError(f"{missing_mpi.describe(str(error))}. {task.launcher} started this process.") from error
    size = MPI.COMM_WORLD.Get_size()
    if size == 1 and not keeps_state():
        if task.size == 0:  # the launcher does not tell the number of tasks: there may be one
            return World()
        mpi_version = MPI.Get_library_version().split(",")[0].strip("\0 \n")
        raise errors.SetupError(
            f"{task.launcher} started {task.size} tasks, but the MPI that mpi4py loads here ({mpi_version}) sees only "
            "this one: each task would train alone. Launch with that MPI's own mpirun (`matex run -n "
            f"{task.size} script.py` finds it), under Slurm with `srun --mpi=pmix`, or install an mpi4py that is "
            "built for the launcher's MPI."
        )
    return _join_ranks()


def _set_open_mpi_defaults() -> None:
    """Apply the defaults of `matex run` to ranks that Open MPI's mpirun itself started. The user's settings prevail.

    - A waiting rank spins, and keeps its core from computing threads. So ranks yield while they wait, if a host has no
      more cores than ranks.
    - libfabric's one-sided transfers add a second to MPI_Init. So ranks on one host do not use them ("^ofi").
    """
    local_size = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
    if local_size.isascii() and local_size.isdigit() and int(local_size) >= (os.cpu_count() or 1):
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    prefix = os.path.dirname(os.environ.get("OMPI_LIBDIR_LOC", ""))  # "" with another MPI
    is_one_host = bool(local_size) and local_size == os.environ.get("OMPI_COMM_WORLD_SIZE", "")
    if prefix and is_one_host:
        lines = mpirun_options.read_parameter_files(prefix)
        if not mpirun_options.chooses_transport([], os.environ, lines):
            os.environ.setdefault("OMPI_MCA_btl", "^ofi")


def _join_ranks() -> World:
    communicator = MPI.COMM_WORLD
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise errors.SetupError(
            "this MPI was started without threads (its level is below MPI_THREAD_SERIALIZED), and TensorFlow computes "
            "in threads. Remove the lines that set `mpi4py.rc.threads` or `thread_level`."
        )
    life = _make_life_communicator(communicator) if settings.get_settings().elastic else None
    world = make_world(communicator, life)
    launcher_variables.keep_children_out()
    return world


def make_world(communicator: Any, life: Any) -> World:
    """Make the world of the ranks of `communicator`. Collective. `life`: see `World.life`."""
    node_communicator = communicator.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks that share memory
    rank, host, current_settings = communicator.Get_rank(), socket.gethostname(), settings.get_settings()
    # In tests, so many consecutive ranks count as a node.
    ranks_per_node, lowest_rank = current_settings.ranks_per_node, node_communicator.bcast(rank)
    node_number = rank - rank % ranks_per_node if ranks_per_node else lowest_rank
    world = World(
        rank=rank, size=communicator.Get_size(), local_rank=node_communicator.Get_rank(),
        local_size=node_communicator.Get_size(), host=host, hosts=communicator.allgather(host),
        nodes=communicator.allgather(node_number),
        servers=settings.count_only_serving(current_settings.strategy), life=life, is_active=True,
    )  # fmt: skip
    node_communicator.Free()
    for name in _COMMUNICATORS:
        world.communicators[name] = communicator.Dup()
    return world


def _make_life_communicator(communicator: Any) -> Any:
    """The communicator `World.life`. Collective. Raises SetupError if this MPI cannot report lost ranks."""
    try:
        life = communicator.Dup()
        life.Agree(1)  # an MPI without reports of lost ranks raises NotImplementedError
    except NotImplementedError:
        raise errors.SetupError(
            "MATEX_ELASTIC=1 requires an MPI that reports lost ranks, and this MPI does not (it has no "
            "user-level failure mitigation). Open MPI from 5.0 on can, with an mpi4py from 4.0 on that is built for "
            "it. Without --elastic, `matex run --restarts` works with any MPI."
        ) from None
    return life
