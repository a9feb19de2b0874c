"""Microbatches (MATEX_MICROBATCH): a rank computes its slice in parts, with the activations of one part in memory.

A *part* is some rows of the rank's slice. A *region* is a set of ops of a step that a loop computes for one part after
the other. A step is a program (`rewrite.programs`): nodes with placements. When its copy is about to be built:

1. `attach` listens for new copies, and has the program of the copy changed.
2. `cutting` selects the ops of each region, and replaces them by one node.
3. `region` builds the node: a loop over the parts. Its inputs with rows are sliced.
4. `accumulators` combine the results of the parts: sums are added up, rows are concatenated.
5. `sizes` finds how many rows a part may have, if MATEX_MICROBATCH is `auto`.

Collectives are outside of regions, so a step has as many collectives as without parts.
"""
