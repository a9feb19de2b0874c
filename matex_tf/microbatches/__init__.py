"""Microbatches (MATEX_MICROBATCH): a rank's slice is computed in parts, with one part's activations in memory at a
time.

Read `cutting`, `region`, `holders`, `sizes`, `attach`.
"""
