"""A traced step, evaluated by all ranks together: its graph is copied with a collective where an op needs one.

Read `placement`, `rules`, `propagate`, `control`, `compiled`, `waves`, `paths`, `kept`, `emit`.
The idea: GSPMD (Xu et al., arXiv 2105.04663).
"""
