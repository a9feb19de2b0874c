"""The `matex` command and its subcommands."""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import click

from matex_tf import arguments, errors, settings
from matex_tf.deploy import run_folder
from matex_tf.deploy.options import add_options
from matex_tf.launch import command_line, info, output_file, process, restarts, run_options
from matex_tf.launch.hosts.places import Attempt, Places
from matex_tf.launch.monitoring import event_log
from matex_tf.launch.option_types import make_count
from matex_tf.launch.run_options import Run, RunCommand
from matex_tf.version import __version__

USAGE_ERROR = 2  # the exit code
# The commands of other modules, as MODULE:NAME. A module is imported when its command is used, so that `matex run`
# starts quickly.
LAZY_COMMANDS = {
    "build": "matex_tf.launch.built_ops:build_ops",
    "simulate": "matex_tf.launch.simulate:simulate_command",
    "submit": "matex_tf.deploy.command:submit_script",
    "follow": "matex_tf.deploy.command:follow_job",
    "cancel": "matex_tf.deploy.command:cancel_job",
    "plan": "matex_tf.launch.planning.command:plan_command",
    "tune": "matex_tf.tune.command:tune_command",
    "top": "matex_tf.launch.monitoring.command:show_top",
    "report": "matex_tf.launch.monitoring.command:write_report",
}
_HELP = ["-h", "--help"]


class _Commands(click.Group):
    """All commands, in the order of the help page. The error for a misspelt command suggests a similar one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *LAZY_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, with its own option `-h, --help`.

        click would make the help option at the first use of the command, with the names that the parent context
        lists, and keep it. Without a parent, `-h` would be missing.
        """
        module, _, name = LAZY_COMMANDS.get(cmd_name, "").partition(":")
        command = getattr(importlib.import_module(module), name) if module else super().get_command(ctx, cmd_name)
        if command is not None and not any("-h" in option.opts for option in command.params):
            click.help_option(*_HELP)(command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known_commands = self.list_commands(ctx)
        if args[0] not in known_commands:
            raise click.UsageError(arguments.describe_unknown("command", args[0], known_commands))
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands, no_args_is_help=False, invoke_without_command=True,
    context_settings={"help_option_names": _HELP},
)  # fmt: skip
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


@matex.command(name="run", cls=RunCommand, short_help="Train SCRIPT.py on several ranks.")
@click.option("-n", "ranks", type=make_count("ranks"), help="The number of ranks; also -np, --np and -c.")
@add_options(Run)
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
        run_options.check_target(run)
    record_folder = run.record or os.environ.get("MATEX_RECORD", "")
    if run.live and not record_folder:  # also for --dry-run: the ranks get its name
        record_folder = str(run_folder.propose_folder(run_folder.name_target(run.target)))
        run = replace(run, record=record_folder)
    if run.dry_run:
        print(shlex.join(command_line.make_command_line(run)))
        return 0
    if run.check:
        from matex_tf.launch import check_run  # this imports numpy

        shared_folder = run_options.choose_shared(run, os.environ)
        # The printed lines of first steps are compared. What the user's runs have saved and recorded stays as it is.
        for name in ("MATEX_STATE", "MATEX_RECORD", "MATEX_TIMELINE", "MATEX_LOG_DIR"):
            os.environ.pop(name, None)
        # mpirun forwards the settings in `environment` to other hosts by name; `check_run` sets the value of this one.
        environment = {**os.environ, "MATEX_CHECK": ""}
        alone = [sys.executable, "-m", "matex_tf"]
        together = command_line.make_command_line(replace(run, target=[], environment=environment))
        return check_run.check_script(run.ranks, run.target, alone, together, run.steps, run.share, shared_folder)
    display: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if run.live:
        from matex_tf.launch.monitoring import live  # this imports rich

        display = live.show_picture(record_folder)
    note_event = event_log.open_log(record_folder, run.target)
    with output_file.Outlet() as output, display:
        code = _start_ranks(run, note_event)
        note_event(f"ended with exit code {code}", end=code)
    return output.correct_exit_code(code)


