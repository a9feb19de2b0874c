"""The folder of a run: `runs/NAME-1`, `runs/NAME-2`, ... in the folder of submission.

Its note, `job.json`, identifies the job: the kind of cluster, the job's id and namespace, and the time of submission.
`job.sh` is the job script, which writes the run's exit code into `exit-code` at its end. `output` has the run's output.
`jobs` has the ids of the jobs of PBS, LSF or Flux that have begun: the note has only the last one, and a user may know
the first.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from matex_tf.deploy.job import ENDED, FORGOTTEN, Job, State
from matex_tf.runtime import atomic

RUNS = Path("runs")
SCRIPT, NOTE, EXIT_CODE, JOBS = "job.sh", "job.json", "exit-code", "jobs"


def name_target(target: Sequence[str]) -> str:
    """The name of a run of `target`: that of the script without its ending, or of the module after `-m`."""
    return target[1] if target[0] == "-m" else Path(target[0]).stem


def propose_folder(name: str) -> Path:
    """The first unused folder for a run of this name. Its path has only ASCII letters, digits, `.`, `_`, `-`, `/`."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", name).strip(".") or "run"
    paths = (RUNS / f"{stem}-{number}" for number in itertools.count(1))
    return next(path for path in paths if not os.path.lexists(path))


def make_folder(name: str) -> Path:
    """Create a folder for a run of this name; safe against concurrent calls.

    The folder exists before submission, because Slurm opens the job's output there before its first command. The job's
    number is then still unknown and cannot be part of the name.
    """
    RUNS.mkdir(exist_ok=True)
    while True:
        folder = propose_folder(name)
        with contextlib.suppress(FileExistsError):  # another process has just created it: try the next number
            folder.mkdir()
            return folder


def make_reader(folder: str) -> Callable[[], bytes]:
    """A function that returns the run's output since its last call."""
    path, position = Path(folder, "output"), 0  # position: bytes that were read before

    def read_more() -> bytes:
        nonlocal position
        if not folder or not path.is_file():
            return b""
        with path.open("rb") as file:
            file.seek(position)
            chunk = file.read()
        position += len(chunk)
        return chunk

    return read_more


def read_tail(folder: str, size: int) -> bytes:
    """The last `size` bytes of the run's output; b"" if the job has not begun."""
    with contextlib.suppress(FileNotFoundError), Path(folder, "output").open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - size, 0))
        return file.read()
    return b""


def format_note(cluster: str, job: str, namespace: str = "", submitted: str = "") -> str:
    """The content of `job.json`. `submitted` is a time in seconds since 1970."""
    fields = {"cluster": cluster, "job": job, "namespace": namespace, "submitted": submitted}
    return json.dumps({name: value for name, value in fields.items() if value}) + "\n"


def write_note(folder: Path, cluster: str, job: str) -> None:
    with atomic.write_beside(str(folder / NOTE)) as temporary_path:  # a killed process leaves no partial note
        Path(temporary_path).write_text(format_note(cluster, job, submitted=f"{time.time():.0f}"))


def read_note(folder: Path) -> tuple[str, Job]:
    """The cluster and the job of the note. Raises OSError, or ValueError, KeyError, TypeError if it is invalid."""
    fields = json.loads((folder / NOTE).read_text())
    return fields["cluster"], Job(fields["job"], str(folder), fields.get("namespace", ""))


def find_submit_time(folder: str) -> float | None:
    """The time of submission, in seconds since 1970; None if unknown."""
    try:
        return float(json.loads(Path(folder, NOTE).read_text())["submitted"]) if folder else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_exit_code(folder: Path) -> int | None:
    """The exit code that the job script has written; None if it has not ended."""
    path = folder / EXIT_CODE
    text = path.read_text() if path.is_file() else ""
    return int(text) if text.endswith("\n") else None  # without a line end, the file is still being written


def add_exit_code(job: Job, state: State) -> State:
    """Add the exit code that the script has written to the state of a job that has ended, or that the scheduler has
    forgotten.
    """
    code = read_exit_code(Path(job.folder)) if job.folder else None
    if code is None or state.phase not in (ENDED, FORGOTTEN) or state.code is not None:
        return state
    # The script writes the file at its end, so a job that the scheduler has forgotten is known to have ended.
    return replace(state, phase=ENDED, words=state.words if state.phase == ENDED else "ENDED", code=code)


def _find_runs(job_id: str) -> Iterator[tuple[str, str]]:
    """The cluster and the folder of each run below `runs` that has a job with this id.

    Invalid notes are skipped: a full disk leaves incomplete ones.
    """
    for path in RUNS.glob(f"*/{NOTE}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            cluster, job = read_note(path.parent)
            jobs_path = path.with_name(JOBS)
            if job_id == job.id or (jobs_path.is_file() and job_id in jobs_path.read_text().split()):
                yield cluster, job.folder


def find_folder(cluster: str, job_id: str) -> str:
    """The folder of a job's run below `runs`; "" if there is none."""
    return next((folder for run_cluster, folder in _find_runs(job_id) if run_cluster == cluster), "")


def find_cluster(job_id: str) -> str:
    """The cluster of a job that has a folder below `runs`; "" if no job, or jobs of several clusters, have this id."""
    clusters = {cluster for cluster, _ in _find_runs(job_id)}
    return clusters.pop() if len(clusters) == 1 else ""
