"""Ranks, hosts and MPI itself: is this process a rank, which, and where. Nothing of TensorFlow."""
