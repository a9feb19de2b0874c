"""Metrics over the rows of all ranks."""
