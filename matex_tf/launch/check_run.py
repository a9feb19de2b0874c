"""`matex run --check`: compare the first steps of a script alone with the same steps on several ranks.

`check_script` calls `run_once` for both runs, and prints the rows of `compare_outcomes`. Each run works in its own
mirror of the current folder (`files.mirror`): small files are copies, large files and folders are links to the
originals. By the setting `check` (MATEX_CHECK), each rank stops after some steps, and writes its weights and the
figures of each step into a file for `run_once`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from matex_tf.files.mirror import ALL_COPIED_BYTES, Mirror, list_files, make_mirror_command, mirror_folder
from matex_tf.planner.measurement import started
from matex_tf.world import child_process

EQUAL, CLOSE = 1e-5, 1e-2
"""Relative differences: at most EQUAL is the rounding of a few steps in float32, at most CLOSE is the same curve."""
MAX_SECONDS = 600  # of each of the two runs
_EXIT_TIMEOUT = 124  # the exit code of a run that was ended after that time, as of the command `timeout`

# In printed lines, numbers are compared within CLOSE, and times are ignored. Terminal codes are removed, and what a
# carriage return or a backspace overwrites.
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_TIME = re.compile(r"\b\d+(?:\.\d+)?\s*(?:s|ms|us|µs|ns|sec|secs|seconds|min|minutes)(?:/\w+)?\b")
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|.*[\r\x08]+(?=[^\r\n])")


@dataclass(frozen=True)
class Outcome:
    """The results of one of the two runs."""

    code: int
    seconds: float
    printed: list[str]  # see `list_final_lines`
    files: set[str]  # the paths of written files
    figures: list[list[float]]  # loss and metrics of each training step
    weights: list[np.ndarray]  # of rank 0, after the last step
    agree: bool  # all ranks have recorded the same weights, bit for bit
    shared: Sequence[str] = ()  # the user's own folders, to which the mirror links; files written there are not listed


@dataclass(frozen=True)
class Row:
    """One line of the table: the compared quantity, both values, their relative difference, and a note."""

    quantity: str
    alone: str
    together: str
    difference: float = 0.0  # infinite if values that have no distance, such as exit codes, are different
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.difference <= EQUAL:
            return "equal"
        return "close" if self.difference <= CLOSE else "differs"


def list_final_lines(text: str) -> list[str]:
    """The lines of a printed text without blank lines, and with only the last version of an overwritten line."""
    return [line.rstrip() for line in _TERMINAL.sub("", text).splitlines() if line.strip()]


def compute_relative_difference(alone: Sequence[float] | np.ndarray, together: Sequence[float] | np.ndarray) -> float:
    """The largest difference of two elements, relative to the larger of `alone`'s largest magnitude and 1e-3."""
    # Both parts of complex weights are compared.
    alone, together = np.asarray(alone, np.complex128), np.asarray(together, np.complex128)
    if alone.shape != together.shape:
        return np.inf
    if alone.size == 0 or np.array_equal(alone, together, equal_nan=True):
        return 0.0
    distance = np.abs(alone - together).max() / max(np.abs(alone).max(), 1e-3)
    return np.inf if np.isnan(distance) else float(distance)


def is_same_line(alone_line: str, together_line: str) -> bool:
    """Whether two printed lines agree: equal words and close numbers; times are ignored."""
    alone_line, together_line = (_TIME.sub("", line) for line in (alone_line, together_line))
    if _NUMBER.sub("0", alone_line) != _NUMBER.sub("0", together_line):
        return False
    number_pairs = zip(_NUMBER.findall(alone_line), _NUMBER.findall(together_line))
    return all(abs(float(a) - float(b)) <= CLOSE * max(abs(float(a)), 1e-3) for a, b in number_pairs)


def make_mirror(source: Path, target: Path, may_share: bool) -> Mirror:
    """Mirror `source` at `target`, with copies of `ALL_COPIED_BYTES` in all at most, however large each file is.

    Raises click.UsageError if the script could overwrite an original, unless `may_share` (--share) allows that.
    """
    mirror = mirror_folder(source, target, largest=ALL_COPIED_BYTES)
    # `mirror.folders` and `mirror.files` are originals that the mirror only links to. A file that is not writable and a
    # folder that cannot be entered are safe.
    shared_paths = [str(path) for path in mirror.folders if os.access(target / path, os.X_OK)]
    shared_paths += [os.path.relpath(path, source.resolve()) for path in mirror.files if os.access(path, os.W_OK)]
    if not shared_paths:
        return mirror
    paths_text = ", ".join(shared_paths[:3]) + (f" and {len(shared_paths) - 3} more" if len(shared_paths) > 3 else "")
    if not may_share:
        raise click.UsageError(
            f"--check runs the script in a copy of this folder, and these are too large for one: {paths_text}. With "
            "--share the originals are used, and the script's changes remain. Read-only files need no --share"
        )
    print(f"matex: shared; what the script writes there remains: {paths_text}", flush=True)
    return mirror


