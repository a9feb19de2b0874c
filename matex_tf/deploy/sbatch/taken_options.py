"""Options of sbatch that contradict `matex submit`, which sets them itself or relies on their defaults.

`--sbatch=-N4`, for example, is refused with the advice to use --nodes. Variables such as SBATCH_ARRAY_INX, which sbatch
reads, are checked in the same way. Further functions tell whether options set the job's share of a node, or its cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

_NODES = "--nodes sets the number of nodes"
_RANKS = "--ranks-per-node, or -n, sets the number of ranks"
_CPUS = "--cpus sets the number of cores for each rank"
_GPUS = "--gpus-per-node sets the number of GPUs on each node"
_TRES = f"{_CPUS}; {_GPUS}"
_OUTPUT = "`matex follow` reads the job's output from the file `output` in the folder of its run"
_ARRAY = "--array sets the tasks, each with a folder of its own"
_NOTHING = "no job would be submitted; run `sbatch` itself"
_Options = dict[str, tuple[str, str]]
"""Keyed by long name: the option's letter ("": none), and the alternative for messages ("" in tables without any)."""
# Refused in --sbatch only: as a variable such as SBATCH_ACCOUNT they are defaults, which the job's options override.
_SET_BY_MATEX: _Options = {
    "job-name": ("J", "--name names the job"),
    "nodes": ("N", _NODES),
    "ntasks": ("n", _RANKS),
    "ntasks-per-node": ("", _RANKS),
    **dict.fromkeys(("tasks-per-node", "ntasks-per-gpu", "ntasks-per-tres"), ("", _RANKS)),
    "cpus-per-task": ("c", _CPUS),
    "tres-per-task": ("", _TRES),
    "gpus-per-node": ("", _GPUS),
    "time": ("t", "--time sets the time limit, before which the ranks are warned"),
    "account": ("A", "--account names the account"),
    "partition": ("p", "--partition names the partition"),
}
# Refused in --sbatch and as variables. The next two tables as well, if the job has --cpus or --gpus-per-node.
_FORBIDDEN: _Options = {
    "output": ("o", _OUTPUT),
    "error": ("e", _OUTPUT),
    "open-mode": ("", "a requeued job appends to its output"),
    "signal": ("", "SIGUSR1 warns the ranks of the time limit, so that they save their state"),
    "chdir": ("D", "the job runs in the folder of submission: change the folder first"),
    "array": ("a", _ARRAY),
    "clusters": ("M", "jobs are submitted to the cluster of this machine: use a login node of the other cluster"),
    "wait": ("W", "`matex submit` waits for the end of the job, unless --no-follow is given"),
    "wrap": ("", "the script and its arguments follow the options"),
    **{name: (letter, _NOTHING) for name, letter in {"help": "h", "usage": "", "version": "V"}.items()},
    "quiet": ("Q", "sbatch must print the number of the job"),
    "test-only": ("", "--dry-run prints the job and submits nothing"),
}
_WITH_CPUS: _Options = {"cpus-per-gpu": ("", _CPUS), "tres-per-task": ("", _TRES)}
_WITH_GPUS: _Options = {
    "gpus": ("G", _GPUS),
    **dict.fromkeys(("gpus-per-socket", "gpus-per-task", "gres"), ("", _GPUS)),
    "tres-per-task": ("", _TRES),
}
_CORES: _Options = {**_WITH_CPUS, "mincpus": ("", ""), "extra-node-info": ("B", ""), "exclusive": ("", "")}
_NODE_SHARING_OPTIONS: _Options = {**_CORES, **_WITH_GPUS, "oversubscribe": ("s", "")}  # set a job's share of a node
_FLAGS = "hHOQsvVW"  # letters without a value; further letters may follow in one word, as -HQ
_VARIABLES = {"ARRAY_INX": "array", "TIMELIMIT": "time"}  # variables that are not named after their options


def check_words(words: Iterable[str], has_cpus: bool, has_gpus: bool) -> None:
    """Raises ValueError, which names the alternative, for an option of sbatch that `matex submit` sets.

    `has_cpus` and `has_gpus`: the job requests cores or GPUs by options of `matex submit`.
    """
    known_options = _SET_BY_MATEX | _FORBIDDEN | _list_conflicts(has_cpus, has_gpus)
    for word in words:
        if (name := _find_option(word, known_options)) and _concerns_gpus(name, word):
            shown_option = word if word.startswith(f"--{name}") else f"{word} (--{name})"
            raise ValueError(f"--sbatch takes no {shown_option}: {known_options[name][1]}")


def has_node_share(words: Iterable[str]) -> bool:
    """Whether an option of sbatch sets the job's share of a node, or with whom it shares nodes."""
    return any(_find_option(word, _NODE_SHARING_OPTIONS) for word in words)


def has_core_count(words: Iterable[str]) -> bool:
    """Whether an option of sbatch sets the number of cores on a node."""
    return any(_find_option(word, _CORES) for word in words)


def check_environment(environment: Mapping[str, str], words: Sequence[str]) -> None:
    """Raises ValueError, which names the alternative, for an SBATCH_* variable that conflicts with the job.

    An option in `words`, the command line of sbatch, overrides its variable. A variable such as SBATCH_ACCOUNT is a
    legitimate default.
    """
    option_names = {word.partition("=")[0].removeprefix("--") for word in words}
    forbidden = _FORBIDDEN | _list_conflicts("cpus-per-task" in option_names, "gpus-per-node" in option_names)
    for variable, value in environment.items():
        prefix, _, option_part = variable.partition("_")
        name = _VARIABLES.get(option_part, option_part.lower().replace("_", "-"))
        if prefix == "SBATCH" and name in forbidden.keys() - option_names and _concerns_gpus(name, value):
            raise ValueError(f"sbatch would take {variable}={value} of the environment: {forbidden[name][1]}. Unset it")


def _list_conflicts(has_cpus: bool, has_gpus: bool) -> _Options:
    """The options of sbatch that contradict --cpus or --gpus-per-node of `matex submit`."""
    return (_WITH_CPUS if has_cpus else {}) | (_WITH_GPUS if has_gpus else {})


def _concerns_gpus(name: str, text: str) -> bool:
    """Whether the option `name` with the value in `text` concerns GPUs. --gres may list only other devices."""
    return name != "gres" or "gpu" in text


def _find_option(word: str, known_options: _Options) -> str:
    """The name of the option among `known_options` that the word sets; "" if none.

    As in sbatch, a long name may be abbreviated, and letters without a value may precede another letter in one word:
    -HN4 sets -N. sbatch itself rejects ambiguous abbreviations.
    """
    if word.startswith("--"):
        name = word[2:].replace("=", " ").partition(" ")[0]
        # A complete name abbreviates no other.
        if name in _SET_BY_MATEX | _FORBIDDEN | _NODE_SHARING_OPTIONS | known_options:
            return name if name in known_options else ""
        return next((option for option in known_options if name and option.startswith(name)), "")
    for letter in word[1:]:
        if option := next((option for option, (short_name, _) in known_options.items() if short_name == letter), ""):
            return option
        if letter not in _FLAGS:
            break
    return ""
