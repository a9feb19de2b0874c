"""Closed-form cost models of collectives, for the planner and for choices at run time."""
