"""Owners of pieces of an update, and the store of their state."""
