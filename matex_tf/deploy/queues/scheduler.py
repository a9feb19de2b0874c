"""The common part of PBS, LSF and Flux; the modules `pbs`, `lsf` and `flux` have their commands, words and messages.

Unlike Slurm, these schedulers neither warn a script of its time limit nor requeue it. The script therefore does both: a
timer warns the run, and a successor job goes on with it, which starts when the present job has ended.
"""

from __future__ import annotations

import abc
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from matex_tf.deploy import following, run_folder, shell_text
from matex_tf.deploy.cluster import BatchCluster
from matex_tf.deploy.job import ENDED, FORGOTTEN, RUNNING, WAITING, Job, JobError, State, UnreachableError, format_count
from matex_tf.deploy.options import Options, declare, parse_time

# The file in the run's folder with the job's output as the scheduler writes it. The script itself writes to another
# file, `output` (see `_BEGIN`).
OWN_OUTPUT = "scheduler-output"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, kw_only=True)
class Queued(Options):
    """The options of a PBS, LSF or Flux job."""

    account: str = declare("", "The account of the job (Flux: bank, LSF: project).", "ACCOUNT")
    queue: str = declare("", "PBS, LSF, Flux: the queue.", "QUEUE")
    option: Sequence[str] = declare((), "An option of qsub, bsub or flux batch: '-l mem=8gb'.", "LINE")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("account", "queue"):
            if re.search(r"\s", getattr(self, name)):
                raise ValueError(f"expected {name} to be one word; given {getattr(self, name)!r}")
        for text in self.option:
            if not text.startswith("-") or not text.isprintable():
                raise ValueError(f"expected option to be one line that begins with -; given {text!r}")

    @property
    def node_cores(self) -> int:
        """The number of cores for the ranks of each node; without `cpus`, one core for each rank."""
        return self.ranks_per_node * int(self.cpus or 1)

    @property
    def plain_name(self) -> str:
        """The job name, restricted to characters that every scheduler accepts."""
        return _UNSAFE.sub("_", self.name) or "job"


