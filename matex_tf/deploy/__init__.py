"""Runs as jobs of a cluster: Slurm or Kubernetes. Nothing here joins MPI or loads TensorFlow."""
