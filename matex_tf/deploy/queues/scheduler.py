"""The common part of PBS, LSF and Flux: job options, job script, submission and following.

Unlike Slurm, these schedulers neither warn a script of its time limit nor requeue it. The script therefore does both: a
timer warns the run, and the script submits a successor job, which waits for the end of its own job.
"""

from __future__ import annotations

import abc
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, ClassVar

from matex_tf.deploy import following, run_folder, shell_text
from matex_tf.deploy.job import (
    ENDED,
    FORGOTTEN,
    RUNNING,
    WAITING,
    Job,
    JobError,
    State,
    UnreachableError,
    format_count,
    run_scheduler,
)
from matex_tf.deploy.options import Options, parse_time
from matex_tf.deploy.sbatch.messages import list_available
from matex_tf.world import task_environment

SCRIPT, OWN_OUTPUT = "job.sh", "scheduler-output"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, kw_only=True)
class Queued(Options):
    """The options of a PBS, LSF or Flux job. `option`: further options of the submit command, one line each: `-l
    mem=8gb`.
    """

    account: str = ""
    queue: str = ""
    option: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cpus and not re.fullmatch(r"[1-9][0-9]*", str(self.cpus)):
            raise ValueError(f"expected cpus to be a whole number, 1 or more, of each rank; given {self.cpus!r}")
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


@dataclass(frozen=True)
class Refusal:
    """A text that identifies a refusal, its meaning, and the command that lists valid choices."""

    sign: str
    means: str
    are: str = ""
    command: tuple[str, ...] = ()


