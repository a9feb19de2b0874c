"""Submits, follows and cancels jobs of Slurm, PBS, LSF, Flux and Kubernetes. Imports neither MPI nor TensorFlow."""
