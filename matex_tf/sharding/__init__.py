"""Slices, the rows of a batch that a rank computes, and shards, arrays and datasets of which a rank has its own rows.

`slice_bounds` computes which rows are a rank's slice; `steps` and `input` ask it. `shard_arrays` marks shards, and
makes them for the script (`matex_tf.shard`); readers make others. For a shard that the script gives to `fit`,
`apportion` tells how many rows each rank gives to each step, and `exchange` moves rows between ranks before an epoch
(`steps.own_arrays` calls both). `fingerprint` compares data between ranks: whole batches, which must be equal on all
ranks, and arrays, which must be shards or equal.
"""
