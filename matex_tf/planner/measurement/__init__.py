"""Measurements for a plan: a script as a phantom rank, its steps, and the links between ranks."""
