"""Jobs under Slurm: how one is submitted, asked for, followed and cancelled."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from matex_tf.deploy import following, run_folder
from matex_tf.deploy.job import (
    ENDED,
    FORGOTTEN,
    STUCK,
    Job,
    JobError,
    State,
    UnreachableError,
    format_count,
    run_scheduler,
)
from matex_tf.deploy.sbatch import arrays, taken_options
from matex_tf.deploy.sbatch import messages as slurm_messages
from matex_tf.deploy.sbatch.job_script import HEAD, Slurm, format_job, list_words, parse_array
from matex_tf.world import task_environment

SCRIPT = "job.sh"
_FORGOTTEN = "Invalid job id"
GET = "Submit from a login node of the cluster, or load its module: `module load slurm`"


def check_commands() -> None:
    """Raises JobError where this machine has no Slurm."""
    if shutil.which("sbatch") is None:
        raise JobError(f"there is no sbatch on this machine. {GET}")


def submit_job(asked: Slurm, target: Sequence[str]) -> Job:
    """The job, which waits in Slurm's queue.

    Raises:
        JobError: Slurm refused it; nothing of it is queued, and no folder of its is left.
    """
    check_dependency(asked.dependency)
    tell_unread_lines(target[0])
    if asked.leaves_cores_to_slurm:
        following.print_line("without --cpus Slurm decides how many cores each rank gets: often one")
    folder = run_folder.make_folder(asked.name)
    try:
        if asked.array:
            arrays.make_folders(folder, asked.array)
        environment = task_environment.remove_job_variables(os.environ)  # of the job that submits another
        return submit_script(format_job(asked, target, str(folder)), folder, asked, env=environment)
    except BaseException:
        if not (folder / SCRIPT).exists():
            run_folder.remove_folder(folder)
        raise


def check_dependency(dependency: str) -> None:
    """Raises JobError where the job is to come after one that Slurm does not know: it would not wait for that one."""
    for number in re.findall(r"(?<=[:?,])\d+", re.sub(r"\+\d+", "", dependency)):
        if _FORGOTTEN in _ask("scontrol", "show", "job", number).stderr:
            raise JobError(
                f"Slurm knows no job {number}, or no longer, and would not wait for it: --dependency={dependency}. "
                "`squeue --me` lists yours; after one that has ended well, leave the option out"
            )


def tell_unread_lines(script: str) -> None:
    """Say so where the file `script` has lines for sbatch, which a job of ours does not read."""
    with contextlib.suppress(OSError), open(script, encoding="utf-8", errors="replace") as file:
        for line in itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), file):
            if line.startswith(HEAD):
                said = f"{script}: sbatch does not read its {HEAD} lines; --sbatch=OPTION says what stands there"
                return following.print_line(said)


def submit_script(text: str, folder: Path, asked: Slurm, **where: Any) -> Job:
    """Queue `text`, kept and noted in `folder`, as a job. `where` are the folder `cwd` and the environment `env`.

    What is `asked` stands on the command line, too, where no variable of the environment wins over it.

    Raises:
        JobError: Slurm refused it. Nothing of it is queued and its script is removed.
        UnreachableError: nobody knows whether it is queued. Its script stays.
    """
    script = folder / SCRIPT
    words = list_words(asked, str(folder))
    try:
        taken_options.check_environment(where.get("env", os.environ), words)
    except ValueError as error:
        raise JobError(str(error)) from None
    try:
        script.write_text(text, encoding="utf-8", errors="surrogateescape")
        answer = _ask("sbatch", "--parsable", *words, str(script), **where)
        number = answer.stdout.strip().partition(";")[0]  # the name of a cluster may follow
        if answer.returncode or not number.isdigit():
            raise JobError(slurm_messages.explain_refusal(answer.stderr or answer.stdout))
        run_folder.write_note(folder, "slurm", number)
    except BaseException as error:
        # sbatch that was interrupted, or had no answer in time, may have queued it all the same.
        left = _withdraw_script(script)
        if not left:
            script.unlink(missing_ok=True)
        elif isinstance(error, JobError):
            raise UnreachableError(f"{error}\n{left}") from None
        raise
    return Job(number, str(folder))


def _withdraw_script(script: Path) -> str:
    """Cancel whatever of this user's is queued to run `script`; what is to be said if nobody knows."""
    try:
        for number in find_queued(script):
            _ask("scancel", number)
    except UnreachableError as error:
        return f"{error}: look with `squeue --me` whether {script} was queued"
    except JobError:
        pass  # without squeue there is no sbatch either
    return ""


def find_queued(script: Path) -> list[str]:
    """The numbers of this user's jobs, which wait or run, of `script`. Raises JobError, UnreachableError."""
    queued = _ask("squeue", "--me", "--noheader", "--format=%i %o")
    if queued.returncode:
        raise _describe_silence("squeue", queued.stderr)
    jobs = (line.partition(" ") for line in queued.stdout.splitlines())
    return [number for number, _, command in jobs if os.path.realpath(command) == os.path.realpath(script)]


def _ask(*words: str, **where: Any) -> CompletedProcess[str]:
    """The answer of a command of Slurm's. Ctrl-C at the terminal is for us: sbatch that it ends may have queued."""
    return run_scheduler(words, GET, start_new_session=True, **where)


