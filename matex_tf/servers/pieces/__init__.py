"""Updates in pieces: each owner updates, and holds, a part of every variable of an optimizer.

A *slot* is a variable of an optimizer with an entry for each entry of a weight, such as a moment of Adam. A *piece* is
a range of entries of a slot, its *owner* the rank that updates it, and the *cuts* are the entries at which the pieces
begin. With `sharded` every rank is an owner, with `servers:S` S ranks are, with `auto` measurements decide.

1. When an optimizer creates its slots, hooks (`slots`) ask `owners` for the cuts, and create this rank's piece only.
   `owners` decides who owns pieces; `partition` computes the cuts, equal in bytes for each owner.
2. In a step, the plan gives such a variable the placement of a piece (`steps.pieces`). The owner updates its entries
   of the weight, and publishes them to the other ranks (`steps.publishing`).
3. In elastic runs each owner sends its updated pieces to another rank (`piece_copies`). After the loss of a rank the
   others assemble the variables again.
4. `update_costs` records for `matex plan` what updates cost, and why a strategy was not possible.
"""
