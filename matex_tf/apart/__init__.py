"""Strategies in which ranks train apart, `local:H` and `async`: from outside of the steps and of Keras' `fit`."""
