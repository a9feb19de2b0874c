"""A search is begun, or gone on with: what the command line and Python have in common."""

from __future__ import annotations

import json
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from matex_tf.deploy import following, run_folder
from matex_tf.deploy.command import fill_name_and_command, find_own_command
from matex_tf.deploy.options import Options, format_options
from matex_tf.deploy.sbatch.job_script import Slurm
from matex_tf.deploy.slurm import check_commands
from matex_tf.tune import changes, space_file
from matex_tf.tune.database import RUNNING, Database, DatabaseError, Record, Search, find_default_path
from matex_tf.tune.engines import engine
from matex_tf.tune.engines.proposals import Proposals
from matex_tf.tune.objective import Objective
from matex_tf.tune.screen import Screen
from matex_tf.tune.search import LOOK_EACH, Searching
from matex_tf.tune.space_file import Asked
from matex_tf.tune.starter import Starter, get_trial_folder, make_once
from matex_tf.tune.trials import place
from matex_tf.tune.trials.job_trial import Jobs
from matex_tf.tune.trials.process_trial import Processes
from matex_tf.tune.trials.slots import make_slots
from matex_tf.tune.trials.trial import FAILED, PLACE, Slot

NOTE = "search.json"
_ENDING = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


@dataclass(frozen=True)
class Settings:
    """How a search is made; it is written down, so that one that goes on is made alike.

    With `slurm` trials are jobs, and these are the options of each.
    """

    trials: int = 50
    parallel: int = 1
    ranks: int = 1
    engine: str = "random"
    seed: int = 0
    limit: float = 0.0
    run: tuple[str, ...] = ()
    warm_start: bool = True
    source: str = ""
    name: str = "search"
    rungs: tuple[int, ...] = ()
    slurm: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        Options(run=self.run)  # what a trial says to `matex run` itself is no option of `run`

    @property
    def options(self) -> list[str]:
        """More of `matex run`, each a word."""
        return [word for text in self.run for word in shlex.split(text)]

    def make_job(self) -> Slurm | None:
        """What each trial takes of Slurm; None where trials run here."""
        return None if self.slurm is None else Slurm(**self.slurm)

    def make_slots(self) -> list[Slot]:
        """What each of the trials at once has for itself. Raises HostsError."""
        if self.slurm is not None:
            return [Slot()] * self.parallel
        return make_slots(self.parallel, self.ranks, self.options, self.source)


@dataclass(frozen=True)
class Found:
    """What a search has found. `code` is the exit code of the command."""

    best: Record | None
    objective: str
    trials: int
    seconds: float
    database: str
    folder: str
    command: str
    files: tuple[str, ...]
    stopped: str = ""
    code: int = 0


class NoSearchError(ValueError):
    """A folder is that of no search, or not of one that may go on so."""


def create_search(target: Sequence[str], space: str, settings: Settings, database: str = "", folder: str = "") -> Path:
    """Write down a new search of `target` over the text `space`; its folder.

    Raises:
        SpaceError, FileExistsError, DatabaseError, ImportError, HostsError, JobError: nothing of it is left.
    """
    asked = space_file.read_space(space, settings.name)
    place.check_files(asked, Path(settings.source))
    engine.check_engine(settings.engine)
    settings.make_slots()
    if settings.slurm is not None:
        check_commands()
    path = Path(database) if database else find_default_path()
    where = _make_folder(target, folder)
    try:
        kept = Database(path)
        found = kept.add_search(
            str(where.absolute()), target, space, asdict(settings), describe_objective(asked.objective)
        )
        kept.close()
    except DatabaseError:
        where.rmdir()
        raise
    (where / NOTE).write_text(json.dumps({"database": str(path.absolute()), "search": found.id}) + "\n")
    return where


def _make_folder(target: Sequence[str], folder: str) -> Path:
    if not folder:
        return run_folder.make_folder("tune-" + (target[1] if target[0] == "-m" else Path(target[0]).stem))
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    if any(where.iterdir()):
        raise FileExistsError(f"{folder} is not empty. `matex tune --resume {folder}` goes on with a search")
    return where


def describe_objective(objective: Objective) -> str:
    """Which figure, and which way is better, in a line: searches with the same line are compared."""
    way = "maximize" if objective.maximize else "minimize"
    return f"{way} {objective.name}" + (f" by {objective.regex}" if objective.regex else "")


def open_search(folder: Path) -> tuple[Database, Search]:
    """The search in `folder`. Raises NoSearchError, DatabaseError."""
    try:
        note = json.loads((folder / NOTE).read_text())
        database = Database(Path(note["database"]))
    except (OSError, ValueError, KeyError):
        raise NoSearchError(f"{folder} is not the folder of a search, as runs/tune-train-1") from None
    search = database.find_search(note["search"])
    if search is None:
        raise NoSearchError(f"{folder}: its search is not in {database.path} any more")
    return database, search


def merge_settings(search: Search, **changed: Any) -> Settings:
    """Those that it was begun with, and what is changed. Raises NoSearchError where that is not to be had."""
    kept = {**search.settings, "run": tuple(search.settings["run"]), "rungs": tuple(search.settings.get("rungs", ()))}
    if more := changed.pop("slurm", None):
        if kept.get("slurm") is None:
            raise NoSearchError(f"its trials run here, and have no --{min(more).replace('_', '-')}")
        kept["slurm"] = {**kept["slurm"], **more}
        try:
            Slurm(**kept["slurm"])
        except (ValueError, TypeError) as error:
            raise NoSearchError(str(error)) from None
    return Settings(**{**kept, **changed})


