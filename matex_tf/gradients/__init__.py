"""Gradients in, global gradients out; variables that are equal on all ranks."""
