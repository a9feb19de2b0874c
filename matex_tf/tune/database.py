"""The database of searches: tasks, configurations and curves, in a SQLite file that several searches use concurrently.

A search may be killed at any time, and must lose no trial. A trial is therefore recorded before it starts, and all of
its result in one transaction. A trial without a result is repeated when the search is resumed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matex_tf.tune.objective import Point
from matex_tf.tune.space import Config
from matex_tf.tune.trials.trial import Outcome

VERSION = 2
"""The version of the tables."""
RUNNING = "running"
"""The state of a trial without a result."""
_PATIENCE = 30.0
"""Seconds to wait for concurrent writers."""
# target, settings and config are JSON; began and ended are seconds since 1970; place is the index in a curve. Version 1
# had no table of rungs.
_TABLES = """
create table if not exists searches (
    id integer primary key, folder text not null, target text not null, space text not null, settings text not null,
    objective text not null, began real not null);
create table if not exists tasks (
    search integer primary key references searches, rows integer, columns integer, classes integer, parameters integer,
    loss text);
create table if not exists trials (
    search integer not null references searches, number integer not null, config text not null, origin text not null,
    state text not null, value real, kind text not null default '', why text not null default '',
    tail text not null default '', seconds real not null default 0, began real not null, ended real,
    primary key (search, number));
create table if not exists curves (
    search integer not null, number integer not null, place integer not null, epoch integer not null, value real,
    primary key (search, number, place));
create table if not exists rungs (
    search integer not null, number integer not null, rung integer not null, value real not null,
    primary key (search, number, rung));
"""
FEATURES = ("rows", "columns", "classes", "parameters", "loss")
"""Of a task: sizes of its data and its model, and the name of its loss."""


class DatabaseError(RuntimeError):
    """The file cannot be read or written; the text gives the reason."""


@dataclass(frozen=True)
class Search:
    """The record of a search."""

    id: int
    folder: str
    target: list[str]
    """The script and its arguments."""
    space: str
    """The text of the space file."""
    settings: dict[str, Any]
    """The fields of `setup.Settings`."""
    objective: str
    """The line of `setup.describe_objective`."""


@dataclass(frozen=True)
class Record(Outcome):
    """The record of a trial: its configuration, and its outcome as far as it is known."""

    number: int
    """From 1, in the order of the first starts."""
    config: Config
    origin: str
    """The proposer: `proposals.ENGINE` or `proposals.WARM`."""
    state: str = field(default=RUNNING, kw_only=True)
    rungs: tuple[float, ...] = ()
    """The objective at each rung that the trial has reached."""


def find_default_path() -> Path:
    """The default path of the database."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home, "matex", "tune.db")


