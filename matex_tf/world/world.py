"""The MPI world of this process: its ranks, its communicators, how they meet and who of them is left.

MPI is started only if this process's own environment shows that a launcher made it one task of several. What is no
tensor goes between ranks by `runtime.objects`, so that it takes a number in the one sequence.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matex_tf import errors, settings
from matex_tf.world import missing_mpi, mpi_calls, mpirun_options, phantom_rank, task_environment, time_limit


@dataclass
class World:
    """The ranks of this run. Alone: rank 0 of 1."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    host: str = field(default_factory=socket.gethostname)
    hosts: list[str] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    communicators: dict[str, Any] = field(default_factory=dict)
    servers: int = 0
    life: Any = None
    """With MATEX_ELASTIC, the communicator on which ranks agree who of them is left."""
    is_several: bool = False
    """Whether the run began with several ranks; all but this one may have been lost."""
    is_phantom: bool = False
    """Whether the other ranks are not there: `matex plan` measures what this one computes."""
    has_lost: bool = False
    """Whether ranks were lost, and those that are left have gone on."""
    process: int = field(default_factory=os.getpid)

    @property
    def trainers(self) -> int:
        """How many ranks have rows of batches, the first ones; the `servers` behind them only serve."""
        return self.size - self.servers

    @property
    def has_several_hosts(self) -> bool:
        return len(set(self.hosts)) > 1

    @property
    def node(self) -> int:
        """The number of this rank's node: that of its first rank. Ranks of a node share memory."""
        return self.nodes[self.rank] if self.nodes else 0

    @property
    def has_several_nodes(self) -> bool:
        return len(set(self.nodes)) > 1

    @property
    def place(self) -> str:
        return f"rank {self.rank} ({self.host})"


_world: World | None = None
# Whether the script asked for its rank, or took MPI.COMM_WORLD, and so may do different things on different ranks.
script_knows_ranks = False
when_script_knows_ranks: list[Callable[[], None]] = []
"""Called as the script asks for the first time, which all ranks do together: until then they run the same code."""


_task: task_environment.Task | None = None  # what the launcher says of this process, until it has joined a world


def _describe_rank() -> str:
    world = _world or (World(_task.rank, _task.size) if _task else World())
    size = f" of {world.size}" if world.size else ""  # some launchers do not say
    return f"rank {world.rank}{size} on {world.host}"


errors.describe_rank = _describe_rank


def note_script_knows_ranks() -> None:
    """The script asks for its rank."""
    global script_knows_ranks
    if not script_knows_ranks:
        script_knows_ranks = True
        for act in when_script_knows_ranks:
            act()


def get_world() -> World:
    """This process's world; the first call starts MPI where a launcher started several tasks.

    Raises `SetupError` where the launcher started several tasks and MPI sees only one.
    """
    global _world
    if _world is None or _world.process != os.getpid():
        # A forked child shares its parent's memory, not its place in the job.
        _world = World() if _world is not None else _start_world()
    return _world


def is_active() -> bool:
    """Whether this process is one of several ranks that train together."""
    return get_world().is_several


def keeps_state() -> bool:
    """Whether the state of this run is to be kept, for which a single rank works as one of several does.

    Alone nothing else reads the settings, in which there may be an error.
    """
    return settings.PREFIX + "STATE" in os.environ and bool(settings.get_settings().state)


def get_communicator(name: str) -> Any:
    """Our own duplicate of the world's communicator for one use: "sequence", "gradients", "overlapped", "control",
    "readers" or "watch".
    """
    return get_world().communicators[name]


def has_threads() -> bool:
    """Whether several threads of this process may be in MPI at once."""
    if get_world().is_phantom:
        return True
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def _start_world() -> World:
    # Alone nothing else reads the settings, in which there may be an error.
    asked = settings.PREFIX + "PLAN" in os.environ
    if asked and (phantom := settings.get_settings().plan) and phantom.ranks:
        return phantom_rank.make_phantom_world(World, phantom)
    task = task_environment.find_task(os.environ)
    if task is None or (task.size == 1 and not keeps_state()) or settings.get_settings().disable:
        in_parts = settings.PREFIX + "MICROBATCH" in os.environ and not settings.get_settings().disable
        return phantom_rank.make_single_world(World) if in_parts and settings.get_settings().microbatch else World()
    _set_open_mpi_defaults()
    with time_limit.limit_wait(task.rank, task.size, "has waited for MPI to start and the others to come", UNREACHABLE):
        return _join_task(task)


UNREACHABLE = (
    "One may not have started yet. Or hosts cannot reach each other, for a firewall or an interface that is not the "
    "one between them (docker0): name that one, with Open MPI by `--mca btl_tcp_if_include eth0`."
)


def _join_task(task: task_environment.Task) -> World:
    global _task
    _task = task
    try:
        MPI = mpi_calls.start_mpi()
    except (ImportError, RuntimeError) as error:
        raise errors.SetupError(f"{missing_mpi.describe(str(error))}. {task.launcher} started this process.") from error
    size = MPI.COMM_WORLD.Get_size()
    if size == 1 and not keeps_state():
        if task.size == 0:
            return World()
        library = MPI.Get_library_version().split(",")[0].strip("\0 \n")
        raise errors.SetupError(
            f"{task.launcher} started {task.size} tasks, but the MPI that mpi4py loads here ({library}) sees only "
            "this one: each task would train alone. Launch with that MPI's own mpirun (`matex run -n "
            f"{task.size} script.py` finds it), under Slurm with `srun --mpi=pmix`, or install an mpi4py that is "
            "built for the launcher's MPI."
        )
    return _join_ranks(MPI)


