"""Functions that all formats use."""
