"""Parsing of `matex run`: its own options, options of mpirun among them, and the script with its arguments.

In `matex run -n 2 --mca pml ob1 --explain train.py --epochs 3`, -n and --explain are options of `matex run`, --mca is
an option of mpirun, and --epochs one of the script. `RunCommand` separates them; click parses those of `matex run`.
`read_run` checks their values and returns a `Run`. `settle_strategy` and `change_ranks` derive a run for a restart.

A strategy says how ranks train together. With `allreduce` every rank sums gradients and updates all variables; with
`servers:S` S ranks own the variables, and with `servers:S:only` they do not train.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import click

from matex_tf import arguments, settings
from matex_tf.deploy.options import declare
from matex_tf.launch.option_types import BYTES, HERE, Parsed, make_count
from matex_tf.ops import cache
from matex_tf.world import mpirun_options
from matex_tf.world.mpirun_options import ALLOCATIONS

RANKS_OPTIONS = ("-n", "-np", "--np", "-c")
RESTARTS = 3  # the default of --restarts with --elastic or --adapt=ranks
_STRATEGY = "MATEX_STRATEGY"
_STATE_PREFIX = ".matex_tf-state-"
# The array index distinguishes the jobs that a batch system makes from one script; ALLOCATIONS are the job numbers.
_ARRAY_VARIABLES = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID", "LSB_JOBINDEX")


STRATEGY = Parsed("value", settings.parse_strategy)
ADAPT = Parsed("value", settings.parse_adapt)  # the type of `--adapt`, whose value is optional


@dataclass(frozen=True)
class Run:
    """The request of `matex run`; "" and 0: an option is not given.

    The detail `setting` of an option is the variable by which the ranks get the value. An option with a `purpose`, the
    text for the error message, needs two ranks or more. `environment` is the environment of mpirun, which is forwarded
    to other hosts; None: this process's own.
    """

    ranks: int
    target: list[str]  # the script or "-m" and a module, with its arguments
    options: list[str] = field(default_factory=list)  # options of mpirun
    dry_run: bool = declare(False, "Print the command line of mpirun and run nothing.")
    check: bool = declare(False, "Run a few steps alone and on the ranks; compare losses, weights, files.")
    share: bool = declare(False, "With --check: use your own files if too large for a copy. Changes stay.")
    steps: int = declare(5, "With --check: the number of steps. Default: 5.", type=make_count("steps"))
    explain: bool = declare(
        False, "Say whether each step is sharded, and if not, why.", setting="MATEX_EXPLAIN",
        purpose="tells what ranks share",
    )  # fmt: skip
    strategy: str = declare(
        "", "Who updates the weights: auto, allreduce, sharded, servers:S, async or local:H.", "NAME", type=STRATEGY,
        setting="MATEX_STRATEGY",
    )  # fmt: skip
    adapt: str = declare(
        "", "Give slower ranks fewer rows; the result stays the same. =ranks: also change the number of ranks.",
        "[=ranks]", flag_value="on", type=ADAPT, setting="MATEX_ADAPT",
    )  # fmt: skip
    memory: float = declare(
        0.0, "The memory of a rank, as 16GiB, or here: larger slices are computed in parts.", type=BYTES
    )
    profile: bool = declare(
        False, "Print a table at the end: compute, waiting, communication.", setting="MATEX_PROFILE",
        purpose="tells what ranks do together",
    )  # fmt: skip
    record: str = declare(
        "",
        "Record each rank there, for `matex top` and `report`.",
        "FOLDER",
        purpose="tells what ranks use and wait for",
    )
    live: bool = declare(
        False,
        "Show each rank below the output. Default of --record: runs/.",
        purpose="shows what ranks use and wait for",
    )
    restarts: int = declare(
        0, "Keep the state of the run. After a loss restart from it, at most TIMES times, on the remaining hosts.",
        "TIMES", type=make_count("restarts"),
    )  # fmt: skip
    elastic: bool = declare(
        False, f"Continue without a lost rank. If that is impossible, restart, at most --restarts or {RESTARTS} times.",
        setting="MATEX_ELASTIC", purpose="goes on without a rank that is lost",
    )  # fmt: skip
    environment: Mapping[str, str] | None = None

    def list_settings(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The settings that the options stand for, as environment variables of the ranks."""
        values = {setting: getattr(self, name) for name, setting in _list_details("setting").items()}
        variables = {name: "1" if value is True else value for name, value in values.items() if value}
        if self.record:
            variables["MATEX_RECORD"] = os.path.abspath(self.record)
        if self.memory and "MATEX_MICROBATCH" not in environment:
            variables["MATEX_MICROBATCH"] = "auto"
        if self.memory not in (0.0, HERE):  # HERE: each rank measures the free memory of its host
            variables["MATEX_MEMORY"] = f"{self.memory:.0f}"
        if self.restarts and not environment.get("MATEX_STATE"):
            variables["MATEX_STATE"] = name_state_folder(self.target)
        return variables