@matex.command(name="info", short_help="Report versions, MPI, hardware and problems.")
@click.option(
    "--hooks", is_flag=True, help="List the functions replaced in other libraries, and the loss without each."
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


@matex.command(name="settings", short_help="List the settings, or explain one.")
@click.argument("name", required=False)
def show_settings(name: str | None) -> int:
    """List the MATEX_* settings: the value in force, where it comes from, what it may be. With NAME explain one."""
    from rich.console import Console
    from rich.table import Table

    try:
        current_settings = settings.Settings(os.environ)
    except errors.SettingError as error:
        raise click.UsageError(str(error)) from None
    if name:
        variable = settings.PREFIX + name.upper().removeprefix(settings.PREFIX)
        settings_by_variable = {setting.variable: setting for setting in (*settings.TABLE, *settings.INTERNAL)}
        if variable not in settings_by_variable:
            raise click.UsageError(f"there is no setting {variable}{_suggest(variable, settings_by_variable)}")
        print(f"{variable} ({settings_by_variable[variable].values})\n{settings_by_variable[variable].meaning}")
        return 0
    table = Table("setting", "value", "from", "values")
    internal_settings = [setting for setting in settings.INTERNAL if setting.variable in os.environ]
    for setting in (*settings.TABLE, *internal_settings):
        source = "environment" if setting.variable in os.environ else "default"
        value = getattr(current_settings, setting.name)
        value_text = str(int(value) if isinstance(value, bool) else value)
        table.add_row(setting.variable, value_text, source, setting.values)
    Console(markup=False, emoji=False).print(table)  # values stay as they are, such as the folder /runs/[1]
    return 0


def parse_run(run_arguments: Sequence[str]) -> Run:
    """Parse `run_arguments`, the words after `matex run`, for tests. Raises click.UsageError."""
    return run_options.read_run(
        run_script.make_context("run", list(run_arguments), parent=matex.make_context("matex", []))
    )


def _suggest(name: str, known_names: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of an error message about an unknown `name`: the most similar of `known_names`; "" if none is similar."""
    similar = arguments.find_similar(name, known_names, cutoff)
    return f"; did you mean {similar}?" if similar else ""


def _start_ranks(run: Run, report: Callable[[str], None]) -> int:
    """Run the script with or without restarts. Returns the exit code. `report` receives messages about restarts."""
    shared_folder = run_options.choose_shared(run, os.environ)  # a folder that all hosts see; None: one host only
    is_resumable = bool(run.restarts or os.environ.get("MATEX_STATE"))
    run = run_options.settle_strategy(run, os.environ) if is_resumable else run
    # The hosts. With `--adapt=ranks`, host files are read again during the run, for hosts that come and go.
    places = Places(Attempt(run.ranks, run.options), command_line.find_mpirun(), follows_files=run.adapt == "ranks")
    if is_resumable:
        return restarts.RestartedRun(
            places=places, restarts=run.restarts, shared_folder=shared_folder, report=report,
            may_choose=not run.strategy,
            state=os.environ.get("MATEX_STATE") or run_options.name_state_folder(run.target),
            make_command=lambda attempt: command_line.make_command_line(
                run_options.change_ranks(run, attempt.ranks, attempt.options, attempt.strategy), places.mpirun
            ),
        ).run()  # fmt: skip
    # The ranks write into the proof folder how they end.
    with process.make_proof_folder(shared_folder) as proof_folder:
        command = command_line.make_command_line(run, places.mpirun)
        return process.run_to_end(command, proof_folder, places.describe_lost_hosts)


def _open_closed_streams() -> None:
    """Open the null device as each standard stream that is closed. Another file would get its descriptor."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            os.set_inheritable(descriptor, True)  # also if `open` returned this descriptor
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv`, the words of the command line. Returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a daemon may have started this process with the signal ignored
        with matex.make_context("matex", argv) as context:
            return matex.invoke(context)
    except click.exceptions.Exit as exit_request:  # after the help or the version
        return exit_request.exit_code
    except click.exceptions.NoSuchOption as error:
        similar = _suggest(error.option_name, error.possibilities or (), cutoff=0.8)
        message = f"there is no option {error.option_name}{similar}"
    except click.ClickException as error:
        message = error.format_message()
    except (errors.BuildError, errors.SettingError) as error:
        message = str(error)
    except KeyboardInterrupt:
        return process.compute_signal_exit_code({signal.SIGINT})
    print(f"matex: {message}", file=sys.stderr)
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