def _set_open_mpi_defaults() -> None:
    """What `matex run` tells Open MPI's mpirun, for ranks that plain mpirun starts; what the user set stays.

    Waiting ranks spin; where ranks fill the cores they must yield them to threads that compute. On one host ranks do
    without libfabric's one-sided transfers, which end with a second of sleep in MPI_Init.
    """
    here, everywhere = (os.environ.get(f"OMPI_COMM_WORLD_{part}SIZE", "") for part in ("LOCAL_", ""))
    if here.isascii() and here.isdigit() and int(here) >= (os.cpu_count() or 1):
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    prefix = os.path.dirname(os.environ.get("OMPI_LIBDIR_LOC", ""))
    if prefix and here and here == everywhere:
        lines = mpirun_options.read_parameter_files(prefix)
        if not mpirun_options.chooses_transport([], os.environ, lines):
            os.environ.setdefault("OMPI_MCA_btl", "^ofi")


def _join_ranks(MPI: Any) -> World:
    everyone = MPI.COMM_WORLD
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise errors.SetupError(
            "this MPI was started without threads (its level is below MPI_THREAD_SERIALIZED), and TensorFlow computes "
            "in threads. Remove the lines that set `mpi4py.rc.threads` or `thread_level`."
        )
    world = _make_world(MPI, everyone, _make_life_communicator(everyone) if settings.get_settings().elastic else None)
    task_environment.keep_children_out()
    return world


def _make_world(MPI: Any, everyone: Any, life: Any) -> World:
    """This process's world, of the ranks of the communicator `everyone`. Collective."""
    node = everyone.Split_type(MPI.COMM_TYPE_SHARED)
    rank, host, chosen = everyone.Get_rank(), socket.gethostname(), settings.get_settings()
    together, first = chosen.ranks_per_node, node.bcast(rank)
    world = World(
        rank=rank,
        size=everyone.Get_size(),
        local_rank=node.Get_rank(),
        local_size=node.Get_size(),
        host=host,
        hosts=everyone.allgather(host),
        nodes=everyone.allgather(rank - rank % together if together else first),
        servers=settings.count_only_serving(chosen.strategy),
        life=life,
        is_several=True,
    )
    node.Free()
    for name in ("sequence", "gradients", "overlapped", "control", "readers", "watch"):
        world.communicators[name] = everyone.Dup()
    return world


def _make_life_communicator(everyone: Any) -> Any:
    try:
        life = everyone.Dup()
        life.Agree(1)
    except NotImplementedError:
        raise errors.SetupError(
            "MATEX_ELASTIC=1 asks to go on without ranks that are lost, and this MPI cannot tell of them (it has no "
            "user-level failure mitigation). Open MPI from 5.0 on can, with an mpi4py from 4.0 on that is built for "
            "it; or leave --elastic out: `matex run --restarts` goes on with any MPI."
        ) from None
    return life


def revoke_communicators() -> None:
    """Have every rank that is in a collective, or comes to one, told that it cannot end."""
    for communicator in get_world().communicators.values():
        communicator.Revoke()


def agree_on_success(done: bool, also: bool) -> tuple[bool, bool]:
    """Whether all ranks have done what they tried together, and none was lost: the same answer on each. Collective.

    The second answer is whether `also` holds on all.
    """
    from mpi4py import MPI

    try:
        agreed = get_world().life.Agree(int(done) | int(also) << 1)  # of the bits that all have
        return bool(agreed & 1), bool(agreed & 2)
    except MPI.Exception:
        return False, False


def list_lost() -> list[int]:
    """The ranks that MPI knows to be lost, of the world as it was then. Not collective."""
    from mpi4py import MPI

    me = get_world()
    with contextlib.suppress(MPI.Exception):  # of one that is lost already
        me.life.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)  # MPI hears of a loss only in a call of it
    lost = me.life.Get_failed()
    numbers = MPI.Group.Translate_ranks(lost, list(range(lost.size)), me.life.group)
    lost.Free()
    return list(numbers)


def shrink_world() -> list[int]:
    """Make the world that of the ranks which are left; gives those of before, by rank. Collective among them."""
    from mpi4py import MPI

    me = get_world()
    left = me.life
    while True:
        left = left.Shrink()
        left.Set_errhandler(MPI.ERRORS_RETURN)
        made = None
        try:
            made = _make_world(MPI, left, left)
        except MPI.Exception:
            left.Revoke()  # one more was lost meanwhile
        try:
            if left.Agree(int(made is not None)) == 1:
                break
        except MPI.Exception:
            continue
    numbers = MPI.Group.Translate_ranks(left.group, list(range(left.size)), me.life.group)
    vars(me).update(vars(made), has_lost=True)
    return list(numbers)
