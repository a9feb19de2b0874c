"""Event simulation of a step on any number of ranks: ranks, collectives, parameter servers, and what-if changes."""
