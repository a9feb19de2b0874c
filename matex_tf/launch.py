"""The command line that starts a script on several ranks: pure functions of the MPI, the user and the cores."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OPENMPI, MPICH, INTEL = "Open MPI", "MPICH", "Intel MPI"

# How many words follow an option of any MPI's mpirun; what is not here is guessed in `split_options`.
WORDS_AFTER = {
    0: (
        "allow-run-as-root oversubscribe nooversubscribe tag-output timestamp-output report-bindings display-map "
        "display-allocation nolocal debug-daemons quiet q verbose v l prepend-rank enable-recovery forward-signals-off "
        "use-hwthread-cpus do-not-launch leave-session-attached print-rank-map dry-run h help"
    ).split(),
    1: (
        "n np c x host H hosts hostfile machinefile f map-by bind-to rank-by wdir wd path prefix timeout output stdin "
        "N npernode npersocket ppn perhost tune personality with-ft cpu-set cpu-list rankfile rf report-uri "
        "output-filename app dvm display runtime-options default-hostfile add-hostfile add-host pset genvlist envlist "
        "iface launcher launcher-exec rmk bootstrap outfile-pattern errfile-pattern membind forward-signals tmpdir"
    ).split(),
    2: "mca gmca prtemca pmixmca omca genv env".split(),
}
ARITY = {name: count for count, names in WORDS_AFTER.items() for name in names}

BINDING_OPTIONS = {"bind-to", "cpu-set", "cpu-list", "rankfile", "rf", "bind-to-core", "bind-to-socket", "membind"}
HOST_OPTIONS = {
    "host",
    "H",
    "hosts",
    "hostfile",
    "machinefile",
    "f",
    "default-hostfile",
    "add-hostfile",
    "add-host",
    "dvm",
}
# By default it takes mpirun hours to notice that a host it hears nothing of is lost; so, some ten seconds.
KEEPALIVE = {"oob_tcp_keepalive_time": 5, "oob_tcp_keepalive_intvl": 2, "oob_tcp_keepalive_probes": 3}
# With it, mpirun and MPI leave the other ranks alone when one is lost, and mpirun tells them. MPI's own detector stays
# off: it takes ranks for lost that compute for ten seconds without a call of MPI.
ELASTIC = ["--with-ft", "ulfm"]
# Ranks on one host use memory. For the way over the network, which is left out, they listen on all addresses.
NO_NETWORK = ["--mca", "btl", "^tcp"]
# With these the user, or a file that he names, says himself how ranks reach each other.
_TRANSPORT = re.compile(r"(OMPI_MCA_)?(btl|btl_.*|pml|mtl|mca_base_.*param_file.*|mca_base_envar_file_prefix)(=.*)?")
_TRANSPORT_FILES = {"tune", "am"}
ALLOCATIONS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID")


@dataclass(frozen=True)
class Mpirun:
    """An mpirun: where it is, the family of its MPI ("" if unknown) and its version."""

    path: str
    family: str
    version: str

    @property
    def major(self) -> int:
        return major_of(self.version)

    def fits(self, library: str) -> bool:
        """Whether it starts ranks of the MPI that says `library` of itself; so it may where one of them is unknown."""
        family, major = family_of(library), major_of(version_of(library))
        return not (self.family and family) or (
            self.family == family and (self.major == major or 0 in (self.major, major))
        )


def family_of(text: str) -> str:
    """The MPI that `text` (of `mpirun --version` or MPI_Get_library_version) speaks of; "" if none is recognised."""
    for family, sign in (
        (OPENMPI, r"Open MPI|OpenRTE|open-mpi\.org"),
        (INTEL, r"Intel\(R\) MPI"),
        (MPICH, r"MPICH|HYDRA"),
    ):
        if re.search(sign, text):
            return family
    return ""


def version_of(text: str) -> str:
    """The first version number in `text`, "" if there is none."""
    found = re.search(r"\d+\.\d+(\.\d+)*", text)
    return found.group() if found else ""


def major_of(version: str) -> int:
    """The first number of a version, 0 if it is unknown."""
    return int(version.split(".")[0]) if version else 0


def candidates(library_path: str | None, path: str, prefix: str) -> list[str]:
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


def option_name(word: str) -> str:
    """The bare name of an option: "bind-to" for `--bind-to`, `-bind-to` and `--bind-to=core`."""
    return word.lstrip("-").split("=", 1)[0]


def looks_like_script(word: str) -> bool:
    """Whether a word among mpirun's options is the script: it ends in .py or is a file."""
    return word.endswith(".py") or os.path.isfile(word)


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Parts `words` into mpirun's options and what follows: the script (or -m module) and its arguments.

    Known options take their known number of words; an unknown one takes the words up to the next option or script.
    `--` ends the options.
    """
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        if words[at] == "--":
            return list(words[:at]), list(words[at + 1 :])
        name = option_name(words[at])
        whole = "=" in words[at]
        at += 1
        if whole:
            continue
        if name in ARITY:
            at += ARITY[name]
            continue
        while at < len(words) and not words[at].startswith("-") and not looks_like_script(words[at]):
            at += 1
    return list(words[:at]), list(words[at:])


def binds(options: Sequence[str]) -> bool:
    """Whether mpirun's `options` say on which cores the ranks run."""
    for at, word in enumerate(options):
        if not word.startswith("-"):
            continue
        name = option_name(word)
        if name in BINDING_OPTIONS:
            return True
        if name == "map-by":
            value = word.split("=", 1)[1] if word.startswith("--map-by=") else (*options[at + 1 : at + 2], "")[0]
            if mapping_binds(value):
                return True
    return False


