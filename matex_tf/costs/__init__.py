"""Closed-form cost models of collectives, for the planner and for choices at run time.

A cost is the seconds of a message over a *link*, which has a start-up time and the seconds of a byte. `collectives` has
the cost of a sum by each algorithm; `pieces` has the cost of an update of which ranks own pieces. Nothing here
measures: `observe.link_costs` and `planner.measurement` do.
"""