def _list_details(key: str) -> dict[str, str]:
    """The detail `key` of each option that has it, by the name of the option."""
    return {option.name: option.metadata[key] for option in fields(Run) if key in option.metadata}


def name_state_folder(target: Sequence[str]) -> str:
    """The folder for the state of a run of `target`: in the current folder, with the same name after a requeue."""
    job_variables = [f"{name}={os.environ[name]}" for name in (*ALLOCATIONS, *_ARRAY_VARIABLES) if name in os.environ]
    key = "\0".join([*target, *job_variables]).encode(errors="surrogateescape")  # for words that are no UTF-8
    return os.path.abspath(_STATE_PREFIX + hashlib.sha256(key).hexdigest()[:12])


class RunCommand(click.Command):
    """A command whose options may be mixed with those of mpirun.

    click parses the options of this command. `ctx.meta["matex.run"]` becomes the pair of the options of mpirun and the
    words of the script, its arguments included.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own_options = {name: option for option in self.params for name in option.opts}
        own_arity = {  # the number of words that follow each option without its dashes; --adapt takes =VALUE only
            name.lstrip("-"): 0 if getattr(option, "is_flag", False) or option.type is ADAPT else 1
            for name, option in own_options.items()
        }
        option_words, target = mpirun_options.split_options(args, {**mpirun_options.ARITY, **own_arity})
        own_words: list[str] = []
        mpirun_words: list[str] = []
        for group in mpirun_options.group_options(option_words):  # a group: an option and its arguments
            name, equals, value = group[0].partition("=")
            if name in RANKS_OPTIONS:  # one name for all spellings of the number of ranks
                name = "-n"
                group = ["-n", *([value] if equals else []), *group[1:]]
            is_own = name in (*own_options, "-h", "--help")
            (own_words if is_own else mpirun_words).extend(group)
        refuse_misspelt(mpirun_words, own_options)
        if "--" in args[len(option_words) :]:  # as in `-n 2 -- --unknown 1 train.py`: further options of mpirun
            options_after_separator, target_after_separator = mpirun_options.split_options(target)
            if options_after_separator:
                mpirun_words, target = mpirun_words + options_after_separator, target_after_separator
        ctx.meta["matex.run"] = mpirun_words, target
        return super().parse_args(ctx, own_words)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "-n RANKS [OPTIONS] [MPIRUN OPTIONS] SCRIPT.py [ARGUMENTS]")
        formatter.write_usage(ctx.command_path, "-n RANKS [OPTIONS] [MPIRUN OPTIONS] -m MODULE [ARGUMENTS]")


def refuse_misspelt(options: Sequence[str], own_names: Iterable[str]) -> None:
    """Refuse an option of mpirun that resembles one of `own_names`, and print a line for another unknown option.

    Raises:
        click.UsageError: the option is probably a misspelt one of `own_names`.
    """
    for word, *_ in mpirun_options.group_options(options):
        name = mpirun_options.parse_option_name(word)
        if not word.startswith("-") or name in mpirun_options.ARITY:
            continue
        if similar_name := arguments.find_similar(f"--{name.lower()}", own_names, cutoff=0.8):
            raise click.UsageError(f"there is no option {word}; did you mean {similar_name}?")
        print(f"matex: {word} is no option of matex run; it goes to mpirun", file=sys.stderr)


def read_run(ctx: click.Context) -> Run:
    """Make the request from the options that click has parsed.

    Raises:
        click.UsageError: the script or the number of ranks is missing, or options contradict one another.
    """
    options, target = ctx.meta["matex.run"]
    if not target or target == ["-m"]:
        raise click.UsageError(
            "no script is named. For example: matex run -n 4 train.py, or matex run -n 4 -m package.module"
        )
    adapt = _read_adapt(ctx.params["adapt"], target[0])
    given = {name: value for name, value in ctx.params.items() if value is not None} | {"adapt": adapt}
    asked = given | {"adapt": "" if adapt == "off" else adapt}  # for the checks below, off is not given
    if "ranks" not in given and "check" not in given:
        raise click.UsageError(f"how many ranks? For example: matex run -n 4 {shlex.join(target)}")
    default_restarts = RESTARTS if adapt == "ranks" or "elastic" in given else 0
    run = Run(**{"ranks": 2, "restarts": default_restarts} | given, target=target, options=options)
    if "steps" in given and not run.check:
        raise click.UsageError("--steps goes with --check: how many steps of the two runs are compared")
    if run.share and not run.check:
        raise click.UsageError("--share goes with --check: whether its runs may use what is too large for a copy")
    purposes = _list_details("purpose")
    for name in ("restarts", "adapt", *purposes):
        if run.check and asked.get(name):
            raise click.UsageError(f"--{name} and --check do not go together: what is checked is a few first steps")
    for name, purpose in purposes.items():
        if asked.get(name) and run.ranks == 1:
            raise click.UsageError(f"--{name} {purpose}: -n expects 2 or more")
    if adapt == "on" and run.ranks == 1:
        raise click.UsageError("--adapt shares rows out by the speed of ranks: -n expects 2 or more")
    if adapt == "ranks" and run.elastic:
        raise click.UsageError(
            "--adapt=ranks and --elastic do not go together: ranks that go on without a lost one are not started again"
        )
    _check_strategy(run.strategy, run.ranks, bool(asked["adapt"]), run.check)
    return run


def _read_adapt(adapt_option: str | None, first_target_word: str) -> str:
    """The value of `--adapt`. Without it "ranks" if MATEX_ADAPT=ranks, which also concerns `matex run`; else "".

    Raises:
        click.UsageError: the word after `--adapt` is one of its values, and needs `=`.
    """
    if adapt_option and first_target_word in settings.ADAPT and not os.path.isfile(first_target_word):
        raise click.UsageError(f"--adapt takes its value with an equals sign: --adapt={first_target_word}")
    is_ranks_in_environment = os.environ.get("MATEX_ADAPT", "").strip().lower() == "ranks"
    return adapt_option or ("ranks" if is_ranks_in_environment else "")


def _check_strategy(strategy: str, ranks: int, is_adapting: bool, is_check: bool) -> None:
    """Raises click.UsageError if `strategy` needs more `ranks`, or contradicts `--adapt` or `--check`."""
    owner_count = settings.get_strategy_number(strategy, ranks)  # of servers:S: ranks that own pieces of variables
    only_serving_count = settings.count_only_serving(strategy)  # ranks that own pieces, and do not train
    if only_serving_count >= ranks:
        raise click.UsageError(
            f"--strategy {strategy} expects {only_serving_count + 1} ranks or more; -n {ranks} was given. "
            f"{only_serving_count} only serve, and one at least is to train"
        )
    if settings.get_strategy_name(strategy) == "servers" and owner_count > ranks:
        raise click.UsageError(
            f"--strategy {strategy} expects {owner_count} ranks or more; -n {ranks} was given. Each owner is a rank "
            "that trains, too"
        )
    if settings.is_asynchronous(strategy) and is_adapting:
        raise click.UsageError(
            "--strategy async and --adapt do not go together: asynchronous ranks train whole batches, and a slower one "
            "takes fewer of them as it is"
        )
    if settings.is_statistical(strategy) and is_check:
        raise click.UsageError(
            f"--strategy {settings.get_strategy_name(strategy)} and --check do not go together: its results are "
            "statistical, not those of the script alone"
        )


def check_target(run: Run) -> None:
    """Raises click.UsageError if the script does not exist, unless mpirun changes the working folder first."""
    is_folder_changed = any(mpirun_options.parse_option_name(word) in ("wdir", "wd") for word in run.options)
    if run.target[0] != "-m" and not is_folder_changed and not os.path.isfile(run.target[0]):
        raise click.UsageError(f"there is no file {run.target[0]} in {os.getcwd()}")


def settle_strategy(run: Run, environment: Mapping[str, str]) -> Run:
    """Put the requested strategy into `run.strategy`, so that a restart may change it (`change_ranks`).

    The request may come from `environment`, or from mpirun's `-x MATEX_STRATEGY`. That option is removed, because it
    would take precedence over the strategy of the restart.
    """
    strategy, options = run.strategy or environment.get(_STRATEGY, ""), []
    for group in mpirun_options.group_options(run.options):
        assignment = group[1] if len(group) > 1 else ""
        name, equals, value = assignment.partition("=")
        if name != _STRATEGY:
            options += group
        elif equals or len(group) > 2:  # -x NAME=VALUE, or -genv NAME VALUE; -x NAME passes the value of `environment`
            strategy = value or group[-1]
    return replace(run, strategy=strategy.strip().lower(), options=options)


def choose_shared(run: Run, environment: Mapping[str, str]) -> Path | None:
    """The folder for files that all hosts must see; None if all ranks run on this host."""
    return cache.find_cache_folder() if mpirun_options.chooses_hosts(run.options, environment) else None


def change_ranks(run: Run, ranks: int, options: list[str], strategy: str) -> Run:
    """`run` on `ranks` ranks with mpirun's `options`, and by `strategy` if the ranks chose one.

    `servers:S` gets fewer owners if S is more than the ranks allow.
    """
    strategy = strategy or run.strategy
    has_owners_on_fewer_ranks = ranks < run.ranks and settings.get_strategy_name(strategy) == "servers"
    if has_owners_on_fewer_ranks and settings.count_only_serving(strategy) >= ranks:
        strategy = f"servers:{ranks - 1}:only" if ranks > 1 else "allreduce"  # one rank must train
    elif has_owners_on_fewer_ranks and settings.get_strategy_number(strategy, ranks) > ranks:
        strategy = f"servers:{ranks}"
    return replace(run, ranks=ranks, options=options, strategy=strategy)
