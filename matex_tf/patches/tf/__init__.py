"""What is replaced in TensorFlow."""
