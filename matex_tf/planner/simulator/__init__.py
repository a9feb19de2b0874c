"""Event simulation of a step on any number of ranks: ranks, collectives, parameter servers, and what-if changes.

`run` makes the *program* of a rank from a plan (`program`: when its computation ends, gradients are ready, collectives
begin), and simulates ranks (`ranks`) or workers with servers (`servers`). `what_if` changes the plan before, `trace`
writes the result as a timeline, and `replay` repeats a measured timeline with a changed rank.
"""