def run_once(
    command: Sequence[str], target: Sequence[str], steps: int, folder: Path, source: Path, ranks: int = 1,
    may_share: bool = False,
) -> Outcome:  # fmt: skip
    """Run `target` by `command`, which starts `ranks` ranks, in a mirror of `source`, for `steps` training steps.

    `folder` is a new folder for the mirror, and for the records: the files in which the ranks write their weights and
    figures. The stderr of the run goes to the terminal. Raises click.UsageError, see `make_mirror`.
    """
    mirror_path, records_path = folder / "mirror", folder / "records"
    records_path.mkdir(parents=True)
    mirror = make_mirror(source, mirror_path, may_share)
    files_before = list_files(mirror_path)
    started_at = time.monotonic()
    environment = {**os.environ, "MATEX_CHECK": f"{steps}:{records_path}", "TF_CPP_MIN_LOG_LEVEL": "2"}
    mirror_command = [*command, *make_mirror_command(target, source, mirror_path)]
    with started.start_process(
        mirror_command, started.PATIENCE, cwd=mirror_path, env=environment, stdout=subprocess.PIPE
    ) as process:
        try:
            output, code = process.communicate(timeout=MAX_SECONDS)[0], process.returncode
        except subprocess.TimeoutExpired as error:
            output, code = error.output or b"", _EXIT_TIMEOUT
            print(f"matex: the run had not ended after {MAX_SECONDS} s", flush=True)
    seconds = time.monotonic() - started_at
    for path in mirror.list_changed_originals():
        print(f"matex: {path} has changed during the check: it is the original, not a copy", flush=True)
    files = {name for name, file_stamp in list_files(mirror_path).items() if files_before.get(name) != file_stamp}
    records = [_read_record(file) for file in sorted(records_path.glob("rank-*.npz"))]
    figures, weights = records[0] if records else ([], [])
    return Outcome(
        code=code if code >= 0 else 128 - code, seconds=seconds,
        printed=list_final_lines(output.decode(errors="replace")), files=files, figures=figures, weights=weights,
        agree=len(records) == ranks and all(_are_identical(weights, rank_weights) for _, rank_weights in records),
        shared=[str(path) for path in mirror.folders],
    )  # fmt: skip


def _read_record(file: Path) -> tuple[list[list[float]], list[np.ndarray]]:
    """The figures and the weights in the file of a rank (`Recorder.store_steps`)."""
    with np.load(file, allow_pickle=False) as arrays:
        weights = [arrays[f"weight{index}"] for index in range(len(arrays.files) - 1)]
        return json.loads(str(arrays["figures"])), weights


def _are_identical(weights: Sequence[np.ndarray], other_weights: Sequence[np.ndarray]) -> bool:
    """Whether two ranks have the same weights, bit for bit."""
    return len(weights) == len(other_weights) and all(
        (array.dtype, array.shape, array.tobytes()) == (other_array.dtype, other_array.shape, other_array.tobytes())
        for array, other_array in zip(weights, other_weights)
    )


def compare_outcomes(alone: Outcome, together: Outcome) -> list[Row]:
    figures = _find_largest_difference(alone.figures, together.figures)
    has_as_many_weights = len(alone.weights) == len(together.weights)
    weights = _find_largest_difference(alone.weights, together.weights) if has_as_many_weights else np.inf
    return [
        _compare_values("exit code", alone.code, together.code),
        _compare_values("training steps", len(alone.figures), len(together.figures)),
        Row("loss and figures", _format_last_figures(alone), _format_last_figures(together), figures,
            f"largest difference {figures:.1e}"),
        Row("weights", f"{len(alone.weights)} arrays", f"{len(together.weights)} arrays", weights,
            f"largest difference {weights:.1e}"),
        Row("weights of all ranks", "", "", 0.0 if together.agree else np.inf, "bit for bit"),
        _compare_printed_lines(alone.printed, together.printed),
        _compare_files(alone, together),
    ]  # fmt: skip


