"""The kinds of clusters to which jobs go: what a job takes of each."""

from __future__ import annotations

from matex_tf.deploy import kubernetes
from matex_tf.deploy.options import Options
from matex_tf.deploy.queues import flux, lsf, pbs
from matex_tf.deploy.sbatch import job_script

KINDS: dict[str, type[Options]] = {
    kind.get_kind(): kind for kind in (job_script.Slurm, pbs.PBS, lsf.LSF, flux.Flux, kubernetes.Kubernetes)
}
"""By the name of its table in a user's file and of its option on the command line."""
