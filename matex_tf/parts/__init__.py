"""Micro-batches (MATEX_MICROBATCH): a rank's rows in parts, of which one at a time has its activations in memory.

Read `cutting`, `region`, `holders`, `sizes`, `attach`.
"""
