"""What is replaced in tf.compat.v1."""
