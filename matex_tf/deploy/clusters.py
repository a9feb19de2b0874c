"""All kinds of clusters, keyed by the table name in the user's file, which is also the `--KIND` option."""

from __future__ import annotations

from typing import Any

from matex_tf.deploy.cluster import BatchCluster, Cluster
from matex_tf.deploy.kubernetes import KUBERNETES
from matex_tf.deploy.options import Options
from matex_tf.deploy.queues import flux, lsf, pbs
from matex_tf.deploy.slurm import SLURM

BATCH_CLUSTERS: dict[str, BatchCluster[Any]] = {
    cluster.kind.get_kind(): cluster for cluster in (SLURM, pbs.PbsCluster(), lsf.LsfCluster(), flux.FluxCluster())
}
CLUSTERS: dict[str, Cluster[Any]] = {**BATCH_CLUSTERS, KUBERNETES.kind.get_kind(): KUBERNETES}
KINDS: dict[str, type[Options]] = {name: cluster.kind for name, cluster in CLUSTERS.items()}
"""The class of the options of each."""
