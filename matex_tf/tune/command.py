"""The command `matex tune`: its options, the check of the script, and the report of the result."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from matex_tf.deploy.job import JobError
from matex_tf.deploy.options import add_options, merge_options, parse_time
from matex_tf.deploy.sbatch.job_script import Slurm
from matex_tf.monitor.progress import format_seconds
from matex_tf.tune import setup
from matex_tf.tune.database import DatabaseError
from matex_tf.tune.engines.engine import NAMES, EngineMissingError
from matex_tf.tune.rungs import read_rungs
from matex_tf.tune.search import SearchError
from matex_tf.tune.settings import Settings
from matex_tf.tune.setup import NoSearchError, SearchResult
from matex_tf.tune.space_file import SpaceError
from matex_tf.tune.trials.slots import HostsError
from matex_tf.tune.trials.trial import DONE

FAILED = 1  # the exit code of an error
_COUNT = click.IntRange(min=1)


def _make_parser(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """A callback that converts the text of an option by `parse`, which raises ValueError."""

    def parse_option(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.UsageError(f"{param.opts[-1]}: {error}") from None

    return parse_option


class _Command(click.Command):
    """A command whose options may also follow the script; the script's own arguments then follow `--`.

    Words after the script are the script's if --search or --resume comes before it, as no search can begin without one
    of them; otherwise they are options of the command.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # A first parse takes only the options before the script. If it finds neither --search nor --resume, and words
        # follow the script, the real parse also takes options after the script.
        parsed, _, _ = self.make_parser(ctx).parse_args(list(args))
        script: Any = parsed.get("script")
        script_words = script if isinstance(script, (list, tuple)) else ()  # otherwise click's mark for a missing value
        ctx.allow_interspersed_args = len(script_words) > 1 and not {"space", "resume"} & parsed.keys()
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not ctx.allow_interspersed_args:
                raise
            name, option = script_words[0], error.option_name
            raise click.UsageError(
                f"there is no option {option}. If it is the script's: matex tune --search space.yaml {name} {option} "
                f"..., or matex tune {name} --search space.yaml -- {option} ..."
            ) from None


@click.command(
    "tune",
    cls=_Command,
    context_settings={"allow_interspersed_args": False},
    short_help="Search good hyperparameters of SCRIPT.py.",
)
@click.option("--search", "space", metavar="SPACE.yaml", help="The search space.")
@click.option("--trials", type=_COUNT, metavar="TRIALS", help="The number of trials. Default: 50.")
@click.option("--parallel", type=_COUNT, metavar="TRIALS", help="Trials at once, each on its own cores. Default: 1.")
@click.option("-n", "ranks", type=_COUNT, metavar="RANKS", help="Ranks of each trial. Default: 1.")
@click.option("--engine", type=click.Choice(list(NAMES)), help="The search method. Default: random.")
@click.option("--seed", type=int, metavar="SEED", help="The seed of the search. Default: 0.")
@click.option(
    "--limit", callback=_make_parser(parse_time), metavar="TIME",
    help="The time limit of a trial, as 30 (minutes) or 2:00:00.",
)  # fmt: skip
@click.option(
    "--rungs", callback=_make_parser(read_rungs), metavar="EPOCHS",
    help="Trials pause after these epochs, as 1,3,9; the best third continues.",
)  # fmt: skip
@click.option(
    "--run", multiple=True, metavar="OPTIONS", help="More options of `matex run`: --run='--strategy sharded'."
)
@click.option("--slurm", "as_jobs", is_flag=True, help="Make each trial a Slurm job; the next options apply to it.")
@add_options(Slurm, omitted=("run", "array"))
@click.option("--no-warm-start", "warm_start", flag_value=False, default=None, help="Ignore earlier searches.")
@click.option("--database", metavar="FILE", help="The database of searches. Default: ~/.local/share/matex/tune-3.db.")
@click.option("--folder", metavar="FOLDER", help="The folder of the search. Default: runs/tune-SCRIPT-1.")
@click.option("--resume", metavar="FOLDER", help="Continue the search of FOLDER; --trials and --search may change.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT.py is the name of a module.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT.py [ARGUMENTS]")
def tune_command(
    space: str | None, database: str | None, folder: str | None, resume: str | None, is_module: bool,
    as_jobs: bool, script: tuple[str, ...], **options: Any,
) -> int:  # fmt: skip
    """Search good hyperparameters of SCRIPT.py, unchanged, through its flags.

    \b
    matex tune --search space.yaml --trials 50 --parallel 4 train.py --epochs 20

    \b
    # space.yaml
    objective: {minimize: val_loss}      # as Keras logs it
    search:
      --lr: {log: [1e-5, 1e-1]}
      --units: {log_int: [16, 512]}
      --optimizer: [adam, sgd, rmsprop]

    Options may also follow SCRIPT.py; its own arguments then follow `--`.

    Each trial is `matex run` in a folder of its own; with --slurm, in a job of its own. Ctrl-C ends the trials; `matex
    tune --resume FOLDER` goes on.
    """
    # Options that are not given keep the defaults of `Settings`, or the recorded values of the search.
    given_options = {name: value for name, value in options.items() if value not in (None, ())}
    job_names = {field.name for field in fields(Slurm)} - {"run"}
    job_options = {name: given_options.pop(name) for name in list(given_options) if name in job_names}
    try:
        if resume:
            if script or database or folder:
                raise click.UsageError("--resume FOLDER goes on as it was begun, without a script")
            options_of_search = {**given_options, "as_jobs": True} if as_jobs else given_options
            return _resume_search(Path(resume), space, options_of_search, job_options)
        target = ["-m", *script] if is_module else list(script)
        _check_target(target, space)
        if job_options and not as_jobs:
            raise click.UsageError(f"--{min(job_options).replace('_', '-')} goes with --slurm")
        if as_jobs:
            given_options |= _merge_job_options(given_options.pop("run", ()), given_options.get("ranks"), job_options)
        try:
            settings = Settings(**given_options, source=os.getcwd(), name=str(space))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        search_folder = setup.create_search(
            target, Path(str(space)).read_text(encoding="utf-8"), settings, database or "", folder or ""
        )
        return _run_and_report(search_folder, {})
    except (SpaceError, EngineMissingError, NoSearchError, HostsError, FileExistsError, UnicodeDecodeError) as error:
        raise click.UsageError(str(error)) from None
    except (DatabaseError, JobError, OSError) as error:
        print(f"matex tune: {error}", file=sys.stderr)
        return FAILED


