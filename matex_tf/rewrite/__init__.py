"""A traced step, evaluated by all ranks together: the graph of the script is copied with a collective where one is needed.

The order of reading: `placement` (how a rank's tensor makes up the script's), `rules` (what each op makes of placements),
`propagate` (placements, forward), `waves` (which collectives travel together), `emit` (the copy).
The idea is that of GSPMD (Xu et al., arXiv 2105.04663): propagate shardings, insert collectives at the edges.
"""