class Scheduler(abc.ABC):
    """A scheduler: class variables hold shell text and messages, methods are pure functions of the scheduler's output.

    In shell text, $job is the id of the running job and `{script}` the path of its script.
    """

    kind: ClassVar[type[Queued]]
    title: ClassVar[str]
    head: ClassVar[str]
    """The prefix of an option line in the script."""
    own_number: ClassVar[str]
    """Shell text that expands to the id of the running job."""
    opening: ClassVar[str] = ""
    """The first lines of the script."""
    hosts: ClassVar[str]
    """Shell text that prints the running job's hosts, one a line; repetitions are allowed."""
    again: ClassVar[str]
    """Shell text that submits the successor job and prints its id."""
    find_number: ClassVar[re.Pattern[str]]
    """Applied to the output of the submit command; its only group is the job id."""
    refusals: ClassVar[tuple[Refusal, ...]]
    commands: ClassVar[tuple[str, ...]]
    """The commands that submit, list and cancel jobs."""
    unknown: ClassVar[re.Pattern[str]]
    """The scheduler's message about an unknown or forgotten job."""

    # Abstract methods: one scheduler's commands and output

    @abc.abstractmethod
    def list_options(self, asked: Queued, folder: str) -> list[str]:
        """The option lines of a job whose run has the `folder`. The last of several equal options takes effect."""

    @abc.abstractmethod
    def make_submit_command(self, script: str) -> tuple[list[str], bool]:
        """The command that submits `script`, and whether it reads the script from standard input."""

    @abc.abstractmethod
    def list_state_commands(self, number: str) -> list[list[str]]:
        """The commands that describe a job. Each further command is tried if the one before does not know the job."""

    @abc.abstractmethod
    def read_state(self, text: str) -> State | None:
        """The state of a job from the output of such a command; None if the output describes no job."""

    @abc.abstractmethod
    def make_cancel_command(self, number: str) -> list[str]:
        """The command that ends a job or removes it from the queue."""

    # Common methods

    def format_job(self, asked: Queued, target: Sequence[str], folder: str) -> str:
        """The script of a job that runs `target`. `folder` is the folder of the run, relative to the folder of
        submission, and needs no quotes, which schedulers read differently: `run_folder.propose_folder` names it.
        """
        lines = [f"{self.head} {line}\n" for line in self.list_options(asked, folder)]
        note = run_folder.format_note(asked.get_kind(), "$job").strip().replace('"', '\\"')
        keep = _KEEP_NOTE.format(note=note)
        before = _NOTING.format(code=os.EX_CONFIG, number=self.own_number, keep=keep)
        if asked.time:
            seconds = parse_time(asked.time)
            before += _TIMER.format(seconds=seconds - shell_text.compute_warning(asked.time))
        before += "".join(f"{line}\n" for line in asked.setup)
        command = shlex.join(asked.make_command([]))
        if asked.nodes > 1:
            before += _HOSTS.format(hosts=self.hosts, slots=asked.ranks_per_node, nodes=asked.nodes, code=os.EX_CONFIG)
            command += ' --hostfile "$run_folder/hosts"'
        after = _AGAIN.format(
            again=os.EX_TEMPFAIL, submit=self.again.format(script=f"{folder}/{SCRIPT}"), keep=keep, title=self.title
        )
        return shell_text.format_script(
            "".join(lines) + self.opening,
            shell_text.quote_folder(folder),
            before + shell_text.RUN_VARIABLES,
            f"{command} {shlex.join(target)}",
            (_END_TIMER if asked.time else "") + after,
        )

    def submit_job(self, asked: Queued, target: Sequence[str]) -> Job:
        """Queue a job that runs `target`.

        Raises:
            JobError: the scheduler refused the job; no job and no folder remain.
            UnreachableError: it is unknown whether the job is queued. Its script remains.
        """
        if shutil.which(self.commands[0]) is None:
            raise JobError(f"there is no {self.commands[0]} on this machine. {self._get}")
        if not asked.cpus:
            following.print_line(
                f"without --cpus the job has whole nodes, and requests 1 core for each rank from {self.title}"
            )
        if not asked.time:
            following.print_line(f"without --time, the run is not warned of {self.title}'s time limit")
        folder = run_folder.make_folder(asked.name)
        script = folder / SCRIPT
        try:
            script.write_text(self.format_job(asked, target, str(folder)), encoding="utf-8", errors="surrogateescape")
            words, is_input = self.make_submit_command(str(script))
            given = script.read_text(encoding="utf-8", errors="surrogateescape") if is_input else None
            environment = task_environment.remove_job_variables(os.environ)
            answer = self._ask(words, given, env=environment)
            found = self.find_number.search(answer.stdout)
            if answer.returncode or not found:
                raise JobError(self.explain_refusal(answer.stderr.strip() or answer.stdout.strip()))
            run_folder.write_note(folder, asked.get_kind(), found.group(1))
        except UnreachableError as error:
            raise UnreachableError(f"{error}: check with `{self.commands[1]}` whether {script} was queued") from None
        except KeyboardInterrupt:
            following.print_line(f"check with `{self.commands[1]}` whether {script} was queued")
            raise
        except Exception:
            run_folder.remove_folder(folder)
            raise
        return Job(found.group(1), str(folder))

    @property
    def _get(self) -> str:
        return f"Submit from a login node of a cluster with {self.title}, or load its module"

    def _ask(self, words: Sequence[str], given: str | None = None, **where: Any) -> CompletedProcess[str]:
        """Run a command in its own session, so that Ctrl-C does not end it: an interrupted command may have queued the
        job.
        """
        return run_scheduler(words, self._get, given, start_new_session=True, **where)

    def explain_refusal(self, text: str) -> str:
        """The scheduler's message about a refused job, its meaning, and the valid choices."""
        said = f"{self.commands[0]}: {text or 'no number of a job, and no reason'}"
        for one in self.refusals:
            if one.sign.lower() in text.lower():
                there = list_available(one.command) if one.command else ""
                return f"{said}\nThat is: {one.means}." + (f" {one.are}: {there}" if there else "")
        return said

    def find_state(self, job: Job) -> State:
        """The state of the job, or of the last successor job of its run.

        Raises:
            JobError: the scheduler's commands do not exist.
            UnreachableError: the scheduler does not answer now.
        """
        current = self.find_newest(job)
        now = self._ask_state(current)
        # A job notes its successor before it ends. The note is therefore read after the end of the job is known.
        while now.phase in (ENDED, FORGOTTEN) and (newest := self.find_newest(job)) != current:
            current = newest
            now = self._ask_state(current)
        return now if current == job else replace(now, words=f"{now.words}, as job {current.id}")

    def _ask_state(self, job: Job) -> State:
        for words in self.list_state_commands(job.id):
            answer = self._ask(words)
            if answer.returncode == 0 and (found := self.read_state(answer.stdout)):
                return self._add_exit_code(job, found)
            said = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
            if said and not self.unknown.search(" ".join(said)):
                raise UnreachableError(f"{words[0]}: {said[-1]}")
        ended = State(FORGOTTEN, f"is not known to {self.title}, or no longer; its end is unknown")
        return self._add_exit_code(job, ended)

    def _add_exit_code(self, job: Job, now: State) -> State:
        """Complete the state of an ended job with the exit code from its script, if the scheduler has none."""
        if now.phase not in (ENDED, FORGOTTEN) or now.code is not None or not job.folder:
            return now
        noted = Path(job.folder, run_folder.EXIT_CODE)
        if not noted.is_file():
            return now
        return replace(
            now, phase=ENDED, words=now.words if now.phase == ENDED else "ENDED", code=int(noted.read_text())
        )

    def follow_job(self, job: Job, write: Callable[[bytes], object] | None = None) -> int:
        """Copy the output until the job and its successors have ended. Returns the exit code."""
        return following.follow_job(job, lambda: self.find_state(job), run_folder.make_reader(job.folder), write)

    def find_newest(self, job: Job) -> Job:
        """The newest job of the run, as its folder notes it."""
        noted = Path(job.folder, run_folder.NOTE)
        return replace(job, id=run_folder.read_note(noted.parent)[1].id) if job.folder and noted.is_file() else job

    def cancel_job(self, job: Job) -> None:
        """End the job, or remove it from the queue. Raises JobError."""
        answer = self._ask(self.make_cancel_command(self.find_newest(job).id))
        if answer.returncode:
            raise JobError(f"{self.commands[2]}: {answer.stderr.strip() or answer.stdout.strip()}")

    def find_job(self, number: str) -> Job:
        """The job with this number; its folder comes from the local notes."""
        return Job(number, run_folder.find_folder(self.kind.get_kind(), number))

    def describe_job(self, job: Job, asked: Queued) -> str:
        """A line that describes the submitted job."""
        where = f" in queue {asked.queue}" if asked.queue else ""
        limit = f", {asked.time}" if asked.time else ""
        size = f"{format_count(asked.nodes, 'node')}, {format_count(asked.ranks, 'rank')}"
        return f"{self.title} job {job.id}{where}: {size}{limit}; {job.folder}"