class QueueCluster(BatchCluster[Queued]):
    """The base class of PBS, LSF and Flux. Class variables of a subclass hold commands and shell text.

    In shell text, $job is the id of the running job and `{script}` the path of its script. In `submit_successor`,
    $before is the id of the running job, which the successor waits for.
    """

    # Commands that describe the job whose id follows. Each is tried if the one before does not know the job.
    state_commands: ClassVar[tuple[tuple[str, ...], ...]]
    cancel_command: ClassVar[tuple[str, ...]]  # ends the job whose id follows, or removes it from the queue
    # For some phases of `State`: the scheduler's words for the state of a job, each with the word to print for it.
    words: ClassVar[Mapping[str, Mapping[str, str]]]
    option_prefix: ClassVar[str]  # the first word of an option line in the script
    opening: ClassVar[str] = ""  # the first lines of the script
    own_number: ClassVar[str]  # shell text that expands to the id of the running job
    hosts: ClassVar[str]  # shell text that prints the running job's hosts, one a line; repetitions are allowed
    submit_successor: ClassVar[str]  # shell text that submits the successor job and prints its id
    unknown_pattern: ClassVar[re.Pattern[str]]  # the scheduler's message about an unknown or forgotten job

    @abc.abstractmethod
    def list_options(self, options: Queued, folder: str) -> list[str]:
        """The option lines of a job whose run has the `folder`; "" stands for no option.

        The last of several equal options takes effect.
        """

    @abc.abstractmethod
    def read_state(self, text: str) -> State | None:
        """The state of a job from the output of a state command; None if the output describes no job."""

    def make_state(self, scheduler_word: str, hosts: str, reason: str, code: int | None) -> State:
        """The state of a job for a word of its scheduler. A job whose word is not in `words` counts as waiting.

        `hosts`, `reason` and `code` are of a running, a waiting and an ended job; "" and None: unknown.
        """
        phase, word = WAITING, scheduler_word
        for known_phase, words in self.words.items():
            if scheduler_word in words:
                phase, word = known_phase, words[scheduler_word]
        if phase == RUNNING and hosts:
            word = f"{word} on {hosts}"
        if phase == WAITING and reason:
            word = f"{word} ({reason})"
        return State(phase, word, code=code if phase == ENDED else None)

    def format_job(self, options: Queued, target: Sequence[str], folder: str) -> str:
        """The script: option lines, `opening`, `_BEGIN`, the lines of `setup`, the list of hosts, the timer, the
        variables of the run, the command, the end of the timer, and the submission of a successor.

        `shell_text` adds the trap for the warning before `_BEGIN`, and writes the exit code at the end. `folder` needs
        no quotes, which schedulers read differently, because `run_folder.propose_folder` names it.
        """
        lines = [line for line in self.list_options(options, folder) if line]
        option_lines = "".join(f"{self.option_prefix} {line}\n" for line in lines)
        write_note = shell_text.format_note(options.get_kind(), "$job")
        preparation = _BEGIN.format(
            code=os.EX_CONFIG, number=self.own_number, write_note=write_note, jobs=run_folder.JOBS
        )
        preparation += "".join(f"{line}\n" for line in options.setup)
        # The command without its target. `shlex.join` must not quote the host file, in which the shell replaces a name.
        command = shlex.join(options.make_command([]))
        if options.nodes > 1:
            preparation += _WRITE_HOSTS.format(
                hosts=self.hosts, slots=options.ranks_per_node, nodes=options.nodes, code=os.EX_CONFIG
            )
            command += ' --hostfile "$run_folder/hosts"'
        if options.time:
            timer_seconds = parse_time(options.time) - shell_text.compute_warning(options.time)
            preparation += _START_TIMER.format(seconds=timer_seconds)
        submit_text = self.submit_successor.format(script=f"{folder}/{run_folder.SCRIPT}")
        successor_lines = _SUBMIT_SUCCESSOR.format(submit=submit_text, write_note=write_note, title=self.kind.__name__)
        conclusion = _END_TIMER if options.time else ""
        conclusion += shell_text.format_again(job="$job", lines=successor_lines)  # only if the exit code is 75
        return shell_text.format_script(
            heads=option_lines + self.opening,
            folder=shell_text.quote_folder(folder),
            before=preparation + shell_text.RUN_VARIABLES,
            command=f"{command} {shlex.join(target)}",
            after=conclusion,
        )

    def check_job(self, options: Queued, target: Sequence[str]) -> None:
        title = self.kind.__name__
        if not options.cpus:
            note = f"without --cpus the job has whole nodes, and requests 1 core for each rank from {title}"
            following.print_line(note)
        if not options.time:
            following.print_line(f"without --time, the run is not warned of {title}'s time limit")

    def find_state(self, job: Job) -> State:
        """The state of the job, or of the last successor job of its run."""
        current_job = self.find_newest(job)
        state = self._ask_state(current_job)
        # A job notes its successor before it ends. The note is therefore read after the end of the job is known.
        while state.phase in (ENDED, FORGOTTEN) and (newest_job := self.find_newest(job)) != current_job:
            current_job = newest_job
            state = self._ask_state(current_job)
        return state if current_job == job else replace(state, words=f"{state.words}, as job {current_job.id}")

    def _ask_state(self, job: Job) -> State:
        """The state of this job, without its successors. Raises JobError, UnreachableError."""
        for command in self.state_commands:
            answer = self.ask(*command, job.id)
            if answer.returncode == 0 and (state := self.read_state(answer.stdout)):
                return run_folder.add_exit_code(job, state)
            message_lines = self.read_message(answer).splitlines()
            if message_lines and not self.unknown_pattern.search(" ".join(message_lines)):
                raise UnreachableError(f"{command[0]}: {message_lines[-1]}")
        return run_folder.add_exit_code(
            job, State(FORGOTTEN, f"is not known to {self.kind.__name__}, or no longer; its end is unknown")
        )

    def find_newest(self, job: Job) -> Job:
        """The last successor job, as the folder of the run notes it."""
        if not job.folder or not Path(job.folder, run_folder.NOTE).is_file():
            return job
        _, newest_job = run_folder.read_note(Path(job.folder))
        return replace(job, id=newest_job.id)

    def end_job(self, job: Job) -> None:
        answer = self.ask(*self.cancel_command, self.find_newest(job).id)
        if answer.returncode:
            raise JobError(f"{' '.join(self.cancel_command)}: {self.read_message(answer)}")

    def describe_job(self, job: Job, options: Queued) -> str:
        queue_text = f" in queue {options.queue}" if options.queue else ""
        limit_text = f", {options.time}" if options.time else ""
        size_text = f"{format_count(options.nodes, 'node')}, {format_count(options.ranks, 'rank')}"
        return f"{self.kind.__name__} job {job.id}{queue_text}: {size_text}{limit_text}; {job.folder}"


# The parts of the script. `shell_text` sets $run_folder (the run's folder), $code (the exit code of the command) and
# $asked (empty before the warning), and traps the signal USR1 as the warning.
# The script writes its output to a file of its own, because some schedulers copy the output only at the end of the job.
_BEGIN = """\
[ -d "$run_folder" ] || {{ echo "matex: host $(hostname) does not see the folder of the run, $run_folder. Submit from \
a folder on a file system that all nodes share." >&2; exit {code}; }}
exec >> "$run_folder/output" 2>&1
job={number}
{write_note}
echo "$job" >> "$run_folder/{jobs}"
"""
# The timer is a shell in the background. Its trap also ends its `sleep`, which would otherwise go on without it. The
# script does not exit between the start and the end of the timer. The seconds count from the start of the script.
_START_TIMER = """\
(trap 'kill $clock; exit' TERM; sleep $(({seconds} > SECONDS ? {seconds} - SECONDS : 0)) & clock=$!; wait $clock
kill -USR1 $$) & timer=$!
"""
_END_TIMER = """\
kill $timer 2> /dev/null
"""
# The hostfile of mpirun: each host once, with its number of ranks.
_WRITE_HOSTS = """\
({hosts}) | awk '!seen[$1]++ {{ print $1 " slots={slots}" }}' > "$run_folder/hosts"
[ $(wc -l < "$run_folder/hosts") -eq {nodes} ] || {{ echo "matex: the job was to have {nodes} hosts, and has:" \
$(cut -d ' ' -f 1 "$run_folder/hosts") >&2; exit {code}; }}
"""
_SUBMIT_SUCCESSOR = """\
    before=$job
    if job=$(set -o pipefail; {submit}) && [ -n "$job" ]; then
        {write_note}
        echo "matex: job $before goes on as job $job"
        exit $code
    fi
    echo "matex: {title} took no job that goes on: $job. In $PWD, submit the script again" >&2
"""
