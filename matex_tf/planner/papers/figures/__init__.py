"""Compares the numbers of the papers with the numbers of these models."""
