"""What a rank leaves for others when it ends: its exit code, and marks in a folder of the run."""
