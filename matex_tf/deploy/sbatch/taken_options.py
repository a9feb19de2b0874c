"""The options of sbatch that a job has from `matex submit` itself, however they are spelt or handed to sbatch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

_NODES = "--nodes says on how many nodes the ranks are"
_RANKS = "--ranks-per-node, or -n, says how many ranks there are"
_CPUS = "--cpus says how many cores each rank gets"
_GPUS = "--gpus-per-node says how many GPUs each node has"
_TRES = f"{_CPUS}; {_GPUS}"
_OUTPUT = "the job prints to the file `output` in the folder of its run, which `matex follow` shows"
_ARRAY = "--array says which tasks there are, each with a folder of its own"
_NOTHING = "nothing would be submitted; type `sbatch` itself"
_Options = dict[str, tuple[str, str]]  # the long name: its letter, and what there is instead
_SAID: _Options = {
    "job-name": ("J", "--name names the job"),
    "nodes": ("N", _NODES),
    "ntasks": ("n", _RANKS),
    "ntasks-per-node": ("", _RANKS),
    **dict.fromkeys(("tasks-per-node", "ntasks-per-gpu", "ntasks-per-tres"), ("", _RANKS)),
    "cpus-per-task": ("c", _CPUS),
    "tres-per-task": ("", _TRES),
    "gpus-per-node": ("", _GPUS),
    "time": ("t", "--time says the time limit, before which the ranks are warned"),
    "account": ("A", "--account names the account"),
    "partition": ("p", "--partition names the partition"),
}
_NEVER: _Options = {
    "output": ("o", _OUTPUT),
    "error": ("e", _OUTPUT),
    "open-mode": ("", "a job that is queued again appends to its output"),
    "signal": ("", "ranks are warned of the time limit by SIGUSR1, and keep their state"),
    "chdir": ("D", "the job runs in the folder where it is submitted: change to another first"),
    "array": ("a", _ARRAY),
    "clusters": ("M", "jobs are looked for in the cluster of this machine: submit from a login node of the other"),
    "wait": ("W", "`matex submit` waits for the end of the job; with --no-follow it does not"),
    "wrap": ("", "the script and its arguments come after the options"),
    **{name: (letter, _NOTHING) for name, letter in {"help": "h", "usage": "", "version": "V"}.items()},
    "quiet": ("Q", "sbatch is to tell the number of the job"),
    "test-only": ("", "--dry-run prints the job and submits nothing"),
}
_WITH_CPUS: _Options = {"cpus-per-gpu": ("", _CPUS), "tres-per-task": ("", _TRES)}
_WITH_GPUS: _Options = {
    "gpus": ("G", _GPUS),
    **dict.fromkeys(("gpus-per-socket", "gpus-per-task", "gres"), ("", _GPUS)),
    "tres-per-task": ("", _TRES),
}
_CORES: _Options = {**_WITH_CPUS, "mincpus": ("", ""), "extra-node-info": ("B", ""), "exclusive": ("", "")}
_PARTS: _Options = {**_CORES, **_WITH_GPUS, "oversubscribe": ("s", "")}  # of a node
_FLAGS = "hHOQsvVW"  # letters without a value, after which others may follow
_VARIABLES = {"ARRAY_INX": "array", "TIMELIMIT": "time"}  # whose names are not those of their options


def check_words(words: Iterable[str], has_cpus: bool, has_gpus: bool) -> None:
    """Refuse options of sbatch that a job has already; `has_cpus` and `has_gpus` say whether it asks for those itself.

    Raises:
        ValueError: with the option and what there is instead.
    """
    known = _SAID | _NEVER | _list_beside(has_cpus, has_gpus)
    for word in words:
        if (name := _find_option(word, known)) and _needs_ours(name, word):
            shown = word if word.startswith(f"--{name}") else f"{word} (--{name})"
            raise ValueError(f"--sbatch takes no {shown}: {known[name][1]}")


def needs_parts(words: Iterable[str]) -> bool:
    """Whether any of the options of sbatch says how much of a node the job needs, or with whom it shares it."""
    return any(_find_option(word, _PARTS) for word in words)


def needs_cores(words: Iterable[str]) -> bool:
    """Whether any of the options of sbatch says how many cores of a node the job needs."""
    return any(_find_option(word, _CORES) for word in words)


def check_environment(environment: Mapping[str, str], words: Sequence[str]) -> None:
    """Refuse variables by which sbatch would do what no job of ours can have.

    What is among `words`, on the command line of sbatch, wins over a variable. Others, as SBATCH_ACCOUNT, are defaults
    that a user or a cluster has.

    Raises:
        ValueError: with the variable and what there is instead.
    """
    ours = {word.partition("=")[0].removeprefix("--") for word in words}
    never = _NEVER | _list_beside("cpus-per-task" in ours, "gpus-per-node" in ours)
    for variable, value in environment.items():
        kind, _, short = variable.partition("_")
        name = _VARIABLES.get(short, short.lower().replace("_", "-"))
        if kind == "SBATCH" and name in never.keys() - ours and _needs_ours(name, value):
            raise ValueError(f"sbatch would take {variable}={value} of the environment: {never[name][1]}. Unset it")


def _list_beside(has_cpus: bool, has_gpus: bool) -> _Options:
    return (_WITH_CPUS if has_cpus else {}) | (_WITH_GPUS if has_gpus else {})


def _needs_ours(name: str, text: str) -> bool:
    """Whether the option needs what ours give: --gres also lists other devices than GPUs."""
    return name != "gres" or "gpu" in text


def _find_option(word: str, known: _Options) -> str:
    """Which of the `known` options the word is; "" if none.

    As for sbatch, a long name may be cut short, and letters without a value may stand before others in one word. A name
    so short that others begin alike sbatch refuses itself.
    """
    if word.startswith("--"):
        name = word[2:].replace("=", " ").partition(" ")[0]
        if name in known or name in _SAID | _NEVER | _PARTS:
            return name if name in known else ""
        return next((one for one in known if name and one.startswith(name)), "")
    for letter in word[1:]:
        if found := next((name for name, (own, _) in known.items() if own == letter), ""):
            return found
        if letter not in _FLAGS:
            break
    return ""
