"""Slurm jobs: submission, state, following and cancellation."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Sequence
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
from matex_tf.deploy.refusals import explain_refusal, list_choices
from matex_tf.deploy.sbatch import arrays, taken_options
from matex_tf.deploy.sbatch import messages as slurm_messages
from matex_tf.deploy.sbatch.job_script import HEAD, Slurm, format_job, list_words, parse_array
from matex_tf.world import task_environment

SCRIPT = "job.sh"
_UNKNOWN = "Invalid job id"  # the message of scontrol about an unknown or forgotten job
_ADVICE = "Submit from a login node of the cluster, or load its module: `module load slurm`"


def check_commands() -> None:
    """Raises JobError if this machine has no Slurm."""
    if shutil.which("sbatch") is None:
        raise JobError(f"there is no sbatch on this machine. {_ADVICE}")


def submit_job(options: Slurm, target: Sequence[str]) -> Job:
    """Queue a job that runs `target`.

    Raises:
        JobError: Slurm refused the job. No job and no folder remain.
        UnreachableError: it is unknown whether the job is queued. Its script remains, and so its folder.
    """
    check_dependency(options.dependency)
    tell_unread_lines(target[0])
    if options.leaves_cores_to_slurm:
        following.print_line("without --cpus Slurm chooses the number of cores for each rank, often one")
    folder = run_folder.make_folder(options.name)
    try:
        if options.array:
            arrays.make_folders(folder, options.array)
        environment = task_environment.remove_job_variables(os.environ)  # a job may submit another one
        return submit_script(format_job(options, target, str(folder)), folder, options, env=environment)
    except BaseException:
        # The script remains if its job may be queued. Then the job needs the folder.
        if not (folder / SCRIPT).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def check_dependency(dependency: str) -> None:
    """Raises JobError if Slurm does not know a job of `dependency`, because sbatch would not wait for it."""
    # The jobs of "afterok:12:13+5" are 12 and 13: a number after "+" is a delay in minutes.
    for number in re.findall(r"(?<=[:?,])\d+", re.sub(r"\+\d+", "", dependency)):
        if _UNKNOWN in _ask("scontrol", "show", "job", number).stderr:
            raise JobError(
                f"Slurm knows no job {number}, or no longer, and would not wait for it: --dependency={dependency}. "
                "`squeue -u $USER` lists your jobs; after a job that has completed, omit the option"
            )


def tell_unread_lines(script: str) -> None:
    """Report #SBATCH lines in the script: sbatch reads only those of the generated job script."""
    with contextlib.suppress(OSError), open(script, encoding="utf-8", errors="replace") as file:
        for line in itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), file):
            if line.startswith(HEAD):
                message = f"{script}: sbatch does not read its {HEAD} lines; use --sbatch=OPTION instead"
                return following.print_line(message)


def submit_script(text: str, folder: Path, options: Slurm, **process_options: Any) -> Job:
    """Queue the job script `text`, which is kept in `folder`, by sbatch with `process_options` (`cwd` and `env`).

    The options are repeated on the command line, where they override environment variables.

    Raises:
        JobError: Slurm refused the job. No job and no script remain.
        UnreachableError: it is unknown whether the job is queued. Its script remains.
    """
    script = folder / SCRIPT
    option_words = list_words(options, str(folder))
    try:
        taken_options.check_environment(process_options.get("env", os.environ), option_words)
    except ValueError as error:
        raise JobError(str(error)) from None
    try:
        script.write_text(text, encoding="utf-8", errors="surrogateescape")
        answer = _ask("sbatch", "--parsable", *option_words, str(script), **process_options)
        number = answer.stdout.strip().partition(";")[0]  # the name of a cluster may follow
        if answer.returncode or not number.isdigit():
            message = slurm_messages.strip_prefixes(answer.stderr or answer.stdout)
            raise JobError(explain_refusal("sbatch", message, slurm_messages.REFUSALS))
        run_folder.write_note(folder, "slurm", number)
    except BaseException as error:
        # An interrupted or unanswered sbatch may still have queued the job.
        withdraw_error = _withdraw_script(script)
        if not withdraw_error:
            script.unlink(missing_ok=True)
        elif isinstance(error, JobError):
            raise UnreachableError(f"{error}\n{withdraw_error}") from None
        raise
    return Job(number, str(folder))