def _describe_silence(command: str, text: str) -> JobError:
    """The error of a command of Slurm's that did not answer: for now, or on this machine."""
    said = f"{command}: {slurm_messages.strip_prefixes(text)}"
    if slurm_messages.is_without_cluster(text):
        return JobError(f"{said}\nThat is: {slurm_messages.NO_CLUSTER}.")
    return UnreachableError(said)


def find_state(job: Job) -> State:
    """Where the job is.

    Raises:
        JobError: this machine belongs to no cluster; UnreachableError: Slurm does not answer now.
    """
    # Times of the day may be asked for otherwise.
    answer = _ask("scontrol", "show", "job", job.id, env={**os.environ, "SLURM_TIME_FORMAT": "standard"})
    tasks = arrays.list_folders(job.folder)
    if tasks and (answer.returncode == 0 or _FORGOTTEN in answer.stderr + answer.stdout):
        return arrays.combine_states(slurm_messages.read_states(answer.stdout), tasks)
    if answer.returncode == 0 and (found := slurm_messages.read_state(answer.stdout)):
        if found.phase == STUCK and (there := slurm_messages.list_available(slurm_messages.LIMITS)):
            return replace(found, means=f"{found.means}. Partitions, their nodes, cores and limits are: {there}")
        # Slurm counts from when a job was queued, and queued again.
        began = run_folder.find_submit_time(job.folder) if found.starts_again and found.phase == ENDED else None
        ended = slurm_messages.parse_moment(answer.stdout, "EndTime")
        return replace(found, seconds=ended - began) if began is not None and ended is not None else found
    if _FORGOTTEN not in answer.stderr + answer.stdout:
        raise _describe_silence("scontrol", answer.stderr or answer.stdout)
    return _find_ended_state(job)


def _find_ended_state(job: Job) -> State:
    """The end of a job that Slurm has let go of: what its accounting or the run's folder knows."""
    with contextlib.suppress(JobError):
        words = ["--noheader", "--allocations", "--parsable2", f"--jobs={job.id}", "--format=State,ExitCode"]
        answer = _ask("sacct", *words)
        *_, last = answer.stdout.splitlines() or [""]
        name, _, code = last.partition("|")
        if answer.returncode == 0 and name.split(" ")[0] in slurm_messages.ENDS:
            return State(ENDED, name, code=slurm_messages.parse_exit_code(name.split(" ")[0], code))
    if job.folder and (noted := Path(job.folder, run_folder.EXIT_CODE)).is_file():
        return State(ENDED, "ENDED", code=int(noted.read_text()))
    return State(FORGOTTEN, "is not known to Slurm, or no longer; how it ended is not known")


def follow_job(job: Job, write: Callable[[bytes], object] | None = None) -> int:
    """Copy what the job prints until it ends; its exit code."""
    path, words = Path(job.folder, "output"), ""

    def look_at_job() -> State:
        nonlocal words
        words = (now := find_state(job)).words
        return now

    tasks = arrays.list_folders(job.folder)
    reader = arrays.make_reader(tasks) if tasks else run_folder.make_reader(job.folder)
    code = following.follow_job(job, look_at_job, reader, write)
    if words == "FAILED" and job.folder and not path.is_file():
        following.print_line(
            f"{job.id} has printed nothing: {path.absolute()} is not there. Does the node on which it started see that "
            "folder? Submit from a folder on a file system that all nodes share"
        )
    return code


def cancel_job(job: Job) -> None:
    """End the job, which has not ended, or take it out of the queue. Raises JobError."""
    _cancel(job.id)


def ask_to_end(job: Job) -> None:
    """Have the job, which runs, keep its state and end, as before its time limit. Raises JobError."""
    _cancel("--batch", "--signal=USR1", job.id)


def _cancel(*words: str) -> None:
    answer = _ask("scancel", *words)
    if answer.returncode or answer.stderr.strip():
        raise JobError(f"scancel: {slurm_messages.strip_prefixes(answer.stderr)}")


def find_job(number: str) -> Job:
    """The job of this number, with the folder of its run where Slurm or a folder here tells it."""
    if folder := run_folder.find_folder("slurm", number):
        return Job(number, folder)
    with contextlib.suppress(UnreachableError):
        answer = _ask("scontrol", "show", "job", number)
        output = re.search(r"^ +StdOut=(.*)/output$", answer.stdout, re.MULTILINE)
        return Job(number, output.group(1) if output else "")
    return Job(number)


def find_newest(job: Job) -> Job:
    """The job that was queued last of those of `job`'s folder, of whose script anybody may make another by sbatch."""
    with contextlib.suppress(JobError):  # then what the folder notes is what is known
        queued = [int(number) for number in find_queued(Path(job.folder, SCRIPT)) if number.isdigit()]
        return replace(job, id=str(max(queued, default=job.id, key=int)))
    return job


def describe_job(job: Job, asked: Slurm) -> str:
    """What was submitted, in a line."""
    where = f" on partition {asked.partition}" if asked.partition else ""
    limit = f", {asked.time}" if asked.time else ""
    node = "whole node" if asked.takes_whole_nodes else "node"
    size = f"{format_count(asked.nodes, node)}, {format_count(asked.ranks, 'rank')}"
    if asked.array:
        size = f"{format_count(len(parse_array(asked.array)), 'task')}, each of {size}"
    return f"job {job.id}{where}: {size}{limit}; {job.folder}"
