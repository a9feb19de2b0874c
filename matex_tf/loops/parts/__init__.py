"""Micro-batches: a rank's slice in parts, of which one at a time is in memory."""
