"""Slurm, as a `Cluster`: its commands. `sbatch` has the job script, and the texts of the commands."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from matex_tf.deploy import following, run_folder
from matex_tf.deploy.cluster import BatchCluster
from matex_tf.deploy.job import ENDED, FORGOTTEN, STUCK, Job, JobError, State, UnreachableError, format_count
from matex_tf.deploy.refusals import list_choices
from matex_tf.deploy.sbatch import arrays, job_script, taken_options
from matex_tf.deploy.sbatch import messages as slurm_messages
from matex_tf.deploy.sbatch.job_script import Slurm

_UNKNOWN = "Invalid job id"  # the message of scontrol about an unknown or forgotten job


class SlurmCluster(BatchCluster[Slurm]):
    """Slurm, version 20.11 or later."""

    kind = Slurm
    submit_command = ("sbatch", "--parsable")
    number_pattern = re.compile(r"\A\s*(\d+)\s*(;[\s\S]*)?\Z")  # the name of a cluster may follow
    list_command = "squeue -u $USER"
    refusals = slurm_messages.REFUSALS
    advice = "Submit from a login node of the cluster, or load its module: `module load slurm`"

    # Submission

    def format_job(self, options: Slurm, target: Sequence[str], folder: str) -> str:
        return job_script.format_job(options, target, folder)

    def check_job(self, options: Slurm, target: Sequence[str]) -> None:
        self._check_dependency(options.dependency)
        _tell_unread_lines(target[0])
        if options.leaves_cores_to_slurm:
            following.print_line("without --cpus Slurm chooses the number of cores for each rank, often one")

    def _check_dependency(self, dependency: str) -> None:
        """Raises JobError if Slurm does not know a job of `dependency`, because sbatch would not wait for it."""
        # The jobs of "afterok:12:13+5" are 12 and 13: a number after "+" is a delay in minutes.
        for number in re.findall(r"(?<=[:?,])\d+", re.sub(r"\+\d+", "", dependency)):
            if _UNKNOWN in self.ask("scontrol", "show", "job", number).stderr:
                raise JobError(
                    f"Slurm knows no job {number}, or no longer, and would not wait for it: --dependency={dependency}. "
                    "`squeue -u $USER` lists your jobs; after a job that has completed, omit the option"
                )

    def submit_script(self, text: str, folder: Path, options: Slurm, **process_options: Any) -> Job:
        try:
            variables = process_options.get("env", os.environ)
            taken_options.check_environment(variables, self.list_submit_words(options, str(folder)))
        except ValueError as error:
            raise JobError(str(error)) from None
        if options.array:
            arrays.make_folders(folder, options.array)
        return super().submit_script(text, folder, options, **process_options)

    def list_submit_words(self, options: Slurm, folder: str) -> list[str]:
        """The options of the script once more: on the command line they override environment variables."""
        return job_script.list_words(options, folder)

    def withdraw_script(self, script: Path, job: Job | None, error: BaseException) -> bool:
        try:
            for number in self.find_queued(script):
                self.ask("scancel", number)
        except UnreachableError:
            return False
        except JobError:
            pass  # this machine has no squeue, so no sbatch either, or it belongs to no cluster: no job was queued
        return True

    def find_queued(self, script: Path) -> list[str]:
        """The ids of this user's waiting and running jobs of `script`. Raises JobError, UnreachableError."""
        # %F is the id of a job, and of an array as a whole.
        answer = self.ask("squeue", f"--user={os.getuid()}", "--noheader", "--format=%F %o")
        if answer.returncode:
            raise _make_query_error("squeue", answer.stderr)
        jobs = (line.partition(" ") for line in answer.stdout.splitlines())
        return [number for number, _, command in jobs if os.path.realpath(command) == os.path.realpath(script)]

    def read_message(self, answer: CompletedProcess[str]) -> str:
        return slurm_messages.strip_prefixes(super().read_message(answer))

    def describe_job(self, job: Job, options: Slurm) -> str:
        partition_text = f" on partition {options.partition}" if options.partition else ""
        limit_text = f", {options.time}" if options.time else ""
        node = "whole node" if options.takes_whole_nodes else "node"
        size_text = f"{format_count(options.nodes, node)}, {format_count(options.ranks, 'rank')}"
        if options.array:
            size_text = f"{format_count(len(job_script.parse_array(options.array)), 'task')}, each of {size_text}"
        return f"job {job.id}{partition_text}: {size_text}{limit_text}; {job.folder}"

    # State

    def find_state(self, job: Job) -> State:
        state = self._ask_state(job)
        output_path = Path(job.folder, "output").absolute()
        if state.words != "FAILED" or not job.folder or output_path.is_file():
            return state
        meaning = (
            f"it has no output, {output_path} does not exist. Does the node on which it started see that folder? "
            "Submit from a folder on a file system that all nodes share"
        )
        return replace(state, meaning=meaning)

    def _ask_state(self, job: Job) -> State:
        """The state of the job: from `scontrol`, or from `_find_ended_state` if `scontrol` no longer knows the job.

        The state of a job array is combined from its tasks, each of which has a folder.
        """
        # The user's SLURM_TIME_FORMAT may differ. SLURM_BITSTR_LEN=0: the tasks' numbers are not abbreviated.
        format_variables = {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
        answer = self.ask("scontrol", "show", "job", job.id, env={**os.environ, **format_variables})
        is_unknown = _UNKNOWN in answer.stderr + answer.stdout
        tasks, task_states = arrays.list_folders(job.folder), slurm_messages.read_states(answer.stdout)
        # An array has folders, unless this machine does not see them.
        if len(task_states) > 1 or (tasks and (answer.returncode == 0 or is_unknown)):
            return arrays.combine_states(task_states, tasks)
        state = slurm_messages.read_state(answer.stdout) if answer.returncode == 0 else None
        if state is None:
            if is_unknown:
                return self._find_ended_state(job)
            raise _make_query_error("scontrol", answer.stderr or answer.stdout)
        # STUCK: the job waits for what does not come by itself, for example because the partition has too few nodes.
        if state.phase == STUCK and (partitions := list_choices(slurm_messages.LIMITS)):
            return replace(
                state, meaning=f"{state.meaning}. Partitions, their nodes, cores and limits are: {partitions}"
            )
        if state.phase == ENDED and state.restarts:
            # The job took the time since its submission. Slurm itself counts from the last requeue.
            submitted_at = run_folder.find_submit_time(job.folder)
            ended_at = slurm_messages.parse_moment(answer.stdout, "EndTime")
            if submitted_at is not None and ended_at is not None:
                return replace(state, seconds=ended_at - submitted_at)
        return state

    def _find_ended_state(self, job: Job) -> State:
        """The state of a job that `scontrol` no longer knows.

        It comes from Slurm's accounting (`sacct`), or from the exit code in the folder of the run; FORGOTTEN if neither
        has the job's end.
        """
        with contextlib.suppress(JobError):
            sacct_options = [
                "--noheader",
                "--allocations",
                "--parsable2",
                f"--jobs={job.id}",
                "--format=State,ExitCode",
            ]
            answer = self.ask("sacct", *sacct_options)
            states = slurm_messages.read_ends(answer.stdout) if answer.returncode == 0 else []
            if len(states) > 1:  # of the tasks of an array whose folder is unknown
                return arrays.combine_states({str(task): state for task, state in enumerate(states)}, [])
            if states:
                return states[0]
        return run_folder.add_exit_code(
            job, State(FORGOTTEN, "is not known to Slurm, or no longer; its end is unknown")
        )

    def make_reader(self, job: Job) -> Callable[[], bytes]:
        tasks = arrays.list_folders(job.folder)
        return arrays.make_reader(tasks) if tasks else super().make_reader(job)

    def end_job(self, job: Job) -> None:
        self._cancel(job.id)

    def ask_to_end(self, job: Job) -> None:
        """Ask the running job to save its state and end, as before its time limit. Raises JobError."""
        self._cancel("--batch", "--signal=USR1", job.id)

    def _cancel(self, *arguments: str) -> None:
        answer = self.ask("scancel", *arguments)
        if answer.returncode or answer.stderr.strip():
            raise JobError(f"scancel: {self.read_message(answer)}")

    def find_job(self, number: str) -> Job:
        """The job with this number. Its folder comes from the local notes or from Slurm; "" if neither knows it."""
        if (job := super().find_job(number)).folder:
            return job
        with contextlib.suppress(UnreachableError):
            answer = self.ask("scontrol", "show", "job", number)
            output_match = re.search(r"^ +StdOut=(.*)/output$", answer.stdout, re.MULTILINE)
            folder = output_match.group(1) if output_match else ""
            # The output of an array's task is in the folder of the task, within the folder of the run. Each task also
            # has a number of its own, for which Slurm describes this task only.
            is_array = re.search(rf"^JobId=\d+ ArrayJobId={number} ", answer.stdout, re.MULTILINE)
            return Job(number, os.path.dirname(folder) if is_array else folder)
        return job

    def find_newest(self, job: Job) -> Job:
        """The newest job of `job`'s folder: the user may have submitted its script again by sbatch."""
        with contextlib.suppress(JobError):  # otherwise the folder's note is the best knowledge
            # The newest job has the highest number. If no job is queued, `job`, which is from the folder's note, stays.
            return replace(job, id=max(self.find_queued(Path(job.folder, run_folder.SCRIPT)), default=job.id, key=int))
        return job


SLURM = SlurmCluster()


def _tell_unread_lines(script: str) -> None:
    """Report #SBATCH lines in the script: sbatch reads only those of the generated job script."""
    with contextlib.suppress(OSError), open(script, encoding="utf-8", errors="replace") as file:
        for line in itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), file):
            if line.startswith(job_script.HEAD):
                message = f"{script}: sbatch does not read its {job_script.HEAD} lines; use --sbatch=OPTION instead"
                return following.print_line(message)


def _make_query_error(command: str, text: str) -> JobError:
    """The error for a Slurm command that has failed with the message `text`.

    It is a JobError if this machine belongs to no cluster. Else it is an UnreachableError: a later call may succeed.
    """
    message = f"{command}: {slurm_messages.strip_prefixes(text)}"
    if slurm_messages.is_without_cluster(text):
        return JobError(f"{message}\nThat is: {slurm_messages.NO_CLUSTER}.")
    return UnreachableError(message)
