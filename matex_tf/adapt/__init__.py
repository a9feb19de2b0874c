"""Decisions that a run makes by measuring: slice ratios (`matex run --adapt`), and the way of updates."""
