"""What searches have found: tasks, configurations, curves, in one file of SQLite that several searches use at once.

A trial is written down before it starts, and what became of it in one transaction: whenever a search is killed, each of
its trials is there once, and one that has no end is made again.
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

VERSION = 2
RUNNING = "running"
_PATIENCE = 30.0
"""Seconds to wait for others that write."""
_TABLES = """
create table searches (
    id integer primary key, folder text not null, target text not null, space text not null, settings text not null,
    objective text not null, began real not null);
create table tasks (
    search integer primary key references searches, rows integer, columns integer, classes integer, parameters integer,
    loss text);
create table trials (
    search integer not null references searches, number integer not null, config text not null, origin text not null,
    state text not null, value real, kind text not null default '', why text not null default '',
    tail text not null default '', seconds real not null default 0, began real not null, ended real,
    primary key (search, number));
create table curves (
    search integer not null, number integer not null, place integer not null, epoch integer not null, value real,
    primary key (search, number, place));
"""
_SINCE_2 = """
create table rungs (
    search integer not null, number integer not null, rung integer not null, value real not null,
    primary key (search, number, rung));
"""
FEATURES = ("rows", "columns", "classes", "parameters", "loss")


class DatabaseError(RuntimeError):
    """The file cannot be read or written; the text says why."""


@dataclass(frozen=True)
class Search:
    """A search as it was asked for. `space` is the text of its file, `settings` what the command line said."""

    id: int
    folder: str
    target: list[str]
    space: str
    settings: dict[str, Any]
    objective: str


@dataclass(frozen=True)
class Record:
    """A trial as it is written down. `origin` says who proposed it, `rungs` the objective at each it came to."""

    number: int
    config: Config
    origin: str
    state: str = RUNNING
    value: float | None = None
    kind: str = ""
    why: str = ""
    tail: str = ""
    seconds: float = 0.0
    rungs: tuple[float, ...] = ()
    curve: tuple[Point, ...] = field(default=(), compare=False)


def find_default_path() -> Path:
    """Where it is unless a user says otherwise."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home, "matex", "tune.db")


class Database:
    """The file at `path`, made if there is none. Raises DatabaseError, as each of its functions does."""

    def __init__(self, path: Path):
        self.path = path
        with self._translate_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
            self._file.execute(f"pragma busy_timeout = {int(_PATIENCE * 1000)}")
            self._file.execute("pragma journal_mode = wal")  # who reads does not wait for who writes
            self._make_tables()

    def _make_tables(self) -> None:
        with self._open_transaction():
            version = self._fetch_one("pragma user_version")[0]
            if version < VERSION:
                for statement in (_SINCE_2 if version else _TABLES + _SINCE_2).split(";\n"):
                    self._file.execute(statement)
                self._file.execute(f"pragma user_version = {VERSION}")
        if version > VERSION:
            raise DatabaseError(f"{self.path}: its version is {version}, and this matex reads {VERSION}")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    # Searches and tasks

    def add_search(
        self, folder: str, target: Sequence[str], space: str, settings: dict[str, Any], objective: str
    ) -> Search:
        """Write down a new search."""
        with self._open_transaction():
            row = self._file.execute(
                "insert into searches (folder, target, space, settings, objective, began) values (?, ?, ?, ?, ?, ?)",
                (folder, json.dumps(list(target)), space, json.dumps(settings), objective, time.time()),
            )
            assert row.lastrowid is not None
        return Search(row.lastrowid, folder, list(target), space, settings, objective)

    def find_search(self, number: int) -> Search | None:
        """The search of this number."""
        with self._translate_errors():
            row = self._fetch_one(
                "select id, folder, target, space, settings, objective from searches where id = ?", number
            )
        return Search(row[0], row[1], json.loads(row[2]), row[3], json.loads(row[4]), row[5]) if row else None

    def change_space(self, search: Search, space: str, objective: str) -> Search:
        """Write down that a search goes on over another text, and for another objective."""
        with self._open_transaction():
            self._file.execute(
                "update searches set space = ?, objective = ? where id = ?", (space, objective, search.id)
            )
        return replace(search, space=space, objective=objective)

    def read_begin(self, search: int) -> float:
        """When a search began, in seconds since 1970."""
        with self._translate_errors():
            return float(self._fetch_one("select began from searches where id = ?", search)[0])

    def note_task(self, search: int, features: dict[str, Any]) -> None:
        """Write down what a search learns, once."""
        with self._open_transaction():
            self._file.execute(
                "insert or ignore into tasks (search, rows, columns, classes, parameters, loss) "
                "values (?, ?, ?, ?, ?, ?)",
                (search, *(features.get(name) for name in FEATURES)),
            )

    def read_task(self, search: int) -> dict[str, Any] | None:
        """What a search learns; None where that is not known."""
        with self._translate_errors():
            row = self._fetch_one(f"select {', '.join(FEATURES)} from tasks where search = ?", search)
        return dict(zip(FEATURES, row)) if row else None

    def list_other_tasks(self, search: int, objective: str) -> dict[int, dict[str, Any]]:
        """What other searches for the same objective have learnt, by their numbers."""
        with self._translate_errors(), closing(self._file.execute(
            f"select id, {', '.join(FEATURES)} from searches join tasks on search = id where id != ? and objective = ?",
            (search, objective),
        )) as rows:  # fmt: skip
            return {row[0]: dict(zip(FEATURES, row[1:])) for row in rows}

    # Trials

    def add_trial(self, search: int, config: Config, origin: str) -> Record:
        """Write down a trial that is to start; it has the next number."""
        with self._open_transaction():
            number = self._fetch_one("select coalesce(max(number), 0) + 1 from trials where search = ?", search)[0]
            self._file.execute(
                "insert into trials (search, number, config, origin, state, began) values (?, ?, ?, ?, ?, ?)",
                (search, number, json.dumps(config), origin, RUNNING, time.time()),
            )
        return Record(number, config, origin)

    def resume_trial(self, search: int, number: int) -> None:
        """Write down that a trial that had paused goes on."""
        with self._open_transaction():
            self._file.execute("update trials set state = ? where search = ? and number = ?", (RUNNING, search, number))

    def end_trial(self, search: int, record: Record) -> None:
        """Write down what became of a trial, at its end or where it pauses."""
        figures = (record.value, record.kind, record.why, record.tail, record.seconds, time.time())
        with self._open_transaction():
            self._file.execute(
                "update trials set state = ?, value = ?, kind = ?, why = ?, tail = ?, seconds = ?, ended = ? "
                "where search = ? and number = ?", (record.state, *figures, search, record.number),
            )  # fmt: skip
            for table in ("curves", "rungs"):
                self._file.execute(f"delete from {table} where search = ? and number = ?", (search, record.number))
            self._file.executemany(
                "insert into curves (search, number, place, epoch, value) values (?, ?, ?, ?, ?)",
                [(search, record.number, place, one.epoch, one.value) for place, one in enumerate(record.curve)],
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
        found = []
        for number, config, origin, state, value, kind, why, tail, seconds in rows:
            reached, curve = tuple(rungs.get(number, ())), tuple(curves.get(number, ()))
            became = (state, value, kind, why, tail, seconds, reached, curve)
            found.append(Record(number, json.loads(config), origin, *became))
        return found

    # The file

    def _fetch_one(self, statement: str, *values: Any) -> Any:
        return self._file.execute(statement, values).fetchone()

    @contextmanager
    def _open_transaction(self) -> Iterator[None]:
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
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"{self.path}: {error}") from error
