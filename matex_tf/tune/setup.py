"""Creates, opens, changes and runs a search, for the command line and for Python.

`create_search` writes a new search into the database and its folder. `run_search` runs the remaining trials of the
search in a folder. To resume a search is to call `run_search` again.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from matex_tf.deploy import run_folder
from matex_tf.deploy.options import find_own_command, format_options
from matex_tf.deploy.sbatch.job_script import Slurm
from matex_tf.deploy.slurm import SLURM
from matex_tf.thread_flag import is_main_thread
from matex_tf.tune import changes, space_file
from matex_tf.tune.database import RUNNING, Database, DatabaseError, Record, Search, VersionError, find_default_path
from matex_tf.tune.engines import engine
from matex_tf.tune.engines.proposals import Proposals
from matex_tf.tune.objective import Objective
from matex_tf.tune.screen import Screen
from matex_tf.tune.search import SearchLoop, hold_search
from matex_tf.tune.settings import Settings
from matex_tf.tune.space_file import Specification
from matex_tf.tune.starter import get_trial_folder
from matex_tf.tune.trials import place
from matex_tf.tune.trials.job_trial import Jobs
from matex_tf.tune.trials.process_trial import Processes
from matex_tf.tune.trials.trial import FAILED, PLACE
from matex_tf.world import child_process

NOTE = "search.json"  # the file of a search's folder that names the database and the search's row
# The signals that end a search, with their names in messages and in `SearchLoop.stop`.
_ENDING_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


@dataclass(frozen=True)
class SearchResult:
    """The result of a search, for the report of `matex tune` and as the result of `matex_tf.tune`."""

    best: Record | None  # the best trial; None if no trial has a value
    objective: str  # its name, such as val_loss
    trials: int  # the number of ended trials
    seconds: float
    database: str
    folder: str
    command: str  # the command line that trains as the best trial did
    files: tuple[str, ...]  # the best trial's versions of the files with placeholders, such as {{lr}}, for values
    stopped: str = ""  # the signal that has stopped the search, in words; "" if it is complete
    code: int = 0  # the exit code of `matex tune`


class NoSearchError(ValueError):
    """A folder has no search, or its search cannot continue with the requested changes."""


def create_search(target: Sequence[str], space: str, settings: Settings, database: str = "", folder: str = "") -> Path:
    """Record a new search of `target` over the text `space`. Returns its folder.

    Raises:
        SpaceError, FileExistsError, DatabaseError, ImportError, HostsError, JobError: nothing was created.
    """
    spec = space_file.read_space(space, settings.name)
    place.check_files(spec, Path(settings.source))
    engine.load_engine(settings.engine)  # raises if its library is missing
    settings.make_slots()
    if settings.slurm is not None:
        SLURM.check_commands()
    database_path = Path(database) if database else find_default_path()
    is_new_folder = not folder or not Path(folder).exists()
    search_folder = _make_folder(target, folder)
    try:
        database_file = Database(database_path)
        search = database_file.add_search(
            str(search_folder.absolute()), target, space, asdict(settings), describe_objective(spec.objective)
        )
        database_file.close()
    except DatabaseError:
        if is_new_folder:
            search_folder.rmdir()
        raise
    (search_folder / NOTE).write_text(
        json.dumps({"database": str(database_path.absolute()), "search": search.id}) + "\n"
    )
    return search_folder


def _make_folder(target: Sequence[str], folder: str) -> Path:
    """Make `folder`, which must be new or empty; if "", a new one such as runs/tune-train-1, named after the script."""
    if not folder:
        return run_folder.make_folder(f"tune-{run_folder.name_target(target)}")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise FileExistsError(f"{folder} is not empty. `matex tune --resume {folder}` goes on with a search")
    return path


def describe_objective(objective: Objective) -> str:
    """The objective as one line of text. Searches with the same line have comparable results."""
    direction = "maximize" if objective.maximize else "minimize"
    return f"{direction} {objective.name}" + (f" by {objective.regex}" if objective.regex else "")


def open_search(folder: Path) -> tuple[Database, Search]:
    """The search in `folder`. Raises NoSearchError, DatabaseError."""
    try:
        note = json.loads((folder / NOTE).read_text())
        database = Database(Path(note["database"]))
    except (OSError, ValueError, KeyError):
        raise NoSearchError(f"{folder} is not the folder of a search, as runs/tune-train-1") from None
    except VersionError as error:
        raise NoSearchError(f"{folder}: {error}") from None
    search = database.find_search(note["search"])
    if search is None:
        raise NoSearchError(f"{folder}: its search is not in {database.path} any more")
    return database, search


def restore_settings(search: Search, **changed: Any) -> Settings:
    """The recorded settings of the search with the changes `changed`. Raises NoSearchError: a change is impossible."""
    # The settings were stored as JSON, which has lists in place of tuples.
    fields = {**search.settings, "run": tuple(search.settings["run"]), "rungs": tuple(search.settings["rungs"])}
    if "name" in changed:  # recorded relative to the folder in which the search began
        changed["name"] = os.path.relpath(changed["name"], fields["source"])
    if job_options := changed.pop("slurm", None):
        if fields["slurm"] is None:
            raise NoSearchError(f"its trials run here, and have no --{min(job_options).replace('_', '-')}")
        fields["slurm"] = {**fields["slurm"], **job_options}
        try:
            Slurm(**fields["slurm"])  # checks the options
        except (ValueError, TypeError) as error:
            raise NoSearchError(str(error)) from None
    return Settings(**{**fields, **changed})


def change_space(database: Database, search: Search, settings: Settings, space: str) -> tuple[Search, list[str]]:
    """Replace the space of the search by the text `space`. Returns the search, and the changes as texts.

    A change of ranges and choices keeps all recorded trials. Any other change, such as a removed parameter, is possible
    only before a trial has a value. Then the script may not accept the configuration of a trial that had not ended:
    the trial is recorded as failed if the new space does not allow its configuration; otherwise it is started again.

    Raises:
        SpaceError: the text is invalid.
        NoSearchError: new results could not be compared with earlier ones.
    """
    spec = space_file.read_space(space, settings.name)
    place.check_files(spec, Path(settings.source))
    range_changes, other_changes = changes.list_changes(space_file.read_space(search.space, settings.name), spec)
    trials = database.list_trials(search.id)
    if other_changes and any(trial.value is not None for trial in trials):
        raise NoSearchError(
            f"{settings.name}: the values of new trials could not be compared with those of ended trials: "
            f"{'; '.join(other_changes)}. Ranges and choices may change; for the rest begin another search"
        )
    if not range_changes and not other_changes:
        return search, []
    for trial in trials:
        if other_changes and trial.state == RUNNING and not spec.space.allows(trial.config):
            failed_trial = replace(trial, state=FAILED, kind="changed", why="what is searched has changed")
            database.update_trial(search.id, failed_trial)
    changed_search = replace(search, space=space, objective=describe_objective(spec.objective))
    database.update_search(changed_search)
    return changed_search, range_changes + other_changes


def run_search(folder: Path, space: str = "", **changed: Any) -> SearchResult:
    """Run the remaining trials of the search in `folder`, with the changes `changed` of its settings from now on.

    Args:
        space: the text of the space file; "": as recorded.

    Raises:
        NoSearchError, SpaceError, DatabaseError, SearchError, ImportError, OSError, HostsError: recorded trials remain.
    """
    if not is_main_thread():
        raise RuntimeError("a search runs in the main thread only: signals come to it, and trials end with it")
    started_at = time.monotonic()
    database, search = open_search(folder)
    # Hold the folder before the first change: another process may run the search.
    with closing(database), hold_search(Path(search.folder)):
        settings = restore_settings(search, **changed)
        search, space_changes = change_space(database, search, settings, space) if space else (search, [])
        spec = space_file.read_space(search.space, settings.name)
        earlier_trials = database.list_trials(search.id)
        # The user's seed may be any integer, the seed of an engine only one of 32 bits.
        search_engine = engine.load_engine(settings.engine)(spec.space, settings.seed % 2**32)
        proposals = Proposals(search_engine, spec.space, settings.seed, [record.config for record in earlier_trials])
        slots = settings.make_slots()  # the cores, GPUs or hosts of each concurrent trial
        if changed:  # recorded only now, after everything that may refuse the changes
            search = replace(search, settings=asdict(settings))
            database.update_search(search)
        with Screen(spec.space, spec.objective, settings.trials, len(slots), earlier_trials) as screen:
            if space_changes:
                screen.print_line(f"goes on with {settings.name}; {'; '.join(space_changes)}")
            elif not space and (file := _find_changed_file(search, settings)):
                screen.print_line(f"{file} is not as it was; the search goes on as it began (--search {file} takes it)")
            backend = _make_backend(search, settings, screen.print_line)
            loop = SearchLoop(database, search, settings, spec, backend, slots, proposals, screen)

            def stop_search(number: int, _frame: FrameType | None) -> None:
                loop.stop = loop.stop or _ENDING_SIGNALS[signal.Signals(number)]  # the loop then ends the trials

            with child_process.handle_signals(_ENDING_SIGNALS, stop_search):
                best = loop.run_trials()
        records = database.list_trials(search.id)
    command, files = format_trial_command(folder, search, settings, spec, best) if best else ("", ())
    code = int(best is None)
    if loop.stop:  # the usual exit code of a process that a signal ends
        code = 128 + next(number for number, name in _ENDING_SIGNALS.items() if name == loop.stop)
    return SearchResult(
        best=best, objective=spec.objective.name, trials=sum(record.state != RUNNING for record in records),
        seconds=time.monotonic() - started_at, database=str(database.path), folder=str(folder), command=command,
        files=files, stopped=loop.stop, code=code,
    )  # fmt: skip


def _make_backend(search: Search, settings: Settings, say: Callable[..., None]) -> Jobs | Processes:
    """The object that starts the trials: as Slurm jobs, or as processes of this machine. Raises JobError."""
    matex_command = find_own_command()
    if settings.slurm is None:
        return Processes(shlex.split(matex_command), settings.ranks, settings.options)
    job = Slurm(**{**settings.slurm, "matex": settings.slurm["matex"] or matex_command})
    return Jobs(job.complete(search.target), Path(settings.source), settings.parallel, say)


def _find_changed_file(search: Search, settings: Settings) -> str:
    """The name of the space file if it has changed since the search began; else ""."""
    try:
        current_text = Path(settings.source, settings.name).read_text(encoding="utf-8")
        recorded_spec, current_spec = (
            space_file.read_space(space_text, settings.name) for space_text in (search.space, current_text)
        )
    except (OSError, ValueError):
        return ""  # it was removed, or is no space file any more
    return settings.name if recorded_spec != current_spec else ""


def format_trial_command(
    folder: Path, search: Search, settings: Settings, spec: Specification, record: Record
) -> tuple[str, tuple[str, ...]]:
    """The command line that trains as a trial did, and the trial's versions of the files with placeholders."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in place.list_variables(record.config).items()]
    if settings.slurm is not None:
        job = Slurm(**settings.slurm)
        # If no job option precedes the script, `matex submit` takes job options from the words after it, which belong
        # to the script here. So at least one option precedes it.
        subcommand = ["submit", "--slurm", *(format_options(job) or [f"--nodes={job.nodes}"])]
    else:
        subcommand = ["run", "-n", str(settings.ranks), *settings.options]
    command = ["matex", *subcommand, *search.target, *place.list_options(spec.space, record.config)]
    files = tuple(str(get_trial_folder(folder, record.number) / PLACE / name) for name in spec.files)
    return " ".join([*variables, shlex.join(command)]), files
