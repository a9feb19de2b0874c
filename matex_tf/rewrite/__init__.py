"""The rewriter: it copies the graph of a traced step and adds a collective on each edge that needs one.

All ranks run the copy together, and the result is that of the script's own graph. Read the modules in this order:
`placement`, `rules`, `propagate`, `control`, `compiled`, `waves`, `paths`, `kept`, `emit`. The idea comes from GSPMD
(Xu et al., arXiv 2105.04663).
"""