def _withdraw_script(script: Path) -> str:
    """Cancel this user's queued jobs of `script`. Returns a message if the queue cannot be read, else ""."""
    try:
        for number in find_queued(script):
            _ask("scancel", number)
    except UnreachableError as error:
        return f"{error}: check with `squeue -u $USER` whether {script} was queued"
    except JobError:
        pass  # this machine has no squeue, so no sbatch either, or it belongs to no cluster: no job was queued
    return ""


def find_queued(script: Path) -> list[str]:
    """The ids of this user's waiting and running jobs of `script`. Raises JobError, UnreachableError."""
    # --me is of Slurm 20.11. %F is the id of a job, and of an array as a whole.
    answer = _ask("squeue", f"--user={os.getuid()}", "--noheader", "--format=%F %o")
    if answer.returncode:
        raise _make_query_error("squeue", answer.stderr)
    jobs = (line.partition(" ") for line in answer.stdout.splitlines())
    return [number for number, _, command in jobs if os.path.realpath(command) == os.path.realpath(script)]


def _ask(*command: str, **process_options: Any) -> CompletedProcess[str]:
    """Run a Slurm command in its own session: Ctrl-C must not end sbatch, which may have queued the job already."""
    return run_scheduler(command, _ADVICE, start_new_session=True, **process_options)


def _make_query_error(command: str, text: str) -> JobError:
    """The error for a Slurm command that has failed with the message `text`.

    It is a JobError if this machine belongs to no cluster. Else it is an UnreachableError: a later call may succeed.
    """
    message = f"{command}: {slurm_messages.strip_prefixes(text)}"
    if slurm_messages.is_without_cluster(text):
        return JobError(f"{message}\nThat is: {slurm_messages.NO_CLUSTER}.")
    return UnreachableError(message)


