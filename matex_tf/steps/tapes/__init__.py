"""Shared calls in eager code while tapes record: each is a forward and a backward step.

`calls` gets a call of a Keras model or a `tf.function`, and finds its *kind*: the calls of one model or function with
arguments of the same types and shapes. `first_calls` watches the first calls of a kind, which are the script's own.
Later calls of the kind are traced, unless the model is unchanged (`still_models`), and run by a `call_plan`.
"""