def make_state(states: Mapping[str, tuple[str, str]], letter: str, where: str, why: str, code: int | None) -> State:
    """The state of a job whose scheduler calls it `letter`. `states` maps letters to phase and word."""
    phase, word = states.get(letter, (WAITING, letter))
    if phase == RUNNING and where:
        word = f"{word} on {where}"
    if phase == WAITING and why:
        word = f"{word} ({why})"
    return State(phase, word, code=code if phase == ENDED else None)


# The note is replaced atomically, because a follower may read it at any time.
_KEEP_NOTE = 'echo "{note}" > "$run_folder/job.json.new" && mv "$run_folder/job.json.new" "$run_folder/job.json"'
# The script writes its own output file, because some schedulers copy the output only at the end of the job.
_NOTING = """\
[ -d "$run_folder" ] || {{ echo "matex: host $(hostname) does not see the folder of the run, $run_folder. Submit from \
a folder on a file system that all nodes share." >&2; exit {code}; }}
exec >> "$run_folder/output" 2>&1
job={number}
{keep}
"""
_TIMER = """\
(trap 'kill $clock; exit' TERM; sleep {seconds} & clock=$!; wait $clock; kill -USR1 $$) & timer=$!
"""
_END_TIMER = """\
kill $timer 2> /dev/null
"""
_HOSTS = """\
({hosts}) | awk '!seen[$1]++ {{ print $1 " slots={slots}" }}' > "$run_folder/hosts"
[ $(wc -l < "$run_folder/hosts") -eq {nodes} ] || {{ echo "matex: the job was to have {nodes} hosts, and has:" \
$(cut -d ' ' -f 1 "$run_folder/hosts") >&2; exit {code}; }}
"""
_AGAIN = """\
if [ $code -eq {again} ]; then
    kept=$([ -d "$run_folder/state" ] && echo "state kept" || echo "no state yet")
    printf 'matex: job %s %s after %d:%02d:%02d, %s\\n' "$job" \\
        "$([ -n "$asked" ] && echo asked to end || echo ended with exit code {again})" \\
        $((SECONDS / 3600)) $((SECONDS / 60 % 60)) $((SECONDS % 60)) "$kept"
    before=$job
    if job=$(set -o pipefail; {submit}) && [ -n "$job" ]; then
        {keep}
        echo "matex: job $before goes on as job $job"
        exit $code
    fi
    echo "matex: {title} took no job that goes on: $job. In $PWD, submit the script again" >&2
fi
"""
