"""The strategies in which each rank trains by itself, `local:H` and `async`, as listeners of steps
and of Keras' `fit`.
"""
