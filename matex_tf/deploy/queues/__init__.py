"""Schedulers without automatic requeue: PBS, LSF and Flux. Each is a table of options, commands and messages."""