def mapping_binds(policy: str) -> bool:
    """Whether a mapping policy (the value of --map-by) places ranks on parts of a node rather than on nodes."""
    return bool(
        re.search(r"(^|:)(l[123]cache|numa|package|socket|core|hwthread|pe-list|pe|rankfile)\b", policy.lower())
    )


def chooses_hosts(options: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the ranks go where a host list or a batch system says, rather than all on this machine."""
    named = any(word.startswith("-") and option_name(word) in HOST_OPTIONS for word in options)
    return named or any(name in environment for name in ALLOCATIONS)


def chooses_transport(options: Sequence[str], environment: Mapping[str, str], lines: Sequence[str] = ()) -> bool:
    """Whether the user says how ranks reach each other: in `options`, the environment or the `lines` of MPI's files."""
    if any(word.startswith("-") and option_name(word) in _TRANSPORT_FILES for word in options):
        return True
    settings = [line.partition("=")[0].strip() for line in lines]
    return any(_TRANSPORT.fullmatch(word) for word in (*options, *environment, *settings))


def files_of_parameters(mpirun: str, home: str) -> list[str]:
    """Where Open MPI reads parameters from: the user's file, the installation's, and Debian's of the latter."""
    above = [os.path.dirname(os.path.dirname(path)) for path in (mpirun, os.path.realpath(mpirun))]
    return [
        os.path.join(home, ".openmpi", "mca-params.conf"),
        *(os.path.join(folder, "etc", "openmpi-mca-params.conf") for folder in dict.fromkeys(above)),
        "/etc/openmpi/openmpi-mca-params.conf",
    ]


def oversubscribing(mpirun: Mpirun) -> list[str]:
    """The options by which Open MPI's mpirun starts more ranks than there are places for."""
    return ["--map-by", ":OVERSUBSCRIBE"] if mpirun.major >= 5 else ["--oversubscribe"]


def options(
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

    The ranks' cores are set by matex_tf.placement, so mpirun is told to bind none, unless the user binds. On
    this machine alone more ranks than cores are allowed; where ranks fill the cores, a waiting one yields.
    `settings` are variables for the ranks. With `by_memory` they do without the network on this machine alone.
    """
    environment = environment or {}
    here_only = not chooses_hosts(given, environment)
    full = here_only and ranks >= cores
    own_binding = binds(given)
    variables = {"PYTHONHASHSEED": "0", **(settings or {})}
    if not own_binding:
        variables["MATEX_PLACEMENT"] = "spread"
    variables = {
        name: value
        for name, value in variables.items()
        if name not in environment and not any(word.startswith(name) for word in given)
    }
    words: list[str] = []
    if mpirun.family == OPENMPI:
        if root and "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" not in environment:
            words.append("--allow-run-as-root")
        if not own_binding:
            words += ["--bind-to", "none"]
        if here_only and "map-by" not in map(option_name, given):
            words += oversubscribing(mpirun)
        if (settings or {}).get("MATEX_ELASTIC") and "with-ft" not in map(option_name, given):
            words += ELASTIC
        if full and "OMPI_MCA_mpi_yield_when_idle" not in environment:
            words += ["--mca", "mpi_yield_when_idle", "1"]
        if here_only and by_memory and not chooses_transport(given, environment):
            words += NO_NETWORK
        for name, value in variables.items():
            words += ["-x", f"{name}={value}"]
        if not here_only:
            for name, value in KEEPALIVE.items():
                if name not in given and not any(variable.endswith(name) for variable in environment):
                    words += ["--prtemca" if mpirun.major >= 5 else "--mca", name, str(value)]
            # Open MPI sends the other hosts nothing of the environment but what it is told to.
            for name in sorted(environment):
                if name.startswith("MATEX_") or name == "PYTHONHASHSEED":
                    words += ["-x", name]
    else:
        if mpirun.family == INTEL:
            if not own_binding:
                variables.setdefault("I_MPI_PIN", "0")
            if full:
                variables.setdefault("I_MPI_THREAD_YIELD", "2")
        elif mpirun.family == MPICH and not own_binding:
            words += ["-bind-to", "none"]
        for name, value in variables.items():
            words += ["-genv", name, value]
    return [*words, *given, "-n", str(ranks)]


def command(
    mpirun: Mpirun, mpirun_options: Sequence[str], python: str, target: Sequence[str], module: bool = True
) -> list[str]:
    """The whole command line: `mpirun OPTIONS python -m matex_tf TARGET`, without `-m matex_tf` if not `module`."""
    return [mpirun.path, *mpirun_options, python, *(["-m", "matex_tf"] if module else []), *target]
