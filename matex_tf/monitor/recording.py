"""Reads the records of a run, which `monitor.sampler` writes: the samples and events of each rank.

A sample is a JSON line of a rank's file, such as {"t": 1760000000.0, "cpu": 12.3}: a time, and counters and values at
that time. Of long files only some lines are read (`read_samples`): counters are cumulative, so any two lines give the
mean rate between them. An event is also such a line, in another file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
START, RANK, EVENTS, PROFILE = "start.json", "rank-{}.jsonl", "events-{}.jsonl", "profile.txt"
MAX_SAMPLES = 48_000
"""The number of samples read from a run, over all ranks; half of it if files are too long to be read completely."""
_MIN_SAMPLES = 32  # read of each rank, also with so many ranks that their sum exceeds MAX_SAMPLES
_LINE_BYTES = 512  # the maximum size of a usual line
_TAIL_BYTES = 8192  # enough for an unusual last line
_START = re.compile(r"start-(\d+)")
_RANK = re.compile(re.escape(RANK).replace(r"\{\}", r"(\d+)"))


class RecordingError(ValueError):
    """The folder has no records of a run, or records that this version cannot read."""


class NothingRecordedError(RecordingError):
    """No rank has written records yet."""


@dataclass
class Start:
    """One start of a run."""

    number: int
    about: dict[str, Any]  # the contents of start.json: command, hosts, versions and settings
    files: dict[int, Path]  # the file of each rank's samples
    events: list[dict[str, Any]] = field(default_factory=list)
    profile: str = ""

    @property
    def hosts(self) -> list[str]:
        return list(self.about["hosts"])

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def seconds(self) -> float:
        """The first interval between samples of a rank; a long run doubles it (`sampler.Recorder`)."""
        return float(self.about["settings"].get("MATEX_RECORD_SECONDS", 1))


@dataclass
class Run:
    """All starts of a run, and the events of `matex run`."""

    folder: str
    starts: list[Start]
    events: list[dict[str, Any]]


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Open the records in `folder`, without the samples.

    Raises:
        NothingRecordedError: no run was recorded there.
        RecordingError: this version cannot read the records.
    """
    root = Path(folder)
    folders = sorted((int(match[1]), path) for path in root.glob("start-*") if (match := _START.fullmatch(path.name)))
    starts = [_read_start(number, path) for number, path in folders if (path / START).is_file()]
    if not starts:
        reason = "no rank has written anything there"
        if not os.path.isdir(folder):
            reason = "that is a file, not a folder" if root.is_file() else "there is no such folder"
        name = shlex.quote(os.fspath(folder))
        example = "`matex run --record runs/1 -n 4 train.py` records a run in runs/1"
        raise NothingRecordedError(f"{name}: {reason}. {example}")
    return Run(str(folder), starts, list(_read_lines(root / "events.jsonl")))


