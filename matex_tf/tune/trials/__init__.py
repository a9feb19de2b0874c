"""Trials: where each runs, what it has for itself, and what becomes of it."""
