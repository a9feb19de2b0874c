"""Jobs on a cluster (Slurm, PBS, LSF, Flux, Kubernetes): submit, follow, cancel. This package imports neither MPI nor
TensorFlow.
"""
