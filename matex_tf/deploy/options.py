"""Validated options of a job, with defaults from the user's configuration files."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from matex_tf import arguments

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # the name of a variable
FOLDER_VARIABLES = ("MATEX_STATE", "MATEX_RECORD")
_RUN_OPTIONS = re.compile(r"(-n|-np|--np|-c|--restarts|--record)(=.*)?|-n\d+")  # set by the job
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")

Asked = TypeVar("Asked", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that every cluster has. An invalid value raises ValueError or TypeError.

    `run`: further options of `matex run`; `matex`: the `matex` command on the cluster; both in shell syntax. `cpus`:
        CPUs for each rank; under Kubernetes, for each worker.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    time: str = ""
    name: str = ""
    restarts: int = 3
    cpus: str | int = ""
    gpus_per_node: int = 0
    setup: Sequence[str] = ()
    run: Sequence[str] = ()
    matex: str = ""

    @classmethod
    def get_kind(cls) -> str:
        """The kind of the cluster: the table name in the user's file, and the `--KIND` option."""
        return cls.__name__.lower()

    def __post_init__(self) -> None:
        least = {"nodes": 1, "ranks_per_node": 1, "restarts": 0, "gpus_per_node": 0}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(one.default, tuple):
                value = (value,) if isinstance(value, str) else value
                if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
                    raise TypeError(
                        f"expected {one.name} to be a list of texts; given {arguments.describe_value(value)}"
                    )
                object.__setattr__(self, one.name, tuple(value))
            elif isinstance(one.default, bool):
                if not isinstance(value, bool):
                    raise TypeError(f"expected {one.name} to be True or False; given {arguments.describe_value(value)}")
            elif isinstance(one.default, int):
                arguments.check_whole_number(self.get_kind(), one.name, value, least.get(one.name, 0))
            elif one.name == "cpus" and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, "cpus", str(value))
            elif not isinstance(value, str):
                raise TypeError(f"expected {one.name} to be text; given {arguments.describe_value(value)}")
            elif one.name != "matex" and not value.isprintable():
                raise ValueError(f"expected {one.name} to be one line of printable text; given {value!r}")
        for text in (*self.run, self.matex):
            try:
                words = shlex.split(text)
            except ValueError as error:
                raise ValueError(
                    f"expected run and matex to be words as for a shell; given {text!r}: {error}"
                ) from None
            for word in words:
                if text != self.matex and _RUN_OPTIONS.fullmatch(word):
                    raise ValueError(
                        f"run takes no {word}: ranks and restarts are options of the job, whose folder has the records"
                    )
        if self.time:
            parse_time(self.time)

    @property
    def ranks(self) -> int:
        """The total number of ranks."""
        return self.nodes * self.ranks_per_node

    def add_variables(self: Asked, variables: Mapping[str, str]) -> Asked:
        """A copy that exports these environment variables before the run. Raises ValueError."""
        check_variables(variables)
        lines = (f"export {name}={shlex.quote(value)}" for name, value in variables.items())
        return replace(self, setup=(*self.setup, *lines))

    def make_command(self, target: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """The command that starts all ranks of `target`: a script with its arguments, or `-m` and a module."""
        again = ["--restarts", str(self.restarts)] if self.restarts else []
        own = [word for text in self.run for word in shlex.split(text)]
        return [*shlex.split(self.matex or "matex"), "run", *again, "-n", str(self.ranks), *options, *own, *target]


def check_variables(names: Iterable[str]) -> None:
    """Raises ValueError for a variable that would redirect the run's state or records out of its folder."""
    for name in names:
        if name in FOLDER_VARIABLES:
            raise ValueError(f"env takes no {name}: the folder of the run has its state and its records")


def parse_time(time: str) -> int:
    """Parse a time limit in Slurm's formats, in seconds: minutes, minutes:seconds, hours:minutes:seconds,
    days-hours[:minutes[:seconds]].

    Raises ValueError.
    """
    found = _TIME.fullmatch(time)
    if not found:
        raise ValueError(f"expected time to be as 2:00:00 (hours), 30 (minutes) or 1-12 (days-hours); given {time!r}")
    days, *parts = (int(part) if part else None for part in found.groups())
    first, second, third = parts
    if days is None and third is None:
        total = (first or 0) * 60 + (second or 0)
    else:
        total = ((days or 0) * 24 + (first or 0)) * 3600 + (second or 0) * 60 + (third or 0)
    if not total:
        raise ValueError(f"expected time to be more than nothing; given {time!r}")
    return total


def list_files() -> list[Path]:
    """The files with defaults: the user's file, then that of the current folder, which takes precedence."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [Path(home, "matex.toml"), Path("matex.toml")]


def merge_options(asked: type[Asked], given: Mapping[str, Any], ranks: int | None = None) -> Asked:
    """Merge the options `given` with the defaults of the user's files. Lists are concatenated, the files' items first.

    `ranks`, a total, replaces the files' `ranks_per_node`.

    Raises:
        ValueError, TypeError: a name or a value is invalid (the message names the file), or `ranks` contradicts nodes.
    """
    known = [one.name for one in fields(asked)]
    lists = {one.name for one in fields(asked) if isinstance(one.default, tuple)}
    settled: dict[str, Any] = {}

    def add_options(more: Mapping[str, Any], where: str) -> None:
        for name in more:
            if name not in known:
                raise ValueError(where + arguments.describe_unknown("option", name, known))
        try:
            checked = asked(**more)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}{error}") from None
        for name in more:
            value = getattr(checked, name)
            settled[name] = (*settled.get(name, ()), *value) if name in lists else value

    for path in list_files():
        if path.is_file():
            add_options(_read_table(path, asked.get_kind()), f"{path}: ")
    if ranks is not None:
        settled.pop("ranks_per_node", None)
    add_options(given, "")
    options = asked(**settled)
    if ranks is None:
        return options
    if "ranks_per_node" in given and options.ranks != ranks:  # an explicit 1 is a contradiction, too
        raise ValueError(_describe_contradiction(options, ranks))
    return distribute_ranks(options, ranks)


def format_options(asked: Options) -> list[str]:
    """The command-line words that, with the defaults of the user's files, result in `asked`."""
    words = []
    base = merge_options(type(asked), {})
    for one in fields(asked):
        value, known = getattr(asked, one.name), getattr(base, one.name)
        option = f"--{one.name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] if value and not known else []
        elif not isinstance(value, tuple):
            words += [f"{option}={value}"] if value != known else []
        elif value[: len(known)] == known:
            words += [f"{option}={text}" for text in value[len(known) :]]
        else:
            words += [f"{option}={text}" for text in value]
    return words


def distribute_ranks(asked: Asked, ranks: int) -> Asked:
    """Distribute `ranks`, a total, evenly over the nodes of `asked`. Raises ValueError."""
    each, rest = divmod(ranks, asked.nodes)
    if rest and asked.ranks_per_node == 1:
        raise ValueError(f"{ranks} ranks cannot be as many on each of {asked.nodes} nodes")
    if rest or asked.ranks_per_node not in (1, each):
        raise ValueError(_describe_contradiction(asked, ranks))
    return replace(asked, ranks_per_node=each)


def _describe_contradiction(asked: Options, ranks: int) -> str:
    return f"{ranks} ranks do not go with {asked.nodes} nodes of {asked.ranks_per_node} ranks each"


def _read_table(path: Path, kind: str) -> dict[str, Any]:
    """Read the table `kind` of a TOML file; `-` in names becomes `_`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}. It is read as TOML (https://toml.io)") from None
    if kind not in tables and (meant := difflib.get_close_matches(kind, tables, n=1)):
        raise ValueError(f"{path}: there is no table [{meant[0]}]; did you mean [{kind}]?")
    table = tables.get(kind, {})
    if not isinstance(table, dict):
        raise TypeError(f"{path}: expected [{kind}] to be a table; given {arguments.describe_value(table)}")
    return {name.replace("-", "_"): value for name, value in table.items()}
