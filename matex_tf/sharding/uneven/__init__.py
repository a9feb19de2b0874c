"""Batches that are dealt to the ranks in shares of different sizes, which change while batches are read ahead."""
