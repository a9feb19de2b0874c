"""What a job takes of Slurm, and its script as text."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf.deploy import run_folder, shell_text
from matex_tf.deploy.options import Options
from matex_tf.deploy.sbatch import taken_options

HEAD, _NUMBER = "#SBATCH", "$SLURM_JOB_ID"
_ODD = re.compile(r"[^\w@%+=:,./-]", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Slurm(Options):
    """What a job takes of Slurm. `sbatch` are more options of sbatch, each a word: `--qos=long`."""

    account: str = ""
    partition: str = ""
    sbatch: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cpus and not re.fullmatch(r"[1-9][0-9]*", str(self.cpus)):
            raise ValueError(f"expected cpus to be a whole number, 1 or more, of each rank; given {self.cpus!r}")
        for word in self.sbatch:
            if not word.startswith("-") or not word.isprintable():
                raise ValueError(f"expected sbatch to be options such as --qos=long, each in one line; given {word!r}")
        taken_options.check_words(self.sbatch, bool(self.cpus), bool(self.gpus_per_node))
        if any(line.lstrip().startswith(HEAD) for text in self.setup for line in text.splitlines()):
            raise ValueError(f"sbatch reads no {HEAD} in lines of setup: --sbatch=OPTION says what stands there")

    @property
    def takes_whole_nodes(self) -> bool:
        """Whether its nodes are its own: so it is where nothing says how much of a node it needs."""
        return not (self.cpus or self.gpus_per_node or taken_options.needs_parts(self.sbatch))

    @property
    def leaves_cores_to_slurm(self) -> bool:
        """Whether it takes a part of its nodes, and nothing says how many of their cores."""
        return not (self.takes_whole_nodes or self.cpus or taken_options.needs_cores(self.sbatch))


def format_job(asked: Slurm, target: Sequence[str], folder: str) -> str:
    """The script of a job that runs `target`. `folder` is that of the run, seen from where the job is submitted."""
    again = _AGAIN.format(again=os.EX_TEMPFAIL, folder=shlex.quote(folder))
    return format_script(asked, asked.make_command(target), folder, shell_text.KEPT, again)


def format_script(asked: Slurm, command: Sequence[str], folder: str, before: str = "", after: str = "") -> str:
    """The script of a job that runs `command`, with lines `before` it, and `after` it, where $code is its exit code.

    A `folder` that is not absolute is seen from where the job is submitted.
    """
    look = (
        f"srun --nodes={asked.nodes} --ntasks={asked.nodes} --ntasks-per-node=1 "
        f'bash -c {shlex.quote(_LOOK)} look "$run_folder" || exit {os.EX_CONFIG}\n'
    )
    note = run_folder.format_note("slurm", _NUMBER, submitted="$submitted").strip().replace('"', '\\"')
    setup = "".join(f"{line}\n" for line in asked.setup)
    return shell_text.format_script(
        "".join(f"{HEAD} {_quote_word(word)}\n" for word in list_words(asked, folder)),
        folder,
        _NOTING.format(note=note, file=run_folder.NOTE) + setup + (look if asked.nodes > 1 else "") + before,
        shlex.join(command),
        after,
    )


def list_words(asked: Slurm, folder: str) -> list[str]:
    """The options of sbatch for a job whose run has the `folder`; of two alike the last counts."""
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
        "--signal": f"B:USR1@{shell_text.compute_warning(asked.time)}",
    }
    words = [f"{name}={value}" for name, value in options.items() if value != ""]
    return [*words, "--requeue", *(["--exclusive"] if asked.takes_whole_nodes else []), *asked.sbatch]


def _quote_word(word: str) -> str:
    """A word as sbatch reads it after #SBATCH: blanks stand within quotes, backslashes before what ends them."""
    return '"{}"'.format(re.sub(r'(["\\])', r"\\\1", word)) if _ODD.search(word) else word


# `sbatch job.sh` makes another job of it, of which the note then tells, and when it was queued: Slurm counts anew from
# when a job is queued again. What a job sets before its run, its tasks see, also if it was submitted with
# --export=NONE.
_NOTING = """\
if ! grep -qsF "\\"job\\": \\"$SLURM_JOB_ID\\"" "$run_folder/{file}"; then
    submitted=$(SLURM_TIME_FORMAT=%s timeout 60 squeue --noheader --jobs="$SLURM_JOB_ID" --format=%V 2> /dev/null)
    [[ ${{SLURM_RESTART_COUNT:-0}} = 0 && $submitted =~ ^[0-9]+$ ]] || submitted=
    note="{note}"
    echo "$note" > "$run_folder/{file}"
fi
export SLURM_EXPORT_ENV=ALL
"""
_LOOK = (
    '[ -d "$1" ] || { echo "matex: host $(hostname) does not see the folder of the run, $1. Submit from a folder on a '
    'file system that all nodes share." >&2; exit 1; }'
)
# Only a run that asks again is put back.
_AGAIN = """\
if [ $code -eq {again} ]; then
    kept=$([ -d "$run_folder/state" ] && echo "state kept" || echo "no state yet")
    printf 'matex: job %s %s after %d:%02d:%02d, %s; to be requeued (%d)\\n' "$SLURM_JOB_ID" \\
        "$([ -n "$asked" ] && echo asked to end || echo ended with exit code {again})" \\
        $((SECONDS / 3600)) $((SECONDS / 60 % 60)) $((SECONDS % 60)) "$kept" $((${{SLURM_RESTART_COUNT:-0}} + 1))
    scontrol requeue "$SLURM_JOB_ID" && exit $code
    echo "matex: Slurm did not put job $SLURM_JOB_ID back; $kept. In $PWD, sbatch {folder}/job.sh" \\
        "goes on" >&2
fi
"""
