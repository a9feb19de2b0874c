"""Cluster kinds, and the options class of each."""

from __future__ import annotations

from matex_tf.deploy.kubectl import mpijob
from matex_tf.deploy.options import Options
from matex_tf.deploy.queues import flux, lsf, pbs
from matex_tf.deploy.sbatch import job_script

KINDS: dict[str, type[Options]] = {
    kind.get_kind(): kind for kind in (job_script.Slurm, pbs.PBS, lsf.LSF, flux.Flux, mpijob.Kubernetes)
}
"""Keyed by kind, which is both the table name in the user's config file and the `--KIND` option."""
