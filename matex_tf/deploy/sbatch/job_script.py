"""The options and the script of a Slurm job. The script writes the note of the job, and may requeue itself."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf.deploy import run_folder, shell_text
from matex_tf.deploy.options import Options, declare
from matex_tf.deploy.sbatch import taken_options

HEAD = "#SBATCH"  # the first word of an option line
TASK = "task-"  # the prefix of the name of a task's folder, before the number of the task
# Shell text that expands to the job id, and to the id of a task of an array.
_JOB_NUMBER, _TASK_NUMBER = "$SLURM_JOB_ID", "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
MAX_TASKS = 10_000
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::([1-9]\d*))?)?")  # of task numbers: 3, 0-9 or 0-15:4
_MUST_QUOTE = re.compile(r"[^\w@%+=:,./-]", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Slurm(Options):
    """The options of a Slurm job.

    `array`: task numbers in sbatch's syntax (`0-3`, `1,5,9`, `0-99%4`). Each task has a folder of its own. `launcher`:
    `mpirun` starts the ranks through `matex run`, and `srun` without it.
    """

    account: str = declare("", "The account of the job (Flux: bank, LSF: project).", "ACCOUNT")
    partition: str = declare("", "Slurm: the partition.", "PARTITION")
    qos: str = declare("", "Slurm: the quality of service.", "NAME")
    constraint: str = declare("", "Slurm: required features of the nodes.", "FEATURES")
    gres: str = declare("", "Slurm: devices of each node: gpu:a100:4.", "LIST")
    dependency: str = declare("", "Slurm: jobs to wait for: afterok:4711.", "JOBS")
    exclusive: bool = declare(False, "Slurm: whole nodes, also with --cpus.")
    array: str = declare("", "Slurm: one run for each task: 0-9%4. SLURM_ARRAY_TASK_ID is its number.", "TASKS")
    launcher: str = declare("mpirun", "Slurm: mpirun, or srun on a cluster without mpirun.", "COMMAND")
    sbatch: Sequence[str] = declare((), "A further option of sbatch: --sbatch=--mem=8G.", "OPTION")

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in self.sbatch:
            if not word.startswith("-") or not word.isprintable():
                raise ValueError(f"expected sbatch to be options such as --qos=long, each in one line; given {word!r}")
        if "gpu" in self.gres and self.gpus_per_node:
            raise ValueError(
                f"gpus_per_node and gres={self.gres} both say how many GPUs each node has: give one of them"
            )
        if self.array:
            parse_array(self.array)
        if self.launcher not in ("mpirun", "srun"):
            raise ValueError(f"expected launcher to be mpirun or srun; given {self.launcher!r}")
        if self.launcher == "srun" and self.run:
            raise ValueError(f"launcher=srun does without `matex run`, of which run={' '.join(self.run)!r} are options")
        taken_options.check_words(self.sbatch, has_cpus=bool(self.cpus), has_gpus=bool(self.gpus_per_node))
        if any(line.lstrip().startswith(HEAD) for text in self.setup for line in text.splitlines()):
            raise ValueError(f"sbatch reads no {HEAD} in lines of setup: --sbatch=OPTION says what stands there")

    @property
    def further_words(self) -> list[str]:
        """The options of sbatch from the fields of the same names, and the words of `sbatch`."""
        named_values = {name: getattr(self, name) for name in ("qos", "constraint", "gres", "dependency")}
        option_words = [f"--{name}={value}" for name, value in named_values.items() if value]
        return [*option_words, *(["--exclusive"] if self.exclusive else []), *self.sbatch]

    def make_command(self, target: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """The command that starts all ranks of `target`, through `matex run` or by srun."""
        if self.launcher == "mpirun":
            return super().make_command(target, options)
        # Without PMIx, by which tasks of srun find each other, each task of Open MPI would be an MPI job of one rank.
        srun_command = ["srun", "--mpi=pmix", f"--nodes={self.nodes}", f"--ntasks={self.ranks}", "--kill-on-bad-exit=1"]
        srun_command.append(f"--ntasks-per-node={self.ranks_per_node}")
        # Since Slurm 22.05, srun no longer takes the number of cores from the job. A cluster may bind each task to one
        # core; without `cpus` the ranks distribute the cores of the node (`world.placement`).
        srun_command.append(f"--cpus-per-task={self.cpus}" if self.cpus else "--cpu-bind=none")
        return [*srun_command, *self._list_python_words(), "-m", "matex_tf", *target]

    def _list_python_words(self) -> list[str]:
        """The command of the Python of `matex`: /opt/bin/python for /opt/bin/matex or /opt/bin/python -m matex_tf..."""
        matex_command = shlex.split(self.matex) or ["matex"]  # without -m, the last word is the path of `matex`
        if "-m" in matex_command:
            return matex_command[: matex_command.index("-m")]
        return [*matex_command[:-1], os.path.join(os.path.dirname(matex_command[-1]), "python")]

    @property
    def takes_whole_nodes(self) -> bool:
        """Whether the job requests whole nodes: the default if no option limits its share of a node."""
        return not (self.cpus or self.gpus_per_node or taken_options.has_node_share(self.further_words))

    @property
    def leaves_cores_to_slurm(self) -> bool:
        """Whether the job shares its nodes and no option sets its number of cores."""
        return not (self.takes_whole_nodes or self.cpus or taken_options.has_core_count(self.further_words))


def parse_array(text: str) -> list[int]:
    """Parse the task numbers of an array: `0-3`, `1,5,9`, `0-15:4`; `%2` runs two at a time. Raises ValueError."""
    parts, _, max_concurrent = text.partition("%")
    numbers: dict[int, None] = {}
    for part in parts.split(","):
        match = _RANGE.fullmatch(part)
        if not match or ("%" in text and not re.fullmatch(r"[1-9]\d*", max_concurrent)):
            raise ValueError(f"expected array to be as 0-3, 1,5,9, 0-15:4 or 0-99%4 (four at a time); given {text!r}")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or (last - first) // step >= MAX_TASKS:
            raise ValueError(f"expected array to have 1 to {MAX_TASKS} tasks; given {text!r}")
        numbers |= dict.fromkeys(range(first, last + 1, step))
    return list(numbers)


def format_job(options: Slurm, target: Sequence[str], folder: str) -> str:
    """The script of a job that runs `target`. `folder` is that of the run, seen from where the job is submitted."""
    number = _TASK_NUMBER if options.array else _JOB_NUMBER
    requeue_lines = shell_text.format_again(
        job=number,
        lines=_REQUEUE.format(folder=shlex.quote(folder), script=run_folder.SCRIPT, number=number),
        text="; to be requeued (%d)",  # the end of a message; %d is `value`, the number of the restart
        value="$((${SLURM_RESTART_COUNT:-0} + 1))",
    )
    return format_script(options, options.make_command(target), folder, shell_text.RUN_VARIABLES, requeue_lines)


def format_script(
    options: Slurm, command: Sequence[str], folder: str, lines_before: str = "", lines_after: str = ""
) -> str:
    """The script of a job that runs `command` between further lines. In `lines_after`, $code is its exit code.

    A relative `folder` is relative to the folder of submission. Also called for the trials of `matex tune`.
    """
    number = _TASK_NUMBER if options.array else _JOB_NUMBER
    write_note = shell_text.format_note("slurm", number, "$submitted")
    preparation = _WRITE_NOTE.format(write_note=write_note, file=run_folder.NOTE, number=number)
    preparation += "".join(f"{line}\n" for line in options.setup)
    if options.nodes > 1:
        srun_command = f"srun --nodes={options.nodes} --ntasks={options.nodes} --ntasks-per-node=1"
        # On each node. "look" is $0 of the shell, the folder is $1.
        preparation += (
            f'{srun_command} bash -c {shlex.quote(_FOLDER_CHECK)} look "$run_folder" || exit {os.EX_CONFIG}\n'
        )
    return shell_text.format_script(
        heads="".join(f"{HEAD} {_quote_word(word)}\n" for word in list_words(options, folder)),
        folder=shell_text.quote_folder(folder) + (f'/{TASK}"$SLURM_ARRAY_TASK_ID"' if options.array else ""),
        before=preparation + lines_before,
        command=shlex.join(command),
        after=lines_after,
    )


def list_words(options: Slurm, folder: str) -> list[str]:
    """The options of sbatch for a job whose run has the `folder`. The last of several equal options takes effect."""
    values = {
        "--job-name": options.name,
        "--nodes": options.nodes,
        "--ntasks-per-node": options.ranks_per_node,
        "--cpus-per-task": options.cpus,
        "--gpus-per-node": options.gpus_per_node or "",
        "--time": options.time,
        "--account": options.account,
        "--partition": options.partition,
        "--array": options.array,
        "--output": folder.replace("%", "%%") + (f"/{TASK}%a" if options.array else "") + "/output",
        "--open-mode": "append",
        "--signal": f"B:USR1@{shell_text.compute_warning(options.time)}",  # B: to the script, which warns the ranks
    }
    option_words = [f"{name}={value}" for name, value in values.items() if value != ""]
    return [*option_words, "--requeue", *(["--exclusive"] if options.takes_whole_nodes else []), *options.further_words]


def _quote_word(word: str) -> str:
    """Quote a word for an #SBATCH line: double quotes around blanks, a backslash before quotes and backslashes."""
    return '"{}"'.format(re.sub(r'(["\\])', r"\\\1", word)) if _MUST_QUOTE.search(word) else word


