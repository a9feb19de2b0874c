"""Sessions of tf.compat.v1."""
