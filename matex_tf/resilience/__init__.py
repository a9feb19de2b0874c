"""Checkpoints of a run, restarts from them, and going on with fewer ranks."""