# The user may submit the script again by sbatch. The note in the folder then names another job, so the job replaces it
# by its own note. The note has the time of submission for `find_state`, because Slurm counts from 0 after a requeue. A
# requeued job can no longer find this time, and leaves it out. SLURM_EXPORT_ENV passes the environment to the tasks of
# srun, even if the job was submitted with --export=NONE.
_WRITE_NOTE = """\
if ! grep -qsF "\\"job\\": \\"{number}\\"" "$run_folder/{file}"; then
    submitted=$(SLURM_TIME_FORMAT=%s timeout 60 squeue --noheader --jobs="$SLURM_JOB_ID" --format=%V 2> /dev/null)
    [[ ${{SLURM_RESTART_COUNT:-0}} = 0 && $submitted =~ ^[0-9]+$ ]] || submitted=
    {write_note}
fi
export SLURM_EXPORT_ENV=ALL
"""
_FOLDER_CHECK = (
    '[ -d "$1" ] || { echo "matex: host $(hostname) does not see the folder of the run, $1. Submit from a folder on a '
    'file system that all nodes share." >&2; exit 1; }'
)
_REQUEUE = """\
    scontrol requeue "{number}" && exit $code
    echo "matex: Slurm did not put job {number} back; $kept. In $PWD, sbatch {folder}/{script}" \\
        "goes on" >&2
"""
