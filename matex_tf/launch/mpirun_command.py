"""The command line that starts a script on several ranks: pure functions of the MPI, the user and the cores."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matex_tf.world import mpirun_options, start_variables

# By default it takes mpirun hours to notice that a host it hears nothing of is lost; so, some ten seconds.
KEEPALIVE = {"oob_tcp_keepalive_time": 5, "oob_tcp_keepalive_intvl": 2, "oob_tcp_keepalive_probes": 3}
# With it, mpirun and MPI leave the other ranks alone when one is lost, and mpirun tells them. MPI's own detector stays
# off: it takes ranks for lost that compute for ten seconds without a call of MPI.
ELASTIC = ["--with-ft", "ulfm"]
# Ranks on one host use memory. For the ways over the network, which are left out, they listen on all addresses, and
# that of libfabric ends with a second of sleep.
NO_NETWORK = ["--mca", "btl", "^tcp,ofi"]


@dataclass(frozen=True)
class Mpirun:
    """An mpirun: where it is, the family of its MPI ("" if unknown) and its version."""

    path: str
    family: str
    version: str

    @property
    def major(self) -> int:
        return find_major(self.version)

    def fits(self, library: str) -> bool:
        """Whether it starts ranks of the MPI that says `library` of itself; so it may where one of them is unknown."""
        family, major = find_family(library), find_major(find_version(library))
        return not (self.family and family) or (
            self.family == family and (self.major == major or 0 in (self.major, major))
        )


def find_family(text: str) -> str:
    """The MPI that `text` (of `mpirun --version` or MPI_Get_library_version) speaks of; "" if none is recognised."""
    for family, sign in (
        (mpirun_options.OPENMPI, r"Open MPI|OpenRTE|open-mpi\.org"),
        (mpirun_options.INTEL, r"Intel\(R\) MPI"),
        (mpirun_options.MPICH, r"MPICH|HYDRA"),
    ):
        if re.search(sign, text):
            return family
    return ""


def find_version(text: str) -> str:
    """The first version number in `text`, "" if there is none."""
    found = re.search(r"\d+\.\d+(\.\d+)*", text)
    return found.group() if found else ""


def find_major(version: str) -> int:
    """The first number of a version, 0 if it is unknown."""
    return int(version.split(".")[0]) if version else 0


def list_candidates(library_path: str | None, path: str, prefix: str) -> list[str]:
    """Where mpirun may be, best first: beside the MPI library in use, on `path`, beside this Python (`prefix`)."""
    folders = []
    if library_path:
        above = os.path.dirname(library_path)
        for _ in range(3):  # lib, lib64, lib/x86_64-linux-gnu, lib/release: one to three floors below bin's parent
            above = os.path.dirname(above)
            folders.append(os.path.join(above, "bin"))
    folders += [folder for folder in path.split(os.pathsep) if folder]
    folders.append(os.path.join(prefix, "bin"))
    return list(dict.fromkeys(os.path.join(folder, "mpirun") for folder in folders))


def list_oversubscribe_options(mpirun: Mpirun) -> list[str]:
    """The options by which Open MPI's mpirun starts more ranks than there are places for."""
    return ["--map-by", ":OVERSUBSCRIBE"] if mpirun.major >= 5 else ["--oversubscribe"]


def choose_options(
    mpirun: Mpirun,
    ranks: int,
    cores: int,
    root: bool,
    given: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    by_memory: bool = False,
) -> list[str]:
    """The options of `mpirun` for `ranks` ranks: those `given` by the user, and what he would otherwise stumble over.

    The ranks' cores are set by matex_tf.world.placement, so mpirun is told to bind none, unless the user binds. On
    this machine alone more ranks than cores are allowed; where ranks fill the cores, a waiting one yields.
    `settings` are variables for the ranks. With `by_memory` they do without the network on this machine alone.
    """
    environment = environment or {}
    here_only = not mpirun_options.chooses_hosts(given, environment)
    full = here_only and ranks >= cores
    own_binding = mpirun_options.has_binding_option(given)
    variables = {**start_variables.HASH_SEED, **(settings or {})}
    said = {*environment, *(word.partition("=")[0] for word in given)}
    if ranks > 1 and not said & {"MATEX_LARGE_PAGES", "MATEX_DISABLE"}:  # else each rank reads them and decides
        variables |= start_variables.LARGE_PAGES
    if not own_binding:
        variables["MATEX_PLACEMENT"] = "spread"
    variables = {
        name: value
        for name, value in variables.items()
        if name not in environment and not any(word.startswith(name) for word in given)
    }
    words: list[str] = []
    if mpirun.family == mpirun_options.OPENMPI:
        if root and "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" not in environment:
            words.append("--allow-run-as-root")
        if not own_binding:
            words += ["--bind-to", "none"]
        if here_only and "map-by" not in map(mpirun_options.parse_option_name, given):
            words += list_oversubscribe_options(mpirun)
        if (settings or {}).get("MATEX_ELASTIC") and "with-ft" not in map(mpirun_options.parse_option_name, given):
            words += ELASTIC
        if full and "OMPI_MCA_mpi_yield_when_idle" not in environment:
            words += ["--mca", "mpi_yield_when_idle", "1"]
        if here_only and by_memory and not mpirun_options.chooses_transport(given, environment):
            words += NO_NETWORK
        for name, value in variables.items():
            words += ["-x", f"{name}={value}"]
        if not here_only:
            for name, seconds in KEEPALIVE.items():
                if name not in given and not any(variable.endswith(name) for variable in environment):
                    words += ["--prtemca" if mpirun.major >= 5 else "--mca", name, str(seconds)]
            # Open MPI sends the other hosts nothing of the environment but what it is told to.
            for name in sorted(environment):
                if name.startswith("MATEX_") or name == "PYTHONHASHSEED":
                    words += ["-x", name]
    else:
        if mpirun.family == mpirun_options.INTEL:
            if not own_binding:
                variables.setdefault("I_MPI_PIN", "0")
            if full:
                variables.setdefault("I_MPI_THREAD_YIELD", "2")
        elif mpirun.family == mpirun_options.MPICH and not own_binding:
            words += ["-bind-to", "none"]
        for name, value in variables.items():
            words += ["-genv", name, value]
    return [*words, *given, "-n", str(ranks)]


def make_command(
    mpirun: Mpirun, mpirun_options: Sequence[str], python: str, target: Sequence[str], module: bool = True
) -> list[str]:
    """The whole command line: `mpirun OPTIONS python -m matex_tf TARGET`, without `-m matex_tf` if not `module`."""
    return [mpirun.path, *mpirun_options, python, *(["-m", "matex_tf"] if module else []), *target]
