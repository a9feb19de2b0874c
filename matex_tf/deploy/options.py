"""Validated options of a job, with defaults from the user's configuration files.

Each option is declared once, as a field of a class: the command line, the files and Python take it from there. `ranks`,
the total number, is no option. It may be given in place of `ranks_per_node`, and is distributed over the nodes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from matex_tf import arguments
from matex_tf.deploy import run_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # the name of a variable
FOLDER_VARIABLES = ("MATEX_STATE", "MATEX_RECORD")  # name the folders of the run's state and records
_RUN_OPTIONS = re.compile(r"(-n|-np|--np|-c|--restarts|--record)(=.*)?|-n\d+")  # options of `matex run` that a job sets
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")  # see `parse_time`

AnyOptions = TypeVar("AnyOptions", bound="Options")


def declare(default: Any, help_text: str, metavar: str = "", **details: Any) -> Any:
    """A field that is an option of a command. `metavar` stands for the value in the help page of the command line.

    `details` of the names "setting" and "purpose" are for the caller; others are parameters of `click.option`.
    """
    return field(default=default, metadata={"help": help_text, "metavar": metavar or None, **details})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that every cluster has. An invalid value raises ValueError or TypeError.

    `run` and `matex` are in shell syntax.
    """

    nodes: int = declare(1, "The number of nodes; default: 1.", "NODES")
    ranks_per_node: int = declare(1, "The number of ranks on each node; default: 1.", "RANKS")
    time: str = declare("", "The time limit: 2:00:00 or 1-12 (days-hours).", "LIMIT")
    name: str = declare("", "The job's name; default: the script's name.", "NAME")
    restarts: int = declare(3, "As for `matex run`; default: 3.", "TIMES")
    cpus: str | int = declare("", "CPUs for each rank (Kubernetes: each worker); default: whole nodes.", "CPUS")
    gpus_per_node: int = declare(0, "The number of GPUs on each node.", "GPUS")
    setup: Sequence[str] = declare((), "A shell line before the run: 'module load openmpi'.", "LINE")
    run: Sequence[str] = declare((), "Options of `matex run` or mpirun: '--mca pml ob1'.", "OPTIONS")
    matex: str = declare("", "The `matex` command on the cluster.", "COMMAND")
    cpus_form: ClassVar[tuple[str, str]] = r"[1-9][0-9]*", "a whole number, 1 or more, of each rank"
    """The pattern of `cpus`, and its description for messages."""

    @classmethod
    def get_kind(cls) -> str:
        """The kind of the cluster: the table name in the user's file, and the `--KIND` option."""
        return cls.__name__.lower()

    def __post_init__(self) -> None:
        for option_field in fields(self):
            value = self._check_field(option_field.name, option_field.default, getattr(self, option_field.name))
            object.__setattr__(self, option_field.name, value)
        pattern, form = self.cpus_form
        if self.cpus and not re.fullmatch(pattern, str(self.cpus)):
            raise ValueError(f"expected cpus to be {form}; given {self.cpus!r}")
        _split_words(self.matex)
        for word in (word for text in self.run for word in _split_words(text)):
            if _RUN_OPTIONS.fullmatch(word):
                raise ValueError(
                    f"run takes no {word}: ranks and restarts are options of the job, whose folder has the records"
                )
        if self.time:
            parse_time(self.time)

    def _check_field(self, name: str, default: Any, value: Any) -> Any:
        """`value`, which has the type of `default`; a single text counts as a list of texts."""
        if isinstance(default, bool):
            return arguments.check_flag(self.get_kind(), name, value)
        if isinstance(default, int):
            minimum = 1 if name in ("nodes", "ranks_per_node") else 0
            return arguments.check_whole_number(self.get_kind(), name, value, minimum)
        if isinstance(default, tuple):
            texts = [value] if isinstance(value, str) else value
            if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
                raise TypeError(f"expected {name} to be a list of texts; given {arguments.describe_value(value)}")
            return tuple(texts)
        if name == "cpus" and isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise TypeError(f"expected {name} to be text; given {arguments.describe_value(value)}")
        if name != "matex" and not value.isprintable():  # a path in `matex` is quoted, and may have any characters
            raise ValueError(f"expected {name} to be one line of printable text; given {value!r}")
        return value

    @property
    def ranks(self) -> int:
        """The total number of ranks."""
        return self.nodes * self.ranks_per_node

    def complete(self: AnyOptions, target: Sequence[str]) -> AnyOptions:
        """A copy with a name, by default that of `target`, and a command, by default this installation's `matex`.

        Characters of the name that cannot be printed become "_". Raises ValueError if an option is missing.
        """
        name = self.name or run_folder.name_target(target)
        printable_name = "".join(letter if letter.isprintable() else "_" for letter in name)
        return replace(self, name=printable_name, matex=self.matex or find_own_command())

    def add_variables(self: AnyOptions, variables: Mapping[str, str]) -> AnyOptions:
        """A copy that exports these environment variables before the run. Raises ValueError."""
        check_variables(variables)
        lines = (f"export {name}={shlex.quote(value)}" for name, value in variables.items())
        return replace(self, setup=(*self.setup, *lines))

    def make_command(self, target: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """The `matex run` command that starts all ranks of `target`: a script with arguments, or `-m` and a module."""
        command = [*shlex.split(self.matex or "matex"), "run"]
        command += ["--restarts", str(self.restarts)] if self.restarts else []
        command += ["-n", str(self.ranks), *options]
        return [*command, *(word for text in self.run for word in shlex.split(text)), *target]


def find_own_command() -> str:
    """The `matex` command of this Python installation, for nodes that share its file system."""
    matex_path = shutil.which("matex", path=str(Path(sys.executable).parent))
    return shlex.join([matex_path] if matex_path else [sys.executable, "-m", "matex_tf.launch.cli"])


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"expected run and matex to be words as for a shell; given {text!r}: {error}") from None


