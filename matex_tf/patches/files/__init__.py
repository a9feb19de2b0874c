"""What is replaced in Python and in libraries that open files or start programs."""
