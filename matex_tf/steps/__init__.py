"""Steps that ranks share: the graph is captured as the script wrote it, copied with collectives, and called.

`StepPlan` (`plan`) has the one order: find placements, make a copy, compare with the other ranks, explain.
It has three kinds, each for one hook:

- a call of a function: `function_calls` binds `arguments`, captures the *trace* (`capture`), the graph of the script's
  function, and calls the `function_plan`. Parts: `inputs` (where the batch comes from), `copies`.
- a call of a model under a tape: `tapes`.
- a run of a session: `session_runs`, with `session_graphs`, `session_variables` and `cond_turns`.

A *copy* computes this rank's rows of the batch. Its collectives come from `exchanger`, by waves: groups of collectives
that travel together. A step without a copy is *computed whole*: every rank runs the script's own code on all rows.
Each call compares its batch (`batch_watch`), and an error on one rank is raised on all (`failures`).

Batches: `batches`, `slices` (this rank's rows), `shared_feeds` (taken by the graph). A *source* gives batches: an
iterator or dataset. Rows or arrays are *own* if this rank alone has them (`own_data`, `own_arrays`).
Weights: `variables` compares them, `agreement` says when. `gradients` labels sums. A variable may be in *pieces*, one
on each rank: `pieces`, `piece_variables`, `publishing`. Eager code: `whole_code`. Messages: `report`. Extras of the
library listen to `events`.
"""
