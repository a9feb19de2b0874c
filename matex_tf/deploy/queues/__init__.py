"""Schedulers whose job is a script: PBS, LSF and Flux, each a table of words, commands and answers."""
