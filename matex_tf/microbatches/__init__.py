"""Microbatches (MATEX_MICROBATCH): a rank computes its slice in parts, with the activations of one part in memory.

Read `cutting`, `region`, `accumulators`, `sizes`, `attach`.
"""