def find_state(job: Job) -> State:
    """The state of the job: from `scontrol`, or from `_find_ended_state` if `scontrol` no longer knows the job.

    The state of a job array is combined from its tasks, each of which has a folder.

    Raises:
        JobError: this machine belongs to no cluster.
        UnreachableError: Slurm does not answer now.
    """
    # The user's SLURM_TIME_FORMAT may differ. SLURM_BITSTR_LEN=0: the numbers of an array's tasks are not abbreviated.
    format_variables = {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
    answer = _ask("scontrol", "show", "job", job.id, env={**os.environ, **format_variables})
    is_unknown = _UNKNOWN in answer.stderr + answer.stdout
    tasks, task_states = arrays.list_folders(job.folder), slurm_messages.read_states(answer.stdout)
    # An array has folders, unless this machine does not see them.
    if len(task_states) > 1 or (tasks and (answer.returncode == 0 or is_unknown)):
        return arrays.combine_states(task_states, tasks)
    state = slurm_messages.read_state(answer.stdout) if answer.returncode == 0 else None
    if state is None:
        if is_unknown:
            return _find_ended_state(job)
        raise _make_query_error("scontrol", answer.stderr or answer.stdout)
    # STUCK: the job waits for what does not come by itself, for example because the partition has too few nodes.
    if state.phase == STUCK and (partitions := list_choices(slurm_messages.LIMITS)):
        return replace(state, meaning=f"{state.meaning}. Partitions, their nodes, cores and limits are: {partitions}")
    if state.phase == ENDED and state.restarts:
        # The job took the time since its submission. Slurm itself counts from the last requeue.
        submitted_at = run_folder.find_submit_time(job.folder)
        ended_at = slurm_messages.parse_moment(answer.stdout, "EndTime")
        if submitted_at is not None and ended_at is not None:
            return replace(state, seconds=ended_at - submitted_at)
    return state


def _find_ended_state(job: Job) -> State:
    """The state of a job that `scontrol` no longer knows.

    It comes from Slurm's accounting (`sacct`), or from the exit code in the folder of the run; FORGOTTEN if neither has
    the job's end.
    """
    with contextlib.suppress(JobError):
        sacct_options = ["--noheader", "--allocations", "--parsable2", f"--jobs={job.id}", "--format=State,ExitCode"]
        answer = _ask("sacct", *sacct_options)
        states = slurm_messages.read_ends(answer.stdout) if answer.returncode == 0 else []
        if len(states) > 1:  # of the tasks of an array whose folder is unknown
            return arrays.combine_states({str(task): state for task, state in enumerate(states)}, [])
        if states:
            return states[0]
    return run_folder.add_exit_code(job, State(FORGOTTEN, "is not known to Slurm, or no longer; its end is unknown"))


def follow_job(job: Job, shows_output: bool = True) -> int:
    """Copy the job's output until the job ends. Returns its exit code."""
    output_path, last_words = Path(job.folder, "output"), ""

    def look_at_job() -> State:
        nonlocal last_words
        state = find_state(job)
        last_words = state.words  # for the message after the end
        return state

    tasks = arrays.list_folders(job.folder)
    read_output = arrays.make_reader(tasks) if tasks else run_folder.make_reader(job.folder)
    exit_code = following.follow_job(job, look_at_job, read_output, shows_output)
    if last_words == "FAILED" and job.folder and not output_path.is_file():
        following.print_line(
            f"{job.id} has no output: {output_path.absolute()} does not exist. Does the node on which it started see "
            "that folder? Submit from a folder on a file system that all nodes share"
        )
    return exit_code


def cancel_job(job: Job) -> None:
    """End the job, or remove it from the queue. Raises JobError."""
    _cancel(job.id)


def ask_to_end(job: Job) -> None:
    """Ask the running job to save its state and end, as before its time limit. Raises JobError."""
    _cancel("--batch", "--signal=USR1", job.id)


def _cancel(*arguments: str) -> None:
    answer = _ask("scancel", *arguments)
    if answer.returncode or answer.stderr.strip():
        raise JobError(f"scancel: {slurm_messages.strip_prefixes(answer.stderr)}")


def find_job(number: str) -> Job:
    """The job with this number. Its folder comes from the local notes or from Slurm; "" if neither knows it."""
    if folder := run_folder.find_folder("slurm", number):
        return Job(number, folder)
    with contextlib.suppress(UnreachableError):
        answer = _ask("scontrol", "show", "job", number)
        output_match = re.search(r"^ +StdOut=(.*)/output$", answer.stdout, re.MULTILINE)
        folder = output_match.group(1) if output_match else ""
        # The output of an array's task is in the folder of the task, within the folder of the run. Each task also has a
        # number of its own, for which Slurm describes this task only.
        is_array = re.search(rf"^JobId=\d+ ArrayJobId={number} ", answer.stdout, re.MULTILINE)
        return Job(number, os.path.dirname(folder) if is_array else folder)
    return Job(number)


def find_newest(job: Job) -> Job:
    """The newest job of `job`'s folder: the user may have submitted its script again by sbatch."""
    with contextlib.suppress(JobError):  # otherwise the folder's note is the best knowledge
        # The newest job has the highest number. If no job is queued, `job`, which is from the folder's note, stays.
        return replace(job, id=max(find_queued(Path(job.folder, SCRIPT)), default=job.id, key=int))
    return job


def describe_job(job: Job, options: Slurm) -> str:
    partition_text = f" on partition {options.partition}" if options.partition else ""
    limit_text = f", {options.time}" if options.time else ""
    node = "whole node" if options.takes_whole_nodes else "node"
    size_text = f"{format_count(options.nodes, node)}, {format_count(options.ranks, 'rank')}"
    if options.array:
        size_text = f"{format_count(len(parse_array(options.array)), 'task')}, each of {size_text}"
    return f"job {job.id}{partition_text}: {size_text}{limit_text}; {job.folder}"
