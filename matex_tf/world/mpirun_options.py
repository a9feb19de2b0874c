"""Parses mpirun's options: the arguments of each, and whether they choose cores, hosts or the transport."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Mapping, Sequence

OPENMPI, MPICH, INTEL = "Open MPI", "MPICH", "Intel MPI"
# Number of arguments of each option of any MPI's mpirun; for other options, `_count_arguments` guesses it.
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
        "iface launcher launcher-exec rmk bootstrap outfile-pattern errfile-pattern membind forward-signals tmpdir am "
        "launch-agent preload-files bootstrap-exec"
    ).split(),
    2: "mca gmca prtemca pmixmca omca genv env".split(),
}
ARITY = {name: count for count, names in WORDS_AFTER.items() for name in names}
BINDING_OPTIONS = {"bind-to", "cpu-set", "cpu-list", "rankfile", "rf", "bind-to-core", "bind-to-socket", "membind"}
HOST_OPTIONS = set("host H hosts hostfile machinefile f default-hostfile add-hostfile add-host dvm".split())
# With these, the user, or a file that the user names, chooses the transport between ranks.
_TRANSPORT = re.compile(r"(OMPI_MCA_)?(btl|btl_.*|pml|mtl|mca_base_.*param_file.*|mca_base_envar_file_prefix)(=.*)?")
_TRANSPORT_FILES = {"tune", "am"}  # mpirun's options with such a file
ALLOCATIONS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID")  # variables of jobs of batch systems
_GRID_ENGINE_HOSTS = "PE_HOSTFILE"  # the host file of a job of Grid Engine, from which mpirun takes the hosts


def parse_option_name(option: str) -> str:
    """The bare name of an option: "bind-to" for `--bind-to`, `-bind-to` and `--bind-to=core`."""
    return option.lstrip("-").split("=", 1)[0]


def looks_like_script(argument: str) -> bool:
    """Whether `argument`, among mpirun's options, is the script: it ends in .py or is a file."""
    return argument.endswith(".py") or os.path.isfile(argument)


def split_options(arguments: Sequence[str], known_options: Mapping[str, int] = ARITY) -> tuple[list[str], list[str]]:
    """Split `arguments` into mpirun's options and the rest: the script (or -m module) and its arguments.

    Of the `known_options` each takes its number of arguments; an unknown option takes those up to the next option or
    script. `--` ends the options.
    """
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "-m":
        if arguments[index] == "--":
            return list(arguments[:index]), list(arguments[index + 1 :])
        index += 1 + _count_arguments(arguments[index:], known_options, ends_at_script=True)
    return list(arguments[:index]), list(arguments[index:])


def group_options(options: Sequence[str]) -> list[list[str]]:
    """Group the words of mpirun's command line before the script: each option with its arguments."""
    groups: list[list[str]] = []
    index = 0
    while index < len(options):
        argument_count = _count_arguments(options[index:], ARITY, ends_at_script=False)
        groups.append(list(options[index : index + argument_count + 1]))
        index += argument_count + 1
    return groups


def _count_arguments(words: Sequence[str], known_options: Mapping[str, int], ends_at_script: bool) -> int:
    """The number of arguments of the option `words[0]`: 0 for NAME=VALUE; for an unknown option a guess."""
    option, *following = words
    if "=" in option:
        return 0
    if (known_count := known_options.get(parse_option_name(option))) is not None:
        return known_count
    ends = (word.startswith("-") or (ends_at_script and looks_like_script(word)) for word in following)
    return next((count for count, is_end in enumerate(ends) if is_end), len(following))


def read_value(group: Sequence[str]) -> str:
    """The first argument of an option; see `group_options`."""
    if "=" in group[0]:
        return group[0].partition("=")[2]
    return group[1] if len(group) > 1 else ""


def has_binding_option(options: Sequence[str]) -> bool:
    """Whether mpirun's `options` determine the cores of the ranks."""
    groups = [(parse_option_name(group[0]), group) for group in group_options(options)]
    return any(
        name in BINDING_OPTIONS or (name == "map-by" and is_binding_policy(read_value(group))) for name, group in groups
    )


def is_binding_policy(policy: str) -> bool:
    """Whether a mapping policy (the value of --map-by) places ranks on parts of a node rather than on nodes."""
    return bool(
        re.search(r"(^|:)(l[123]cache|numa|package|socket|core|hwthread|pe-list|pe|rankfile)\b", policy.lower())
    )


def chooses_hosts(options: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a host list or a batch system chooses the hosts of the ranks, instead of this machine only."""
    has_list = any(word.startswith("-") and parse_option_name(word) in HOST_OPTIONS for word in options)
    return has_list or any(name in environment for name in (*ALLOCATIONS, _GRID_ENGINE_HOSTS))


def chooses_transport(options: Sequence[str], environment: Mapping[str, str], lines: Sequence[str] = ()) -> bool:
    """Whether the user chooses the transport of ranks: in `options`, the environment or the `lines` of MPI's files."""
    if any(word.startswith("-") and parse_option_name(word) in _TRANSPORT_FILES for word in options):
        return True
    file_parameters = [line.partition("=")[0].strip() for line in lines]
    return any(_TRANSPORT.fullmatch(word) for word in (*options, *environment, *file_parameters))


def read_parameter_files(*prefixes: str) -> list[str]:
    """The lines of the parameter files of an Open MPI that is installed at one of `prefixes`.

    These are the user's file, the installation's, and those of Debian's and Fedora's packages.
    """
    lines: list[str] = []
    for path in (
        os.path.expanduser("~/.openmpi/mca-params.conf"),
        *(os.path.join(prefix, "etc", "openmpi-mca-params.conf") for prefix in dict.fromkeys(prefixes)),
        *glob.glob("/etc/openmpi*/openmpi-mca-params.conf"),
    ):
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            lines += file
    return lines
