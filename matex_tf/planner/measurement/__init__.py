"""Measurements for a plan: a script as a phantom, its steps, and the links between ranks.

A phantom is one process that works as rank 0 of N ranks that do not exist. `phantoms` starts it, `started` ends what
was started, `steps` finds the steps in the records of its engine, and `link` times sums between ranks that exist.
"""