def check_variables(names: Iterable[str]) -> None:
    """Raises ValueError for a variable that would redirect the run's state or records out of its folder."""
    for name in names:
        if name in FOLDER_VARIABLES:
            raise ValueError(f"env takes no {name}: the folder of the run has its state and its records")


def parse_time(time: str) -> int:
    """The seconds of a time limit in a format of Slurm. Raises ValueError.

    The formats are minutes, minutes:seconds, hours:minutes:seconds, and days-hours[:minutes[:seconds]].
    """
    match = _TIME.fullmatch(time)
    if not match:
        raise ValueError(f"expected time to be as 2:00:00 (hours), 30 (minutes) or 1-12 (days-hours); given {time!r}")
    days, first_number, second_number, third_number = (int(number) if number else None for number in match.groups())
    if days is None and third_number is None:  # minutes or minutes:seconds
        total_seconds = (first_number or 0) * 60 + (second_number or 0)
    else:
        total_seconds = (
            ((days or 0) * 24 + (first_number or 0)) * 3600 + (second_number or 0) * 60 + (third_number or 0)
        )
    if not total_seconds:
        raise ValueError(f"expected time to be more than nothing; given {time!r}")
    return total_seconds


def list_files() -> list[Path]:
    """The files with defaults: the user's file, then the file in the current folder, which takes precedence."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [Path(home, "matex.toml"), Path("matex.toml")]


def merge_options(kind: type[AnyOptions], option_values: Mapping[str, Any], ranks: int | None = None) -> AnyOptions:
    """The `option_values` over the defaults of the user's files. Lists are concatenated, the files' items first.

    `ranks`, the total number, replaces `ranks_per_node` of the files. A `ranks_per_node` in `option_values` must agree
    with it.

    Raises:
        ValueError, TypeError: a name or a value is invalid (the message names the file), or `ranks` contradicts nodes.
    """
    names = [option_field.name for option_field in fields(kind)]
    merged: dict[str, Any] = {}

    def merge_values(values: Mapping[str, Any], source: str) -> None:
        for name in values:
            if name not in names:
                raise ValueError(source + arguments.describe_unknown("option", name, names))
        try:
            checked_options = kind(**values)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{source}{error}") from None
        for name in values:
            value = getattr(checked_options, name)
            merged[name] = (*merged.get(name, ()), *value) if isinstance(value, tuple) else value

    for path in list_files():
        if path.is_file():
            merge_values(_read_table(path, kind.get_kind()), f"{path}: ")
    if ranks is not None:
        merged.pop("ranks_per_node", None)
    merge_values(option_values, "")
    options = kind(**merged)
    if ranks is None:
        return options
    # Checked here, because `distribute_ranks` cannot distinguish a given 1 from the default 1.
    if "ranks_per_node" in option_values and options.ranks != ranks:
        raise ValueError(_describe_contradiction(options, ranks))
    return distribute_ranks(options, ranks)


def _name_option(name: str) -> str:
    """The name on the command line of the option `name`."""
    return f"--{name.replace('_', '-')}"


def add_options(*kinds: type[Any], omitted: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that adds the declared options of these dataclasses, except `omitted`, to a command of click.

    The value of an option that is not given is None or ().
    """
    declared_fields: dict[str, Field[Any]] = {}
    for option_field in (option_field for kind in kinds for option_field in fields(kind)):
        if option_field.metadata and option_field.name not in omitted:
            declared_fields.setdefault(option_field.name, option_field)  # several kinds have an account

    def add_all(command: Callable[..., Any]) -> Any:
        for option_field in reversed(declared_fields.values()):
            command = _make_click_option(option_field)(command)
        return command

    return add_all


