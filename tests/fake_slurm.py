"""A Slurm for searches: jobs are processes here, which outlive whoever submits them, and have the states of Slurm's."""

from __future__ import annotations

import shlex
from pathlib import Path

from fake_commands import Fakes

# In $D: N.script, N.pid of its group, N.batch of its shell, N.code, N.cancelled of each job; `hold` keeps jobs queued,
# `most` is how many there may be.
_QUEUED = """
queued() {
    for f in $D/*.script; do n=$(basename $f .script); [ -e $D/$n.code ] || [ -e $D/$n.cancelled ] || echo $n; done
}
"""
_SBATCH = r"""
exec 9> $D/lock; flock 9
[ $(queued | wc -l) -lt $(cat $D/most) ] || { echo "sbatch: error: violates accounting/QOS policy" >&2; exit 1; }
n=$(($(cat $D/last) + 1)); echo $n > $D/last; echo "${@: -1}" > $D/$n.script; env > $D/$n.env
queued | wc -l >> $D/at-once
export SLURM_JOB_ID=$n
job='bash "$1" >> "${1%/*}/output" 2>&1 & echo $! > $2.batch; wait $!; echo $? > $2.code'
[ -e $D/hold ] || { setsid bash -c "$job" x "${@: -1}" $D/$n < /dev/null > /dev/null 2>&1 9>&- & echo $! > $D/$n.pid; }
echo $n
"""
_SCONTROL = r"""
n=$3; s=PENDING c=0:0 at="(null)"
[ -e $D/$n.script ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
if [ -e $D/$n.cancelled ]; then s=CANCELLED c=0:15
elif [ -e $D/$n.code ]; then c=$(cat $D/$n.code):0; [ $c = 0:0 ] && s=COMPLETED || s=FAILED
elif [ -e $D/$n.pid ]; then s=RUNNING at=here; fi
printf "JobId=$n JobName=a\n   JobState=$s Reason=Priority\n   Restarts=0 ExitCode=$c\n   NodeList=$at\n"
"""
_SCANCEL = r"""
n="${@: -1}"
case "$1" in --batch) kill -USR1 $(cat $D/$n.batch);;
*) touch $D/$n.cancelled; [ ! -e $D/$n.pid ] || kill -- -$(cat $D/$n.pid);; esac
"""


class Slurm(Fakes):
    """The commands in a new folder `folder`."""

    def __init__(self, folder: Path):
        folder.mkdir()
        super().__init__(folder)
        self.allow(100)
        (folder / "last").write_text("100\n")
        head = f"D={shlex.quote(str(folder))}; shopt -s nullglob\n{_QUEUED}"
        self.add("sbatch", head + _SBATCH)
        self.add("scontrol", head + _SCONTROL)
        self.add("scancel", head + _SCANCEL)
        self.add("squeue", head + 'for n in $(queued); do echo "$n $(cat $D/$n.script)"; done\n')
        self.add("sacct", "exit 1")

    def allow(self, most: int) -> None:
        """So many jobs at once."""
        (self.folder / "most").write_text(f"{most}\n")

    def hold(self, on: bool) -> None:
        """Whether jobs that are submitted stay queued."""
        (self.folder / "hold").touch() if on else (self.folder / "hold").unlink()

    @property
    def most_at_once(self) -> int:
        """How many jobs there were at once."""
        return max(map(int, (self.folder / "at-once").read_text().split()))

    @property
    def queue(self) -> list[str]:
        """The jobs that wait or run."""
        ends = {path.stem for path in self.folder.iterdir() if path.suffix in (".code", ".cancelled")}
        return sorted(path.stem for path in self.folder.glob("*.script") if path.stem not in ends)

    def list_told(self, number: int) -> dict[str, str]:
        """The environment of the sbatch of a job."""
        return dict(line.partition("=")[::2] for line in (self.folder / f"{number}.env").read_text().splitlines())
