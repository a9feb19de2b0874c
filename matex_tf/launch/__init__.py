"""The command line, and what starts ranks. Nothing here joins MPI."""
