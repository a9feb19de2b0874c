"""Ranks, hosts and MPI: whether this process is a rank, which one, and where. Independent of TensorFlow."""
