"""The database of searches: tasks, configurations and curves, in a SQLite file that several searches use concurrently.

A curve is the values of the objective after each epoch of a trial.

A search may be killed at any time, and must lose no trial. A trial is therefore recorded before it starts, and all of
its result in one transaction. A trial without a result is repeated when the search is resumed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from matex_tf.tune.objective import Point
from matex_tf.tune.space import Config
from matex_tf.tune.trials.trial import Outcome

VERSION = 3  # the version of the tables
RUNNING = "running"  # the state of a trial without a result
_PATIENCE = 30.0  # seconds to wait for concurrent writers
# Three columns are JSON. search: the fields of `Search` without its id. task: the `FEATURES`. record: the fields of
# `Record`.
_TABLES = f"""
create table searches (id integer primary key, objective text not null, search text not null, task text);
create table trials (
    search integer not null references searches, number integer not null, record text not null,
    primary key (search, number));
pragma user_version = {VERSION}
"""
FEATURES = ("rows", "columns", "classes", "parameters", "loss")
"""The features of a task, what a search trains: the sizes of its data and its model, and the name of its loss."""


class DatabaseError(RuntimeError):
    """The file cannot be read or written; the text gives the reason."""


class VersionError(DatabaseError):
    """The file has tables of another version."""


@dataclass(frozen=True)
class Search:
    """The record of a search."""

    id: int
    folder: str
    target: list[str]  # the script and its arguments
    space: str  # the text of the space file
    settings: dict[str, Any]  # the fields of `settings.Settings`
    objective: str  # the line of `setup.describe_objective`
    began: float  # the start of the search, in seconds since 1970


@dataclass(frozen=True)
class Record(Outcome):
    """The record of a trial: its configuration, and its outcome as far as it is known."""

    number: int  # from 1, in the order of the first starts
    config: Config
    origin: str  # the source of the configuration: `proposals.ENGINE` or `proposals.WARM`
    state: str = field(default=RUNNING, kw_only=True)
    rungs: tuple[float, ...] = ()  # the objective at each rung that the trial has reached


def find_default_path() -> Path:
    """The default path of the database, one for each version: an older file stays for the matex that wrote it."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home, "matex", f"tune-{VERSION}.db")


class Database:
    """The database at `path`, created if missing. The constructor and all methods raise DatabaseError."""

    def __init__(self, path: Path):
        self.path = path
        with self._translate_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without an isolation level, sqlite3 begins no transactions by itself: `_open_transaction` does.
            self._file = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
            self._file.execute(f"pragma busy_timeout = {int(_PATIENCE * 1000)}")
            self._file.execute("pragma journal_mode = wal")  # readers do not wait for writers
        with self._open_transaction():
            version = self._fetch_one("pragma user_version")[0]  # 0: a new file
            if version not in (0, VERSION):
                raise VersionError(
                    f"{path}: its version is {version}, and this matex reads {VERSION}. Its searches need the matex "
                    "that began them; a new search needs another file (--database)"
                )
            if version == 0:
                for statement in _TABLES.split(";"):
                    self._file.execute(statement)

    def close(self) -> None:
        self._file.close()

    # Searches and tasks

    def add_search(
        self, folder: str, target: Sequence[str], space: str, settings: dict[str, Any], objective: str
    ) -> Search:
        """Record a new search."""
        search = Search(0, folder, list(target), space, settings, objective, time.time())
        with self._open_transaction():
            statement = "insert into searches (objective, search) values (?, ?)"
            row = self._file.execute(statement, (objective, _format_search(search)))
            assert row.lastrowid is not None
        return replace(search, id=row.lastrowid)

    def find_search(self, number: int) -> Search | None:
        """The search with this number; None if there is none."""
        with self._translate_errors():
            row = self._fetch_one("select search from searches where id = ?", number)
        return Search(number, **json.loads(row[0])) if row else None

    def update_search(self, search: Search) -> None:
        """Record that a search continues with another space, objective or other settings."""
        with self._open_transaction():
            self._file.execute(
                "update searches set objective = ?, search = ? where id = ?",
                (search.objective, _format_search(search), search.id),
            )

    def note_task(self, search: int, features: Mapping[str, Any]) -> None:
        """Record the task of a search, once."""
        task = json.dumps({name: features.get(name) for name in FEATURES})
        with self._open_transaction():
            self._file.execute("update searches set task = ? where id = ? and task is null", (task, search))

    def read_task(self, search: int) -> dict[str, Any] | None:
        """The task of a search; None if unknown."""
        with self._translate_errors():
            row = self._fetch_one("select task from searches where id = ? and task is not null", search)
        return json.loads(row[0]) if row else None

    def list_other_tasks(self, search: int, objective: str) -> dict[int, dict[str, Any]]:
        """The tasks of other searches with the same objective, by number of the search."""
        with self._translate_errors():
            rows = self._file.execute(
                "select id, task from searches where id != ? and objective = ? and task is not null",
                (search, objective),
            ).fetchall()
        return {number: json.loads(task) for number, task in rows}

    # Trials

    def add_trial(self, search: int, config: Config, origin: str) -> Record:
        """Record a trial that is about to start, with the next number."""
        with self._open_transaction():
            number = self._fetch_one("select coalesce(max(number), 0) + 1 from trials where search = ?", search)[0]
            record = Record(number, config, origin)
            self._file.execute("insert into trials values (?, ?, ?)", (search, number, json.dumps(asdict(record))))
        return record

    def update_trial(self, search: int, record: Record) -> None:
        """Record the result of a trial, when it ends or pauses, or that a paused trial continues."""
        with self._open_transaction():
            self._file.execute(
                "update trials set record = ? where search = ? and number = ?",
                (json.dumps(asdict(record)), search, record.number),
            )

    def list_trials(self, search: int) -> list[Record]:
        """The trials of a search, by number."""
        with self._translate_errors():
            statement = "select record from trials where search = ? order by number"
            rows = self._file.execute(statement, (search,)).fetchall()
        return [_read_record(record_text) for (record_text,) in rows]

    # The file

    def _fetch_one(self, statement: str, *values: Any) -> Any:
        return self._file.execute(statement, values).fetchone()

    @contextmanager
    def _open_transaction(self) -> Iterator[None]:
        """Context whose statements are all written, or none after an exception."""
        with self._translate_errors(), self._file:
            self._file.execute("begin immediate")
            yield

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Context in which errors of SQLite and of the file system become DatabaseError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"{self.path}: {error}") from error


def _format_search(search: Search) -> str:
    return json.dumps({name: value for name, value in vars(search).items() if name != "id"})


def _read_record(record_text: str) -> Record:
    fields = json.loads(record_text)
    curve = tuple(Point(**point) for point in fields.pop("curve"))
    return Record(**{**fields, "rungs": tuple(fields["rungs"])}, curve=curve)
