"""One set of files for all ranks: rank 0 writes, the others keep what they write to themselves."""
