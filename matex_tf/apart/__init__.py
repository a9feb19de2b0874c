"""Strategies with which a rank trains by itself for some time: `local:H` and `async`. Both work in Keras' `fit` only.

Elsewhere, and for steps that cannot be trained so, ranks train with `allreduce`; `choice` says why, once.

`local:H`: a rank trains H steps on its own rows, then all ranks average their weights. `local` listens to the events of
steps and of `fit`. It lets the plan of a training step make copies of another kind (`own_rows`): they have no
collectives, and compute as if every rank had the rows of this rank.

`async`: the ranks of one host train complete batches on weights in memory that they share, the *store*. `keras_fit`
hooks `fit` and its data source. It makes an `AsyncFit` (`async_fit`) for each call, which decides once whether the step
can be trained so, and then passes each epoch to `Turns` (`turns`):

- To take a *turn* is to take the next number of a batch that no rank has, and to train that batch. `store` hands out
  the numbers. `pipeline` fetches the batch: each rank iterates over all data, and skips the batches of other ranks.
- The step is a copy (`shared_step`) that adds to shared variables in place of assigning them (`additive`, `affine`,
  `variable_uses`): an assignment would undo the updates that other ranks made meanwhile.
- `values` divides the variables by what they get when the ranks *meet* at the end of an epoch. From then on, each rank
  has its own equal copies again, and `epoch_metrics` gives callbacks the metrics over all rows.
- A rank may be lost: with MATEX_ELASTIC, another rank trains its batch (`rescue`).
- `staleness` describes how many updates of others lay between the reading and the writing of weights.
"""
