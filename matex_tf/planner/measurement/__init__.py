"""What is measured for a plan: a script as a phantom rank, its steps, the links between ranks."""
