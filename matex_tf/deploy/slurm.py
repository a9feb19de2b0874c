"""Jobs under Slurm: the script of a job as text, and how it is submitted, asked for, followed and cancelled."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from matex_tf.deploy import following, run_folder, slurm_messages
from matex_tf.deploy.job import (
    ENDED,
    FORGOTTEN,
    Job,
    JobError,
    State,
    UnreachableError,
    format_count,
    run_scheduler,
)
from matex_tf.deploy.options import Options, parse_time

WARNING = 120  # seconds before the time limit, at which ranks keep their state and end
SCRIPT = "job.sh"
GET = "Submit from a login node of the cluster, or load its module: `module load slurm`"
_ODD = re.compile(r"[^\w@%+=:,./-]", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Slurm(Options):
    """What a job takes of Slurm. `sbatch` are more options of sbatch, each a word: `--exclusive`."""

    account: str = ""
    partition: str = ""
    sbatch: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cpus and not re.fullmatch(r"[1-9][0-9]*", str(self.cpus)):
            raise ValueError(f"expected cpus to be a whole number, 1 or more, of each rank; given {self.cpus!r}")
        for word in self.sbatch:
            if not word.startswith("-") or not word.isprintable():
                raise ValueError(f"expected sbatch to be options such as --exclusive, each in one line; given {word!r}")


def format_job(asked: Slurm, target: Sequence[str], folder: str) -> str:
    """The script of a job that runs `target`. `folder` is that of the run, seen from where the job is submitted."""
    again = _AGAIN.format(again=os.EX_TEMPFAIL, folder=shlex.quote(folder))
    return format_script(asked, asked.make_command(target), folder, _KEPT, again)


def format_script(asked: Slurm, command: Sequence[str], folder: str, before: str = "", after: str = "") -> str:
    """The script of a job that runs `command`, with lines `before` it, and `after` it, where $code is its exit code.

    A `folder` that is not absolute is seen from where the job is submitted.
    """
    warning = min(WARNING, parse_time(asked.time) // 4) if asked.time else WARNING
    options = {
        "--job-name": asked.name,
        "--nodes": asked.nodes,
        "--ntasks-per-node": asked.ranks_per_node,
        "--cpus-per-task": asked.cpus,
        "--gpus-per-node": asked.gpus_per_node or "",
        "--time": asked.time,
        "--account": asked.account,
        "--partition": asked.partition,
        "--output": f"{folder}/output".replace("%", "%%"),
        "--open-mode": "append",
        "--signal": f"B:USR1@{warning}",
    }
    words = [*(f"{name}={value}" for name, value in options.items() if value != ""), "--requeue", *asked.sbatch]
    heads = "".join(f"#SBATCH {_quote_word(word)}\n" for word in words)
    look = (
        f"srun --nodes={asked.nodes} --ntasks={asked.nodes} --ntasks-per-node=1 "
        f'bash -c {shlex.quote(_LOOK)} look "$run_folder" || exit {os.EX_CONFIG}\n'
    )
    return _SCRIPT.format(
        heads=heads,
        folder=shlex.quote(folder) if os.path.isabs(folder) else f'"$PWD"/{shlex.quote(folder)}',
        setup="".join(f"{line}\n" for line in asked.setup),
        look=look if asked.nodes > 1 else "",
        before=before,
        command=shlex.join(command),
        after=after,
        again=os.EX_TEMPFAIL,
        signalled=128 + signal.SIGUSR1,
    )


def _quote_word(word: str) -> str:
    """A word as sbatch reads it after #SBATCH: blanks stand within quotes, backslashes before what ends them."""
    return '"{}"'.format(re.sub(r'(["\\])', r"\\\1", word)) if _ODD.search(word) else word


