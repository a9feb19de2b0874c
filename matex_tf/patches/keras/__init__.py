"""What is replaced in Keras."""