def _resume_search(folder: Path, space: str | None, options: dict[str, Any], job_options: dict[str, Any]) -> int:
    """Go on with a search. Only its space, its numbers of trials, its time limit and options of its jobs may change."""
    if fixed_names := options.keys() - {"trials", "parallel", "limit"}:
        parameters = click.get_current_context().command.params
        option = min(parameter.opts[0] for parameter in parameters if parameter.name in fixed_names)
        raise click.UsageError(f"--resume goes on as it was begun, without {option}")
    if space:
        _check_space(space)
        options |= {"space": Path(space).read_text(encoding="utf-8"), "name": space}
    return _run_and_report(folder, {**options, "slurm": job_options})


def _merge_job_options(run_texts: tuple[str, ...], ranks: int | None, job_options: dict[str, Any]) -> dict[str, Any]:
    """The settings `slurm` and `ranks` of a search whose trials are jobs. Raises click.UsageError."""
    try:
        options = merge_options(Slurm, {**job_options, **({"run": run_texts} if run_texts else {})}, ranks)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from None
    return {"slurm": asdict(options), "ranks": options.ranks}


def _check_target(target: Sequence[str], space: str | None) -> None:
    example = "For example: matex tune --search space.yaml train.py"
    if not target or target == ["-m"]:
        raise click.UsageError(f"no script is named. {example}")
    if target[0] != "-m" and not os.path.isfile(target[0]):
        raise click.UsageError(f"there is no file {target[0]} in {os.getcwd()}")
    if not space:
        raise click.UsageError(f"what is to be searched? {example}")
    _check_space(space)


def _check_space(space: str) -> None:
    if not os.path.isfile(space):
        raise click.UsageError(f"there is no file {space} in {os.getcwd()}")


def _run_and_report(folder: Path, changed_settings: dict[str, Any]) -> int:
    """Run the trials, and print the result. Returns the exit code."""
    resume_command = shlex.join(["matex", "tune", "--resume", str(folder)])
    try:
        result = setup.run_search(folder, **changed_settings)
    except SearchError as error:
        resume_hint = f"{resume_command}, with --search SPACE.yaml where that file was wrong"
        print(f"matex tune: {error}\nOnce that is mended: {resume_hint}", file=sys.stderr)
        return FAILED
    except (DatabaseError, OSError) as error:
        print(f"matex tune: {error}\nThe trials that have ended are kept. To go on: {resume_command}", file=sys.stderr)
        return FAILED
    print(report_found(result, resume_command))
    return result.code


def report_found(result: SearchResult, resume_command: str) -> str:
    """The text that reports the result; the best trial may have paused at a rung, before all of its epochs."""
    lines = []
    if result.stopped:
        lines.append(f"matex tune: {result.stopped}: the trials that had ended are kept. To go on: {resume_command}")
    best = result.best
    if best is None:
        return "\n".join([*lines, "matex tune: no trial has come to a value"])
    best_text = f"{result.objective} {best.value:.6g}, trial {best.number}"
    is_incomplete = best.state != DONE  # its value is of the last rung that it has reached
    epochs_text = f", after {best.curve[-1].epoch} epochs" if is_incomplete and best.curve else ""
    lines.append(f"best of {result.trials} trials, {format_seconds(result.seconds)}: {best_text}{epochs_text}")
    lines.append(f"  {result.command}")
    lines += [f"  with {name}" for name in result.files]
    lines.append(f"kept in {result.database}: searches of tasks that are alike begin with it")
    return "\n".join(lines)