_LOOK = (
    '[ -d "$1" ] || { echo "matex: host $(hostname) does not see the folder of the run, $1. Submit from a folder on a '
    'file system that all nodes share." >&2; exit 1; }'
)
_KEPT = """\
export MATEX_STATE="$run_folder/state"
export MATEX_RECORD="$run_folder"
"""
# Only a run that asks again is put back.
_AGAIN = """\
if [ $code -eq {again} ]; then
    printf 'matex: job %s %s after %d:%02d:%02d, state kept; to be requeued (%d)\\n' "$SLURM_JOB_ID" \\
        "$([ -n "$asked" ] && echo asked to end || echo ended with exit code {again})" \\
        $((SECONDS / 3600)) $((SECONDS / 60 % 60)) $((SECONDS % 60)) $((${{SLURM_RESTART_COUNT:-0}} + 1))
    scontrol requeue "$SLURM_JOB_ID" && exit $code
    echo "matex: Slurm did not put job $SLURM_JOB_ID back; its state is kept. In $PWD, sbatch {folder}/job.sh" \\
        "goes on" >&2
fi
"""
# The shell waits in the background, so that it hears the warning. A run that was not ready for one ends by that signal.
_SCRIPT = """\
#!/bin/bash
{heads}run_folder={folder} child= asked=
trap 'asked=early; [ -z "$child" ] || {{ asked=told; kill -USR1 $child; }}' USR1
{setup}{look}{before}rm -f "$run_folder/exit-code"
{command} & child=$!
[ "$asked" != early ] || kill -USR1 $child
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
[ -z "$asked" ] || [ $code -ne {signalled} ] || code={again}
{after}echo $code > "$run_folder/exit-code"
exit $code
"""


def check_commands() -> None:
    """Raises JobError where this machine has no Slurm."""
    if shutil.which("sbatch") is None:
        raise JobError(f"there is no sbatch on this machine. {GET}")


def submit_job(asked: Slurm, target: Sequence[str]) -> Job:
    """The job, which waits in Slurm's queue.

    Raises:
        JobError: Slurm refused it; nothing of it is queued, and no folder of its is left.
    """
    folder = run_folder.make_folder(asked.name)
    try:
        return submit_script(format_job(asked, target, str(folder)), folder, asked.partition)
    except BaseException:
        if not (folder / SCRIPT).exists():
            run_folder.remove_folder(folder)
        raise


def submit_script(text: str, folder: Path, partition: str, **where: Any) -> Job:
    """Queue `text`, kept and noted in `folder`, as a job. `where` are the folder `cwd` and the environment `env`.

    Raises:
        JobError: Slurm refused it. Nothing of it is queued and its script is removed.
        UnreachableError: nobody knows whether it is queued. Its script stays.
    """
    script = folder / SCRIPT
    try:
        script.write_text(text, encoding="utf-8", errors="surrogateescape")
        answer = _ask("sbatch", "--parsable", str(script), **where)
        number = answer.stdout.strip().partition(";")[0]  # the name of a cluster may follow
        if answer.returncode or not number.isdigit():
            raise JobError(slurm_messages.explain_refusal(answer.stderr or answer.stdout, partition))
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
    return [number for number, _, command in jobs if command == os.path.abspath(script)]


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
    if answer.returncode == 0 and (found := slurm_messages.read_state(answer.stdout)):
        # Slurm counts from when a job was queued, and queued again.
        began = run_folder.find_submit_time(job.folder) if found.starts_again and found.phase == ENDED else None
        ended = slurm_messages.parse_moment(answer.stdout, "EndTime")
        return replace(found, seconds=ended - began) if began is not None and ended is not None else found
    if "Invalid job id" not in answer.stderr + answer.stdout:
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
    path = Path(job.folder, "output")
    code = following.follow_job(job, lambda: find_state(job), run_folder.make_reader(job.folder), write)
    if code and job.folder and not path.is_file():
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


def describe_job(job: Job, asked: Slurm) -> str:
    """What was submitted, in a line."""
    where = f" on partition {asked.partition}" if asked.partition else ""
    limit = f", {asked.time}" if asked.time else ""
    size = f"{format_count(asked.nodes, 'node')}, {format_count(asked.ranks, 'rank')}"
    return f"job {job.id}{where}: {size}{limit}; {job.folder}"
