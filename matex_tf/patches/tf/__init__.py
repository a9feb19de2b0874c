"""Patches of TensorFlow."""
