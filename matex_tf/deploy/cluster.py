"""The operations that every cluster has (`Cluster`), and the submission of a job script (`BatchCluster`)."""

from __future__ import annotations

import abc
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, ClassVar, Generic

from matex_tf.deploy import following, run_folder
from matex_tf.deploy.job import ENDED, FORGOTTEN, Job, JobError, State, UnreachableError, run_scheduler
from matex_tf.deploy.options import AnyOptions
from matex_tf.deploy.refusals import Refusal, explain_refusal
from matex_tf.world import task_environment


class Cluster(abc.ABC, Generic[AnyOptions]):
    """A kind of cluster. All methods raise JobError, or UnreachableError if the cluster does not answer now."""

    kind: ClassVar[type[Any]]  # the class of the options of a job
    sees_files: ClassVar[bool] = True  # whether its nodes see the files of this machine

    @abc.abstractmethod
    def preview_job(self, options: AnyOptions, target: Sequence[str]) -> str:
        """The text of the job that `submit_job` would submit."""

    @abc.abstractmethod
    def submit_job(self, options: AnyOptions, target: Sequence[str]) -> Job:
        """Queue a job that runs `target`. After a JobError, no job and no folder remain.

        After an UnreachableError, it is unknown whether the job is queued.
        """

    @abc.abstractmethod
    def find_state(self, job: Job) -> State:
        """The state of the job."""

    @abc.abstractmethod
    def end_job(self, job: Job) -> None:
        """End the job, or remove it from the queue."""

    @abc.abstractmethod
    def describe_job(self, job: Job, options: AnyOptions) -> str:
        """A line about a job that was submitted."""

    def find_newest(self, job: Job) -> Job:
        """The job that is the last one of the run of `job`."""
        return job

    def follow_job(self, job: Job, shows_output: bool = True) -> int:
        """Copy the job's output until the job ends. Returns its exit code."""
        return following.follow_job(job, lambda: self.find_state(job), self.make_reader(job), shows_output)

    def make_reader(self, job: Job) -> Callable[[], bytes]:
        """A function that returns the output since its last call."""
        return run_folder.make_reader(job.folder)

    def find_records(self, job: Job) -> str:
        """The folder with the records of the run, for `matex top`. Raises JobError if this machine does not see it."""
        if job.folder:
            return job.folder
        try:
            text = f"job {job.id} {self.find_state(job)}"
        except JobError as error:
            text = str(error)
        raise JobError(f"{text}\nThe folder of that run is unknown here: name it, for example runs/train-1")

    def cancel_job(self, job: Job) -> None:
        """End the job. Raises JobError also if it has already ended."""
        check_cancellable(job, self.find_state(job))
        self.end_job(job)


def check_cancellable(job: Job, state: State) -> None:
    """Raises JobError if the job has ended, and holds no nodes."""
    if state.phase in (ENDED, FORGOTTEN) and not state.holds_nodes:
        raise JobError(f"{job.id} {state}: there is nothing to cancel")


class BatchCluster(Cluster[AnyOptions]):
    """A cluster whose jobs are shell scripts. Class variables of a subclass hold its commands and messages."""

    submit_command: ClassVar[tuple[str, ...]]
    reads_standard_input: ClassVar[bool] = False  # whether the script is the standard input of the submit command
    number_pattern: ClassVar[re.Pattern[str]]  # its first group is the job id in the output of the submit command
    list_command: ClassVar[str]  # the command with which a user lists jobs
    refusals: ClassVar[tuple[Refusal, ...]]  # messages about refused jobs, with their meaning

    @abc.abstractmethod
    def format_job(self, options: AnyOptions, target: Sequence[str], folder: str) -> str:
        """The script of a job that runs `target`. `folder` is that of the run, seen from the folder of submission."""

    @abc.abstractmethod
    def check_job(self, options: AnyOptions, target: Sequence[str]) -> None:
        """Print notes about the job before it is submitted. Raises JobError."""

    def preview_job(self, options: AnyOptions, target: Sequence[str]) -> str:
        return self.format_job(options, target, str(run_folder.propose_folder(options.name)))

    def submit_job(self, options: AnyOptions, target: Sequence[str]) -> Job:
        self.check_commands()
        self.check_job(options, target)
        folder = run_folder.make_folder(options.name)
        try:
            environment = task_environment.remove_job_variables(os.environ)  # a job may submit another one
            return self.submit_script(self.format_job(options, target, str(folder)), folder, options, env=environment)
        except BaseException:
            # The script remains if its job may be queued. Then the job needs the folder.
            if not (folder / run_folder.SCRIPT).exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def submit_script(self, text: str, folder: Path, options: AnyOptions, **process_options: Any) -> Job:
        """Queue the job script `text`, which is kept in `folder`, with `process_options` (`cwd` and `env`).

        Raises:
            JobError: the job was refused. No job and no script remain.
            UnreachableError: it is unknown whether the job is queued. Its script remains.
        """
        script, job = folder / run_folder.SCRIPT, None
        try:
            script.write_text(text, encoding="utf-8", errors="surrogateescape")
            command = [*self.submit_command, *self.list_submit_words(options, str(folder))]
            command += [] if self.reads_standard_input else [str(script)]
            answer = self.ask(*command, standard_input=text if self.reads_standard_input else "", **process_options)
            number_match = self.number_pattern.search(answer.stdout)
            if answer.returncode or not number_match:
                raise JobError(explain_refusal(self.submit_command[0], self.read_message(answer), self.refusals))
            job = Job(number_match.group(1), str(folder))
            run_folder.write_note(folder, options.get_kind(), job.id)
        except BaseException as error:
            if self.withdraw_script(script, job, error):
                script.unlink(missing_ok=True)
                raise
            advice = f"check with `{self.list_command}` whether {script} was queued"
            if isinstance(error, JobError):
                raise UnreachableError(f"{error}: {advice}") from None
            following.print_line(advice)
            raise
        return job

    def list_submit_words(self, options: AnyOptions, folder: str) -> list[str]:
        """The options of the submit command, apart from those in the script."""
        return []

    def withdraw_script(self, script: Path, job: Job | None, error: BaseException) -> bool:
        """After an `error`, make sure that no job of `script` is queued. False: this is unknown.

        job: None if the submit command has not told its id.
        """
        if job is not None:  # without its note, the job must not run
            try:
                self.end_job(job)
            except JobError:
                return False
        # The submit command goes on after a time-out and after Ctrl-C (`ask`), and may queue the job.
        return job is not None or not isinstance(error, (UnreachableError, KeyboardInterrupt))

    def check_commands(self) -> None:
        """Raises JobError if this machine does not have the commands."""
        if shutil.which(self.submit_command[0]) is None:
            raise JobError(f"there is no {self.submit_command[0]} on this machine. {self.advice}")

    @property
    def advice(self) -> str:
        """What to do on a machine without the commands."""
        return f"Submit from a login node of a cluster with {self.kind.__name__}, or load its module"

    def ask(self, *command: str, **process_options: Any) -> CompletedProcess[str]:
        """Run a command in its own session: Ctrl-C must not end it, because it may have queued the job already."""
        return run_scheduler(command, self.advice, start_new_session=True, **process_options)

    def read_message(self, answer: CompletedProcess[str]) -> str:
        """The message of a command that failed."""
        return answer.stderr.strip() or answer.stdout.strip()

    def find_job(self, number: str) -> Job:
        """The job with this number; its folder comes from the local notes."""
        return Job(number, run_folder.find_folder(self.kind.get_kind(), number))
