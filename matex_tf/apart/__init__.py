"""Strategies in which each rank trains by itself (`local:H`, `async`), as listeners of steps and of Keras' `fit`."""
