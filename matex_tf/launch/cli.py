"""The `matex` command and its subcommands. It never joins MPI itself."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from matex_tf import errors, settings
from matex_tf.launch import check_run, info, mpirun_command, output_file, probe, process, restarts, run_options
from matex_tf.launch.hosts.places import Attempt, Places
from matex_tf.launch.monitoring import event_log
from matex_tf.launch.planning.option_types import HERE, Bytes
from matex_tf.launch.run_options import ADAPT, STRATEGY, Count, Run, RunCommand
from matex_tf.version import __version__
from matex_tf.world import missing_mpi, mpirun_options, placement

USAGE_ERROR = 2
HELP = {"help_option_names": ["-h", "--help"]}


LAZY_COMMANDS = {
    "build": "matex_tf.launch.built_ops:build_ops",
    "simulate": "matex_tf.launch.simulate:simulate_command",
    "submit": "matex_tf.deploy.command:submit_script",
    "follow": "matex_tf.deploy.command:follow_job",
    "cancel": "matex_tf.deploy.command:cancel_job",
    "plan": "matex_tf.launch.planning.command:make_plan_command",
    "tune": "matex_tf.tune.command:tune_command",
    "top": "matex_tf.launch.monitoring.command:show_top",
    "report": "matex_tf.launch.monitoring.command:write_report",
}
"""The module and name of each further command, or of a function that makes it. `matex run` imports none of them, to
start quickly.
"""


class _Commands(click.Group):
    """The group of commands, in the order of the help page. A misspelt command is answered with the nearest one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *LAZY_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAZY_COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, name = LAZY_COMMANDS[cmd_name].partition(":")
        found = getattr(importlib.import_module(module), name)
        return found if isinstance(found, click.Command) else found(check_target, make_command_line)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args[0] not in known:
            similar = difflib.get_close_matches(args[0], known, n=1)
            hint = f"did you mean {similar[0]}? " if similar else ""
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}The commands are {', '.join(known)}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings=HELP, no_args_is_help=False, invoke_without_command=True)
@click.version_option(__version__, message="matex_tf %(version)s")
@click.pass_context
def matex(ctx: click.Context) -> int:
    """Train an unchanged TensorFlow or Keras script data-parallel over MPI.

    \b
    matex run -n 4 train.py
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return USAGE_ERROR
    return 0


@matex.command(name="run", cls=RunCommand, context_settings=HELP, short_help="Train SCRIPT.py on several ranks.")
@click.option("-n", "ranks", type=Count("ranks"), metavar="RANKS", help="The number of ranks; also -np, --np and -c.")
@click.option("--dry-run", is_flag=True, help="Print the command line of mpirun and run nothing.")
@click.option("--check", is_flag=True, help="Run a few steps alone and on the ranks; compare losses, weights, files.")
@click.option(
    "--share", is_flag=True, help="With --check: use your own files if they are too large for a copy. Changes stay."
)
@click.option(
    "--steps",
    type=Count("steps"),
    metavar="STEPS",
    help=f"With --check: the number of steps. Default: {check_run.STEPS}.",
)
@click.option("--explain", is_flag=True, help="Say whether each step is sharded, and if not, why.")
@click.option(
    "--strategy",
    type=STRATEGY,
    metavar="NAME",
    help="Who updates the weights: auto, allreduce, sharded, servers:S, async or local:H.",
)
@click.option("--adapt", flag_value="on", is_flag=False, type=ADAPT, metavar="[=ranks]", help=run_options.ADAPTS)
@click.option(
    "--memory",
    type=Bytes(),
    metavar="SIZE",
    help="The memory of a rank, as 16GiB, or here: larger slices are computed in parts.",
)
@click.option("--profile", is_flag=True, help="Print a table at the end: compute, waiting, communication.")
@click.option("--record", metavar="FOLDER", help="Record each rank there, for `matex top` and `matex report`.")
@click.option("--live", is_flag=True, help="Show each rank below the output. Default of --record: runs/.")
@click.option(
    "--restarts",
    type=Count("restarts"),
    metavar="TIMES",
    help="Keep the state of the run. After a loss restart from it, at most TIMES times, on the remaining hosts.",
)
@click.option(
    "--elastic",
    is_flag=True,
    help="Continue without a lost rank. If that is impossible, restart, at most --restarts or "
    f"{run_options.RESTARTS} times.",
)
@click.pass_context
def run_script(ctx: click.Context, /, **given: Any) -> int:
    """Train SCRIPT.py, unchanged, data-parallel on RANKS ranks.

    Options of mpirun may be mixed with these. Options unknown to matex may follow `--`:

    \b matex run -n 16 --hostfile hosts train.py --epochs 3 matex run -n 4 --explain -- --some-option-of-mpirun train.py
    """
    asked = run_options.read_run(ctx)
    if not asked.dry_run:
        check_target(asked)
    if asked.live and not (asked.record or os.environ.get("MATEX_RECORD")):
        asked = replace(asked, record=event_log.name_record_folder(asked.target))
    if asked.dry_run:
        print(shlex.join(make_command_line(asked)))
        return 0
    if asked.check:
        shared = run_options.choose_shared(asked, os.environ)
        alone, together = [sys.executable, "-m", "matex_tf"], make_command_line(replace(asked, target=[]))
        return check_run.check_script(asked.ranks, asked.target, alone, together, asked.steps, asked.share, shared)
    record = asked.record or os.environ.get("MATEX_RECORD", "")
    picture: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if asked.live:
        from matex_tf.launch.monitoring import live

        picture = live.show_picture(record)
    with output_file.Outlet() as out, event_log.open_journal(record, asked.target) as said, picture:
        code = _start_ranks(asked, said.note_event)
        said.note_end(code)
    return out.correct_exit_code(code)


@matex.command(name="info", context_settings=HELP, short_help="Report versions, MPI, hardware and problems.")
@click.option(
    "--hooks", is_flag=True, help="List the functions replaced in other libraries, and the effect of a missing hook."
)
def show_info(hooks: bool) -> int:
    """Report versions, MPI, cores, GPUs and compiled ops, and each problem with its fix.

    The exit code is 1 if there is a problem.
    """
    if hooks:
        print(info.format_hooks(), end="")
        return 0
    facts = info.gather_facts()
    print(info.format_report(facts), end="")
    return 1 if info.find_complaints(facts) else 0


@matex.command(name="settings", context_settings=HELP, short_help="List the settings, or explain one.")
@click.argument("name", required=False)
def show_settings(name: str | None) -> int:
    """List the MATEX_* settings: the value in force, where it comes from, what it may be. With NAME explain one."""
    from rich.console import Console
    from rich.table import Table

    try:
        chosen = settings.Settings(os.environ)
    except errors.SettingError as error:
        raise click.UsageError(str(error)) from None
    if name:
        wanted = settings.PREFIX + name.upper().removeprefix(settings.PREFIX)
        known = {one.variable: one for one in (*settings.TABLE, *settings.INTERNAL)}
        if wanted not in known:
            similar = difflib.get_close_matches(wanted, known, n=1)
            raise click.UsageError(
                f"there is no setting {wanted}" + (f"; did you mean {similar[0]}?" if similar else "")
            )
        print(f"{wanted} ({known[wanted].values})\n{known[wanted].meaning}")
        return 0
    table = Table("setting", "value", "from", "values")
    internal = [one for one in settings.INTERNAL if one.variable in os.environ]
    for one in (*settings.TABLE, *internal):
        is_set = one.variable in os.environ
        value = getattr(chosen, one.name)
        shown = {True: "1", False: "0"}.get(value, str(value)) if isinstance(value, bool) else str(value)
        table.add_row(one.variable, shown, "environment" if is_set else "default", one.values)
    Console().print(table)
    return 0


def parse_run(words: Sequence[str]) -> Run:
    """Parse the words after `matex run`. Raises click.UsageError."""
    return run_options.read_run(run_script.make_context("run", list(words)))


def check_target(run: Run) -> None:
    """Raises click.UsageError if the script does not exist, unless mpirun changes the working folder first."""
    moves = any(mpirun_options.parse_option_name(word) in ("wdir", "wd") for word in run.options)
    if run.target[0] != "-m" and not moves and not os.path.isfile(run.target[0]):
        raise click.UsageError(f"there is no file {run.target[0]} in {os.getcwd()}")


def find_mpirun() -> mpirun_command.Mpirun:
    """The mpirun of this machine. Raises click.UsageError if mpi4py loads no MPI, or if there is no mpirun."""
    library = probe.find_mpi_library()
    if "error" in library:
        raise click.UsageError(missing_mpi.describe(library["error"]))
    mpirun = probe.find_mpirun(library)
    if mpirun is None:
        raise click.UsageError(f"there is no mpirun. {info.GET_MPI}")
    if other := info.describe_other_mpi(mpirun, library):
        raise click.UsageError(other)
    return mpirun


def make_command_line(run: Run) -> list[str]:
    """The mpirun command line for `run` on this machine. Raises click.UsageError if there is no mpirun."""
    mpirun, cores, given = find_mpirun(), len(placement.list_cores()), run.environment or os.environ
    chosen = {"MATEX_PROFILE": run.profile, "MATEX_EXPLAIN": run.explain}
    variables = {name: "1" for name, is_on in chosen.items() if is_on}
    if run.record:
        variables["MATEX_RECORD"] = os.path.abspath(run.record)
    if run.strategy:
        variables["MATEX_STRATEGY"] = run.strategy
    if run.adapt:
        variables["MATEX_ADAPT"] = run.adapt
    if run.memory:
        in_parts = {"MATEX_MICROBATCH": "auto"} if "MATEX_MICROBATCH" not in given else {}
        variables |= in_parts | ({"MATEX_MEMORY": f"{run.memory:.0f}"} if run.memory != HERE else {})
    if run.restarts:
        variables["MATEX_STATE"] = restarts.name_state_folder(run.target)
    if run.elastic:
        if mpirun.family != mpirun_options.OPENMPI or mpirun.major < 5:
            raise click.UsageError(
                "--elastic needs Open MPI 5 or later, whose mpirun leaves other ranks alone when one is lost; this "
                f"is {mpirun.family or 'an unknown MPI'} {mpirun.version}. --restarts goes with any MPI"
            )
        variables["MATEX_ELASTIC"] = "1"
    uses_shared_memory = probe.has_memory_for(run.ranks, mpirun)
    removed = {"MATEX_RECORD": run.record, "MATEX_ADAPT": run.adapt}
    removed |= {"MATEX_STRATEGY": run.strategy or ""} if run.adapt == "ranks" else {}
    environment = {name: value for name, value in given.items() if not removed.get(name)}
    options = mpirun_command.choose_options(
        mpirun, run.ranks, cores, os.geteuid() == 0, run.options, environment, variables, uses_shared_memory
    )
    return mpirun_command.make_command(mpirun, options, sys.executable, run.target)


def _start_ranks(asked: Run, tell: Callable[[str], None]) -> int:
    shared = run_options.choose_shared(asked, os.environ)
    is_resumable = bool(asked.restarts) or "MATEX_STATE" in os.environ
    asked = run_options.settle_strategy(asked, os.environ) if is_resumable else asked
    places = Places(Attempt(asked.ranks, asked.options), find_mpirun(), follows=asked.adapt == "ranks")
    if is_resumable:
        return restarts.run_with_restarts(
            places,
            asked.restarts,
            lambda one: make_command_line(run_options.change_ranks(asked, one.ranks, one.options, one.strategy)),
            shared,
            os.environ.get("MATEX_STATE") or restarts.name_state_folder(asked.target),
            tell,
            may_choose=not asked.strategy,
        )
    with process.make_proof_folder(shared) as folder:
        return process.run_to_end(make_command_line(asked), folder, places.describe_gone)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command with the words of the command line. Returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        process.hear_children()
        with matex.make_context("matex", words) as context:
            return matex.invoke(context)
    except click.exceptions.Exit as asked:  # after the help or the version
        return asked.exit_code
    except click.exceptions.NoSuchOption as error:
        similar = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.8)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        print(f"matex: there is no option {error.option_name}{hint}", file=sys.stderr)
        return USAGE_ERROR
    except click.ClickException as error:
        print(f"matex: {error.format_message()}", file=sys.stderr)
        return USAGE_ERROR
    except errors.BuildError as error:
        print(f"matex: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return process.compute_signal_exit_code({signal.SIGINT})


if __name__ == "__main__":
    sys.exit(main())