def _make_click_option(option_field: Field[Any]) -> Callable[..., Any]:
    default = option_field.default
    details = {name: detail for name, detail in option_field.metadata.items() if name not in ("setting", "purpose")}
    if not isinstance(default, bool):
        details = {"type": int if isinstance(default, int) else str, "multiple": isinstance(default, tuple)} | details
    return click.option(_name_option(option_field.name), is_flag=isinstance(default, bool), default=None, **details)


def format_options(options: Options) -> list[str]:
    """The words of a command line for `options`, without the options that the user's files already set.

    `matex tune` prints such a command, which trains as a trial did. A flag or a list item of the files remains set even
    if `options` lack it: no word of a command line removes it.
    """
    option_words = []
    defaults = merge_options(type(options), {})
    for option_field in fields(options):
        value, default = getattr(options, option_field.name), getattr(defaults, option_field.name)
        option_name = _name_option(option_field.name)
        if isinstance(value, tuple):  # the words add items to those of the files
            added_texts = value[len(default) :] if value[: len(default)] == default else value
            option_words += [f"{option_name}={text}" for text in added_texts]
        elif isinstance(value, bool):
            option_words += [option_name] if value and not default else []
        elif value != default:
            option_words.append(f"{option_name}={value}")
    return option_words


def distribute_ranks(options: AnyOptions, ranks: int) -> AnyOptions:
    """`options` with `ranks`, a total, distributed evenly over the nodes.

    Raises:
        ValueError: this is impossible, or contradicts `ranks_per_node`. Its default, 1, counts as not given.
    """
    ranks_per_node, remainder = divmod(ranks, options.nodes)
    is_given = options.ranks_per_node != 1
    if remainder and not is_given:
        raise ValueError(f"{ranks} ranks cannot be as many on each of {options.nodes} nodes")
    if remainder or (is_given and options.ranks_per_node != ranks_per_node):
        raise ValueError(_describe_contradiction(options, ranks))
    return replace(options, ranks_per_node=ranks_per_node)


def _describe_contradiction(options: Options, ranks: int) -> str:
    return f"{ranks} ranks do not go with {options.nodes} nodes of {options.ranks_per_node} ranks each"


def _read_table(path: Path, kind: str) -> dict[str, Any]:
    """Read the table `kind` of a TOML file; `-` in names becomes `_`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}. It is read as TOML (https://toml.io)") from None
    if kind not in tables and (similar := arguments.find_similar(kind, tables)):
        raise ValueError(f"{path}: there is no table [{similar}]; did you mean [{kind}]?")
    table = tables.get(kind, {})
    if not isinstance(table, dict):
        raise TypeError(f"{path}: expected [{kind}] to be a table; given {arguments.describe_value(table)}")
    return {name.replace("-", "_"): value for name, value in table.items()}