class Database:
    """The database at `path`, created if missing. The constructor and all methods raise DatabaseError."""

    def __init__(self, path: Path):
        self.path = path
        with self._translate_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
            self._file.execute(f"pragma busy_timeout = {int(_PATIENCE * 1000)}")
            self._file.execute("pragma journal_mode = wal")  # readers do not wait for writers
            self._make_tables()

    def _make_tables(self) -> None:
        with self._open_transaction():
            version = self._fetch_one("pragma user_version")[0]  # 0: a new file
            if version > VERSION:
                raise DatabaseError(f"{self.path}: its version is {version}, and this matex reads {VERSION}")
            if version < VERSION:
                for statement in f"{_TABLES}pragma user_version = {VERSION}".split(";\n"):
                    self._file.execute(statement)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # Searches and tasks

    def add_search(
        self, folder: str, target: Sequence[str], space: str, settings: dict[str, Any], objective: str
    ) -> Search:
        """Record a new search."""
        with self._open_transaction():
            row = self._file.execute(
                "insert into searches (folder, target, space, settings, objective, began) values (?, ?, ?, ?, ?, ?)",
                (folder, json.dumps(list(target)), space, json.dumps(settings), objective, time.time()),
            )
            assert row.lastrowid is not None
        return Search(row.lastrowid, folder, list(target), space, settings, objective)

    def find_search(self, number: int) -> Search | None:
        """The search with this number; None if there is none."""
        with self._translate_errors():
            row = self._fetch_one(
                "select id, folder, target, space, settings, objective from searches where id = ?", number
            )
        return Search(row[0], row[1], json.loads(row[2]), row[3], json.loads(row[4]), row[5]) if row else None

    def change_space(self, search: Search, space: str, objective: str) -> Search:
        """Record that a search continues with another space and objective."""
        with self._open_transaction():
            self._file.execute(
                "update searches set space = ?, objective = ? where id = ?", (space, objective, search.id)
            )
        return replace(search, space=space, objective=objective)

    def read_begin(self, search: int) -> float:
        """The start of a search, in seconds since 1970."""
        with self._translate_errors():
            return float(self._fetch_one("select began from searches where id = ?", search)[0])

    def note_task(self, search: int, features: dict[str, Any]) -> None:
        """Record the task of a search, once."""
        with self._open_transaction():
            self._file.execute(
                "insert or ignore into tasks (search, rows, columns, classes, parameters, loss) "
                "values (?, ?, ?, ?, ?, ?)",
                (search, *(features.get(name) for name in FEATURES)),
            )

    def read_task(self, search: int) -> dict[str, Any] | None:
        """The task of a search; None if unknown."""
        with self._translate_errors():
            row = self._fetch_one(f"select {', '.join(FEATURES)} from tasks where search = ?", search)
        return dict(zip(FEATURES, row)) if row else None

    def list_other_tasks(self, search: int, objective: str) -> dict[int, dict[str, Any]]:
        """The tasks of other searches with the same objective, by number of the search."""
        with self._translate_errors(), closing(self._file.execute(
            f"select id, {', '.join(FEATURES)} from searches join tasks on search = id where id != ? and objective = ?",
            (search, objective),
        )) as rows:  # fmt: skip
            return {row[0]: dict(zip(FEATURES, row[1:])) for row in rows}

    # Trials

    def add_trial(self, search: int, config: Config, origin: str) -> Record:
        """Record a trial that is about to start, with the next number."""
        with self._open_transaction():
            number = self._fetch_one("select coalesce(max(number), 0) + 1 from trials where search = ?", search)[0]
            self._file.execute(
                "insert into trials (search, number, config, origin, state, began) values (?, ?, ?, ?, ?, ?)",
                (search, number, json.dumps(config), origin, RUNNING, time.time()),
            )
        return Record(number, config, origin)

    def resume_trial(self, search: int, number: int) -> None:
        """Record that a paused trial continues."""
        with self._open_transaction():
            self._file.execute("update trials set state = ? where search = ? and number = ?", (RUNNING, search, number))

    def end_trial(self, search: int, record: Record) -> None:
        """Record the result of a trial, at its end or when it pauses."""
        outcome = (record.value, record.kind, record.why, record.tail, record.seconds, time.time())
        with self._open_transaction():
            self._file.execute(
                "update trials set state = ?, value = ?, kind = ?, why = ?, tail = ?, seconds = ?, ended = ? "
                "where search = ? and number = ?", (record.state, *outcome, search, record.number),
            )  # fmt: skip
            for table in ("curves", "rungs"):  # from an earlier pause of the trial
                self._file.execute(f"delete from {table} where search = ? and number = ?", (search, record.number))
            self._file.executemany(
                "insert into curves (search, number, place, epoch, value) values (?, ?, ?, ?, ?)",
                [(search, record.number, place, point.epoch, point.value) for place, point in enumerate(record.curve)],
            )
            self._file.executemany(
                "insert into rungs (search, number, rung, value) values (?, ?, ?, ?)",
                [(search, record.number, rung, value) for rung, value in enumerate(record.rungs)],
            )

    def list_trials(self, search: int) -> list[Record]:
        """The trials of a search, with their curves and rungs."""
        curves: dict[int, list[Point]] = {}
        rungs: dict[int, list[float]] = {}
        with self._translate_errors():
            for number, value in self._file.execute(
                "select number, value from rungs where search = ? order by number, rung", (search,)
            ):
                rungs.setdefault(number, []).append(value)
            for number, epoch, value in self._file.execute(
                "select number, epoch, value from curves where search = ? order by number, place", (search,)
            ):
                curves.setdefault(number, []).append(Point(epoch, float("nan") if value is None else value))
            rows = self._file.execute(
                "select number, config, origin, state, value, kind, why, tail, seconds from trials where search = ? "
                "order by number", (search,),
            ).fetchall()  # fmt: skip
        records = []
        for number, config, origin, state, value, kind, why, tail, seconds in rows:
            record = Record(
                number, json.loads(config), origin, tuple(rungs.get(number, ())), state=state, value=value, kind=kind,
                why=why, tail=tail, seconds=seconds, curve=tuple(curves.get(number, ())),
            )  # fmt: skip
            records.append(record)
        return records

    # The file

    def _fetch_one(self, statement: str, *values: Any) -> Any:
        return self._file.execute(statement, values).fetchone()

    @contextmanager
    def _open_transaction(self) -> Iterator[None]:
        """Context whose statements are all written, or none after an exception."""
        with self._translate_errors():
            self._file.execute("begin immediate")
            try:
                yield
                self._file.execute("commit")
            except BaseException:
                if self._file.in_transaction:
                    self._file.execute("rollback")
                raise

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Context in which errors of SQLite and of the file system become DatabaseError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"{self.path}: {error}") from error