def _compare_values(quantity: str, alone: int, together: int) -> Row:
    return Row(quantity, str(alone), str(together), 0.0 if alone == together else np.inf)


def _format_last_figures(outcome: Outcome) -> str:
    """The loss and the first metric of the last step."""
    figures = outcome.figures[-1][:2] if outcome.figures else []
    return ", ".join(f"{value:.6g}" for value in figures) or "none"


def _find_largest_difference(
    alone: Sequence[Sequence[float] | np.ndarray], together: Sequence[Sequence[float] | np.ndarray]
) -> float:
    """The largest of the relative differences of steps or weights, as many as both runs have."""
    return max((compute_relative_difference(a, b) for a, b in zip(alone, together)), default=0.0)


def _compare_printed_lines(alone: Sequence[str], together: Sequence[str]) -> Row:
    # A surplus line of the longer output is compared with "".
    line_pairs = itertools.zip_longest(alone, together, fillvalue="")
    unlike_pair = next(((a, b) for a, b in line_pairs if not is_same_line(a, b)), None)
    note = f"first: {unlike_pair[0][:60]!r} and {unlike_pair[1][:60]!r}" if unlike_pair else ""
    are_equal = unlike_pair is None and len(alone) == len(together)
    return Row("lines printed", str(len(alone)), str(len(together)), 0.0 if are_equal else np.inf, note)


def _compare_files(alone: Outcome, together: Outcome) -> Row:
    in_one_only = sorted(alone.files ^ together.files)
    note = f"only in one: {', '.join(in_one_only[:3])}" if in_one_only else ""
    if alone.shared and not in_one_only:
        note = f"less those in {', '.join(alone.shared[:3])}: too many files for a copy, so the originals are used"
    difference = np.inf if in_one_only else 0.0
    return Row("files written", str(len(alone.files)), str(len(together.files)), difference, note)


def format_table(rows: Sequence[Row], ranks: int, alone: Outcome, together: Outcome) -> str:
    """The table as text, with the times of both runs for information."""
    lines = [(row.quantity, row.alone, row.together, row.verdict, row.note) for row in rows]
    heading = ("", "alone", f"{ranks} ranks", "", "")
    times = ("seconds", f"{alone.seconds:.1f}", f"{together.seconds:.1f}", "", "with the start; not compared")
    return "\n".join(
        f"{quantity:<21} {alone_text:>22} {together_text:>22}   {verdict:<8} {note}".rstrip()
        for quantity, alone_text, together_text, verdict, note in (heading, *lines, times)
    )


def check_script(
    ranks: int, target: Sequence[str], alone: Sequence[str], together: Sequence[str], steps: int,
    may_share: bool = False, parent: str | os.PathLike[str] | None = None,
) -> int:  # fmt: skip
    """Run `target` by the commands `alone` and `together`, and print the table. Returns 1 if anything differs.

    `parent` is a folder for the mirrors, which all hosts see; None, a temporary folder, if all ranks run on this host.

    Raises click.UsageError, see `make_mirror`.
    """
    with (
        child_process.handle_signals((signal.SIGTERM, signal.SIGHUP), child_process.exit_for_signal),
        started.make_place(parent, "matex-check-") as temporary_folder,
    ):
        outcomes = []
        folder = temporary_folder / "run"  # the same path for both runs, because a script may print it
        for run_name, command, size in (("alone", alone, 1), (f"on {ranks} ranks", together, ranks)):
            print(f"matex: {steps} steps {run_name} ...", flush=True)
            outcomes.append(run_once(command, target, steps, folder, Path.cwd(), size, may_share))
            folder.rename(temporary_folder / run_name)
            if run_name == "alone" and outcomes[0].code:
                print(
                    f"matex: the script failed alone. It ran as a copy at {folder / 'mirror'}, and the folders above "
                    "the current one are missing: start from the uppermost folder that the script uses",
                    flush=True,
                )
    rows = compare_outcomes(*outcomes)
    print(format_table(rows, ranks, *outcomes))
    differences = [row.quantity for row in rows if row.verdict == "differs"]
    if outcomes[0].code or outcomes[1].code:
        differences.insert(0, "a run failed, its message is above")
    elif not outcomes[0].figures:
        differences.insert(0, "no training step was seen")
    print("check: " + ("differs: " + ", ".join(differences) if differences else "ok"))
    return 1 if differences else 0