def change_space(database: Database, search: Search, settings: Settings, space: str) -> tuple[Search, list[str]]:
    """The search over the text `space` in the place of its own, and what is not as before.

    Raises:
        SpaceError, NoSearchError: the text asks for what this search cannot have.
    """
    asked = space_file.read_space(space, settings.name)
    place.check_files(asked, Path(settings.source))
    ranges, others = changes.list_changes(space_file.read_space(search.space, settings.name), asked)
    trials = database.list_trials(search.id)
    if others and any(one.value is not None for one in trials):
        raise NoSearchError(
            f"{settings.name}: trials have come to values, and others could not be compared with them: "
            f"{'; '.join(others)}. Ranges and choices may change; for the rest begin another search"
        )
    if not ranges + others:
        return search, []
    for one in trials:
        if others and one.state == RUNNING and not asked.space.allows(one.config):
            database.end_trial(
                search.id, replace(one, state=FAILED, kind="changed", why="what is searched has changed")
            )
    return database.change_space(search, space, describe_objective(asked.objective)), ranges + others


def run_search(folder: Path, space: str = "", name: str = "", **changed: Any) -> Found:
    """Make the trials of the search in `folder` that are not made yet, over the text `space` of the file `name` if any.

    Raises:
        NoSearchError, SpaceError, DatabaseError, SearchError, ImportError, OSError, HostsError: what there is stays.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a search goes on in the main thread only: with it trials end, and signals come to it")
    began = time.monotonic()
    database, search = open_search(folder)
    settings = merge_settings(search, **changed, **({"name": name} if name else {}))
    search, new = change_space(database, search, settings, space) if space else (search, [])
    asked = space_file.read_space(search.space, settings.name)
    before = database.list_trials(search.id)
    made = engine.make_engine(settings.engine, asked.space, settings.seed)
    slots, job = settings.make_slots(), settings.make_job()
    matex = find_own_command()
    if job:
        job = fill_name_and_command(replace(job, matex=job.matex or matex), search.target)
    with Screen(asked.space, asked.objective, settings.trials, len(slots), before) as screen:
        say_once = make_once(screen.print_line)
        if new:
            screen.print_line(f"goes on with {name}; {'; '.join(new)}")
        elif not space and (file := _find_changed_file(search, settings)):
            screen.print_line(f"{file} is not as it was; the search goes on as it began (--search {file} takes it)")
        starter = Starter(
            Path(search.folder), asked, Path(settings.source),
            Jobs(job, Path(settings.source), settings.parallel, say_once) if job
            else Processes(shlex.split(matex), settings.ranks, settings.options),
            search.target, settings.limit, settings.rungs, screen.print_line, say_once,
        )  # fmt: skip
        searching = Searching(
            database, search, asked, starter, slots,
            Proposals(made, asked.space, settings.seed, [one.config for one in before]), settings.trials, screen,
            settings.warm_start, following.LOOK_EACH if job else LOOK_EACH,
        )  # fmt: skip
        with _handle_signals(searching):
            best = searching.run_trials()
    records = database.list_trials(search.id)
    database.close()
    command, files = format_trial_command(folder, search, settings, asked, best) if best else ("", ())
    code = 128 + next(number for number, name in _ENDING.items() if name == searching.stop) if searching.stop else 0
    return Found(
        best, asked.objective.name, sum(one.state != RUNNING for one in records), time.monotonic() - began,
        str(database.path), str(folder), command, files, searching.stop, code or int(best is None),
    )  # fmt: skip


def _find_changed_file(search: Search, settings: Settings) -> str:
    """The file with which the search began, where it asks for something else now."""
    try:
        text = Path(settings.source, settings.name).read_text(encoding="utf-8")
        known, new = (space_file.read_space(one, settings.name) for one in (search.space, text))
    except (OSError, ValueError):
        return ""  # it is gone, or no such file
    return settings.name if known != new else ""


def format_trial_command(
    folder: Path, search: Search, settings: Settings, asked: Asked, record: Record
) -> tuple[str, tuple[str, ...]]:
    """The command line that trains as a trial did, ready to be pasted, and the files that it needs to look so."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in place.list_variables(record.config).items()]
    if job := settings.make_job():
        # Where no option of the job stands before the script, those after it may be taken for the job.
        start = ["submit", "--slurm", *(format_options(job) or [f"--nodes={job.nodes}"])]
    else:
        start = ["run", "-n", str(settings.ranks), *settings.options]
    words = ["matex", *start, *search.target, *place.list_options(asked.space, record.config)]
    files = tuple(str(get_trial_folder(folder, record.number) / PLACE / name) for name in asked.files)
    return " ".join([*variables, shlex.join(words)]), files


@contextmanager
def _handle_signals(searching: Searching) -> Iterator[None]:
    """Within it signals end the search, after its trials."""

    def stop_search(number: int, frame: FrameType | None) -> None:
        searching.stop = searching.stop or _ENDING[signal.Signals(number)]

    before = {
        number: signal.signal(number, stop_search) for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
