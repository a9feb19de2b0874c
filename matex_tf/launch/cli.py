"""The `matex` command and its subcommands. It never joins MPI itself."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
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


# The commands of other modules: module and name of a command, or of a function that makes one from `check_target`
# and `make_command_line`. A module is imported when its command is used, so that `matex run` starts quickly.
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


class _Commands(click.Group):
    """All commands, in the order of the help page. The error for a misspelt command suggests a similar one."""

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
def run_script(ctx: click.Context, /, **_: Any) -> int:
    """Train SCRIPT.py, unchanged, data-parallel on RANKS ranks.

    Options of mpirun may be mixed with these. Options unknown to matex may follow `--`:

    \b
    matex run -n 16 --hostfile hosts train.py --epochs 3
    matex run -n 4 --explain -- --some-option-of-mpirun train.py
    """
    run = run_options.read_run(ctx)
    if not run.dry_run:
        check_target(run)
    if run.live and not (run.record or os.environ.get("MATEX_RECORD")):
        run = replace(run, record=event_log.name_record_folder(run.target))
    if run.dry_run:
        print(shlex.join(make_command_line(run)))
        return 0
    if run.check:
        shared_folder = run_options.choose_shared(run, os.environ)
        alone, together = [sys.executable, "-m", "matex_tf"], make_command_line(replace(run, target=[]))
        return check_run.check_script(run.ranks, run.target, alone, together, run.steps, run.share, shared_folder)
    record_folder = run.record or os.environ.get("MATEX_RECORD", "")
    display: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if run.live:
        from matex_tf.launch.monitoring import live

        display = live.show_picture(record_folder)
    with output_file.Outlet() as output, event_log.open_journal(record_folder, run.target) as events, display:
        code = _start_ranks(run, events.note_event)
        events.note_end(code)
    return output.correct_exit_code(code)


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
        known = {setting.variable: setting for setting in (*settings.TABLE, *settings.INTERNAL)}
        if wanted not in known:
            similar = difflib.get_close_matches(wanted, known, n=1)
            raise click.UsageError(
                f"there is no setting {wanted}" + (f"; did you mean {similar[0]}?" if similar else "")
            )
        print(f"{wanted} ({known[wanted].values})\n{known[wanted].meaning}")
        return 0
    table = Table("setting", "value", "from", "values")
    internal = [setting for setting in settings.INTERNAL if setting.variable in os.environ]
    for setting in (*settings.TABLE, *internal):
        is_set = setting.variable in os.environ
        value = getattr(chosen, setting.name)
        shown = {True: "1", False: "0"}.get(value, str(value)) if isinstance(value, bool) else str(value)
        table.add_row(setting.variable, shown, "environment" if is_set else "default", setting.values)
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
    mpirun, cores = find_mpirun(), len(placement.list_cores())
    if run.elastic and (mpirun.family != mpirun_options.OPENMPI or mpirun.major < 5):
        raise click.UsageError(
            "--elastic needs Open MPI 5 or later, whose mpirun leaves other ranks alone when one is lost; this "
            f"is {mpirun.family or 'an unknown MPI'} {mpirun.version}. --restarts goes with any MPI"
        )
    environment = run.environment or os.environ
    variables = _choose_variables(run, environment)
    # The environment takes precedence over `variables`, except for these options.
    overriding = {"MATEX_RECORD": run.record, "MATEX_ADAPT": run.adapt}
    if run.adapt == "ranks":
        overriding["MATEX_STRATEGY"] = run.strategy or ""
    environment = {name: value for name, value in environment.items() if not overriding.get(name)}
    uses_shared_memory = probe.has_memory_for(run.ranks, mpirun)
    options = mpirun_command.choose_options(
        mpirun, run.ranks, cores, os.geteuid() == 0, run.options, environment, variables, uses_shared_memory
    )
    return mpirun_command.make_command(mpirun, options, sys.executable, run.target)


def _choose_variables(run: Run, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that the options of `run` stand for, as environment variables of the ranks."""
    flags = {"MATEX_PROFILE": run.profile, "MATEX_EXPLAIN": run.explain, "MATEX_ELASTIC": run.elastic}
    variables = {name: "1" for name, is_on in flags.items() if is_on}
    if run.record:
        variables["MATEX_RECORD"] = os.path.abspath(run.record)
    if run.strategy:
        variables["MATEX_STRATEGY"] = run.strategy
    if run.adapt:
        variables["MATEX_ADAPT"] = run.adapt
    if run.memory and "MATEX_MICROBATCH" not in environment:
        variables["MATEX_MICROBATCH"] = "auto"
    if run.memory and run.memory != HERE:
        variables["MATEX_MEMORY"] = f"{run.memory:.0f}"
    if run.restarts:
        variables["MATEX_STATE"] = restarts.name_state_folder(run.target)
    return variables


def _start_ranks(run: Run, report: Callable[[str], None]) -> int:
    """Run the script with or without restarts. Returns the exit code. `report` receives messages about restarts."""
    shared_folder = run_options.choose_shared(run, os.environ)
    is_resumable = bool(run.restarts) or "MATEX_STATE" in os.environ
    run = run_options.settle_strategy(run, os.environ) if is_resumable else run
    places = Places(Attempt(run.ranks, run.options), find_mpirun(), follows_files=run.adapt == "ranks")
    if is_resumable:
        return restarts.run_with_restarts(
            places,
            run.restarts,
            lambda attempt: make_command_line(
                run_options.change_ranks(run, attempt.ranks, attempt.options, attempt.strategy)
            ),
            shared_folder,
            os.environ.get("MATEX_STATE") or restarts.name_state_folder(run.target),
            report,
            may_choose=not run.strategy,
        )
    with process.make_proof_folder(shared_folder) as proof_folder:
        return process.run_to_end(make_command_line(run), proof_folder, places.describe_gone)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command with the words of the command line. Returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        process.hear_children()
        with matex.make_context("matex", words) as context:
            return matex.invoke(context)
    except click.exceptions.Exit as exit_request:  # after the help or the version
        return exit_request.exit_code
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
