"""Divides the variables of optimizers among ranks (`pieces`), and shares variables in memory (`store`, `turns`)."""
