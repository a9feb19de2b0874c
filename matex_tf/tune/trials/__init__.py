"""Trials: their folders, resources and outcomes."""