def _read_start(number: int, path: Path) -> Start:
    header = json.loads((path / START).read_text())
    if header.get("format") != FORMAT:
        raise RecordingError(f"{path}: its format is {header.get('format')!r}, and this version reads {FORMAT}")
    files_by_rank = {
        int(match[1]): Path(file.path) for file in os.scandir(path) if (match := _RANK.fullmatch(file.name))
    }
    events = [line for file in sorted(path.glob(EVENTS.format("*"))) for line in _read_lines(file)]
    profile = path / PROFILE
    return Start(
        number, header, dict(sorted(files_by_rank.items())), sorted(events, key=lambda event: event["t"]),
        profile.read_text() if profile.is_file() else "",
    )  # fmt: skip


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file. A killed writer may leave an incomplete one."""
    if path.is_file():
        yield from _parse_lines(path.read_bytes())


def _parse_lines(text: bytes) -> list[dict[str, Any]]:
    """The complete lines, without damaged ones."""
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    try:
        parsed = json.loads(b"[" + b",".join(lines) + b"]")  # the usual case, in half the time
        if len(parsed) == len(lines) and all(map(_is_line, parsed)):
            return list(parsed)
    except ValueError:
        pass
    return [parsed_line for line in lines if _is_line(parsed_line := _parse_line(line))]


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_line(parsed: Any) -> bool:
    """Whether `parsed` is a sample or an event: an object with a time."""
    return isinstance(parsed, dict) and isinstance(parsed.get("t"), (int, float))


def read_last(path: Path, count: int = 1) -> list[dict[str, Any]]:
    """The last samples of a rank, about `count` of them; at least one if there is one."""
    tail_bytes = (count + 3) * _LINE_BYTES // 2  # most lines are half as long as the longest usual one
    with path.open("rb") as file:
        return _read_tail(file.fileno(), tail_bytes) or _read_tail(file.fileno(), _TAIL_BYTES)


def _read_tail(descriptor: int, size: int) -> list[dict[str, Any]]:
    """The complete lines in the last `size` bytes of a file."""
    offset = max(os.fstat(descriptor).st_size - size, 0)
    text = os.pread(descriptor, size, offset)
    return _parse_lines(text if offset == 0 else text[text.find(b"\n") + 1 :])


def read_samples(path: Path, max_count: int) -> list[dict[str, Any]]:
    """The samples of a rank: all if there are at most about `max_count`, else half of that number, evenly spaced."""
    with path.open("rb") as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        first_samples = _parse_lines(os.pread(descriptor, 2 * _LINE_BYTES, 0))
        line_bytes = len(json.dumps(first_samples[0], separators=(",", ":"))) if first_samples else _LINE_BYTES
        if size <= max_count * line_bytes or size < 4 * _TAIL_BYTES:  # few samples, or a short file
            return _parse_lines(file.read())
        count = max_count // 2  # so that offsets are more than two lines apart, and no line is read twice
        offsets = [size * index // (count - 1) for index in range(1, count - 1)]
        # From each offset on, the rest of a line, and the first complete line, which is used.
        sections = [os.pread(descriptor, 2 * _LINE_BYTES, offset).split(b"\n", 2) for offset in offsets]
        lines = [section[1] for section in sections if len(section) > 2]
        return first_samples[:1] + _parse_lines(b"\n".join([*lines, b""])) + read_last(path)[-1:]


def count_points(ranks: int) -> int:
    """The number of samples to read for each of `ranks` ranks."""
    return max(MAX_SAMPLES // max(ranks, 1), _MIN_SAMPLES)


class Series:
    """The samples of one rank: `series["cpu"]` is an array, with NaN for samples without "cpu"."""

    def __init__(self, samples: Sequence[dict[str, Any]]):
        self.samples = samples
        self._arrays: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = np.array([sample.get(name, np.nan) for sample in self.samples], float)
        return self._arrays[name]

    def compute_rates(self, name: str) -> np.ndarray:
        """The growth a second between consecutive samples, of shape [samples - 1].

        NaN for unusually short intervals, such as the last one, because the system counts in ticks.
        """
        intervals = np.diff(self["t"])
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(intervals > np.median(intervals) / 4, np.diff(self[name]) / intervals, np.nan)

    def compute_growth(self, name: str) -> float:
        """The growth from the first sample to the last."""
        values = self[name]
        return float(values[-1] - values[0]) if len(values) > 1 else 0.0

    @property
    def ended(self) -> str:
        """How the rank reports its end; "" if it has not ended."""
        return str(self.samples[-1].get("end", "")) if self.samples else ""

    @property
    def waits(self) -> tuple[float, str]:
        """The seconds for which the rank has waited at one place, and that place; 0 if it does not wait."""
        seconds, place = self.samples[-1].get("now", (0.0, "")) if self.samples else (0.0, "")
        return float(seconds), str(place)


def read_all(start: Start) -> dict[int, Series]:
    max_count = count_points(len(start.files))
    return {rank: Series(read_samples(path, max_count)) for rank, path in start.files.items()}


def read_recent(start: Start, seconds: float) -> dict[int, Series]:
    """The samples of the last `seconds`, for each rank that has a sample; at least two samples if there are two."""
    recent = {}
    count = int(seconds / start.seconds) + 2
    for rank, path in start.files.items():
        if samples := read_last(path, count):
            recent_samples = [sample for sample in samples if sample["t"] >= samples[-1]["t"] - seconds]
            recent[rank] = Series(recent_samples if len(recent_samples) > 1 else samples[-2:])
    return recent
