"""The rewriter: it copies the graph of a traced step and adds a collective on each edge that needs one.

All ranks run the *copy* together, and its result is that of the script's graph. The idea is from GSPMD (arXiv
2105.04663). `steps` calls `propagate.read_program`, then `emit.Copy.build`.

1. Reading. `propagate` goes through the ops (`functions`, `graph_ops`, `subgraphs`) and makes a `nodes.Node` of each
   op, a `nodes.Value` with a `placement` of each tensor. For each node, `deciding` makes a *decision*: the placements
   that the op *needs* and *gives*. It asks `rules`, `control` (branches, loops), `compiled` (XLA), `pieces` (optimizer
   variables in pieces), `sources`, `feeds` and `own_batches` (ops that take the batch). `constants` finds fixed values.
   Two files improve the decisions: `spreading` and `whole_sums`. The result is a `programs.Program`.
2. Copying. `bodies` builds the ops of one program. `early` orders them. `waves` divides collectives into *waves*, which
   travel together, and ops into *levels*: level 0, wave 0, level 1, and so on. `tensors` brings a value to the
   placement that an op needs. `gathering` makes requests for collectives, `sharing` is their
   interface, and `labels` finds their gradients. `kept` copies ops without a change, `ordered_sums` fixes the order of
   terms.

Terms: a *reading* is one pass over a graph. *Whole* is replicated. A *handle* is a tensor that stands for a dataset, an
iterator or an optional. A *batch slice* (`sharing.Slice`) is what a rank knows of its rows of the batch. `emit(copy,
*inputs)` of a decision creates ops in place of the op.
"""
