"""The mpirun command line of a run, by pure functions. Open MPI, MPICH and Intel MPI have other options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matex_tf.world import mpirun_options, start_variables

# By default, mpirun needs hours to detect a silent host; with these values, about ten seconds.
KEEPALIVE = {"oob_tcp_keepalive_time": 5, "oob_tcp_keepalive_intvl": 2, "oob_tcp_keepalive_probes": 3}
# With this option, mpirun and MPI keep the other ranks running after a loss, and mpirun notifies them. MPI's own
# failure detector stays off: it declares ranks lost that compute for ten seconds without a call of MPI.
ELASTIC = ["--with-ft", "ulfm"]
# Ranks on one host use shared memory. The excluded network transports would listen on all addresses, and the transport
# of libfabric (ofi) needs an extra second to close.
NO_NETWORK = ["--mca", "btl", "^tcp,ofi"]


@dataclass(frozen=True)
class Mpirun:
    """An mpirun: its path, the family of its MPI ("" if unknown), and its version."""

    path: str
    family: str
    version: str

    @property
    def major(self) -> int:
        return find_major(self.version)

    def fits(self, library: str) -> bool:
        """Whether this mpirun fits the MPI with the version text `library`. An unknown family or version fits."""
        family, major = find_family(library), find_major(find_version(library))
        if not self.family or not family:
            return True
        return self.family == family and (self.major == major or 0 in (self.major, major))


def find_family(text: str) -> str:
    """The MPI family in `text`, from `mpirun --version` or MPI_Get_library_version; "" if none is recognised."""
    for family, pattern in (  # Intel MPI, which is derived from MPICH, comes first
        (mpirun_options.OPENMPI, r"Open MPI|OpenRTE|open-mpi\.org"),
        (mpirun_options.INTEL, r"Intel\(R\) MPI"),
        (mpirun_options.MPICH, r"MPICH|HYDRA"),
    ):
        if re.search(pattern, text):
            return family
    return ""


def find_version(text: str) -> str:
    """The first version number in `text`; "" if there is none."""
    match = re.search(r"\d+\.\d+(\.\d+)*", text)
    return match.group() if match else ""


def find_major(version: str) -> int:
    """The major version; 0 if unknown."""
    return int(version.split(".")[0]) if version else 0


def list_candidates(library_path: str | None, path: str, prefix: str) -> list[str]:
    """Possible paths of mpirun, best first: near the loaded MPI library, on `path`, and in this Python's `prefix`."""
    folders = []
    if library_path:
        parent = os.path.dirname(library_path)
        for _ in range(3):  # lib, lib64, lib/x86_64-linux-gnu, lib/release: bin is 1 to 3 levels up
            parent = os.path.dirname(parent)
            folders.append(os.path.join(parent, "bin"))
    folders += [folder for folder in path.split(os.pathsep) if folder]
    folders.append(os.path.join(prefix, "bin"))
    return list(dict.fromkeys(os.path.join(folder, "mpirun") for folder in folders))


def list_oversubscribe_options(mpirun: Mpirun) -> list[str]:
    """The options that let Open MPI's mpirun start more ranks than it has slots for."""
    return ["--map-by", ":OVERSUBSCRIBE"] if mpirun.major >= 5 else ["--oversubscribe"]


def choose_options(
    mpirun: Mpirun,
    ranks: int,
    cores: int,
    is_root: bool,
    user_options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    by_memory: bool = False,
) -> list[str]:
    """The options of `mpirun` for `ranks` ranks: `user_options`, and options that prevent common failures.

    matex_tf.world.placement binds the ranks to cores; mpirun therefore binds none, unless the user asks for it. On this
    machine alone, more ranks than cores are allowed; if ranks fill the cores, a waiting rank yields its core.

    Args:
        settings: variables for the ranks. The environment and the user's options take precedence.
        by_memory: shared memory suffices for the ranks, so that ranks on this machine alone use no network.
    """
    environment = environment or {}
    is_local = not mpirun_options.chooses_hosts(user_options, environment)
    is_full = is_local and ranks >= cores
    user_binds = mpirun_options.has_binding_option(user_options)
    user_names = [mpirun_options.parse_option_name(word) for word in user_options]
    # Variables that a process must have before it starts, such as PYTHONHASHSEED (`start_variables`), and settings.
    variables = {**start_variables.HASH_SEED, **(settings or {})}
    option_variables = {word.partition("=")[0] for word in user_options}  # as of `-x NAME=VALUE` and `-genv NAME VALUE`
    user_variables = {*environment, *option_variables}
    if ranks > 1 and not user_variables & {"MATEX_LARGE_PAGES", "MATEX_DISABLE"}:  # else each rank decides at its start
        variables |= start_variables.LARGE_PAGES
    if not user_binds:
        variables["MATEX_PLACEMENT"] = "spread"
    if mpirun.family == mpirun_options.INTEL:
        variables |= {} if user_binds else {"I_MPI_PIN": "0"}
        variables |= {"I_MPI_THREAD_YIELD": "2"} if is_full else {}
    # What the user has set takes precedence, also by an option.
    variables = {name: value for name, value in variables.items() if name not in user_variables}
    options: list[str] = []
    if mpirun.family == mpirun_options.OPENMPI:
        if is_root and "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" not in environment:
            options.append("--allow-run-as-root")
        if not user_binds:
            options += ["--bind-to", "none"]
        if is_local and "map-by" not in user_names:
            options += list_oversubscribe_options(mpirun)
        if (settings or {}).get("MATEX_ELASTIC") and "with-ft" not in user_names:
            options += ELASTIC
        if is_full and "OMPI_MCA_mpi_yield_when_idle" not in environment:
            options += ["--mca", "mpi_yield_when_idle", "1"]
        if is_local and by_memory and not mpirun_options.chooses_transport(user_options, environment):
            options += NO_NETWORK
        for name, value in variables.items():
            options += ["-x", f"{name}={value}"]
        if not is_local:
            for name, seconds in KEEPALIVE.items():
                # As a variable the name has a prefix, such as OMPI_MCA_.
                if name not in user_options and not any(variable.endswith(name) for variable in environment):
                    options += ["--prtemca" if mpirun.major >= 5 else "--mca", name, str(seconds)]
            # Open MPI forwards only the named variables to other hosts.
            passed_names = {"PYTHONHASHSEED", *environment.get("MATEX_PASSED", "").split()}
            for name in sorted(environment.keys() - option_variables):
                if name.startswith("MATEX_") or name in passed_names:
                    options += ["-x", name]
    else:  # Intel MPI, MPICH and unknown families, which take variables by -genv
        if mpirun.family == mpirun_options.MPICH and not user_binds:
            options += ["-bind-to", "none"]
        for name, value in variables.items():
            options += ["-genv", name, value]
    return [*options, *user_options, "-n", str(ranks)]
