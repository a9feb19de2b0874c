"""What `kubectl` is told and says: an MPIJob as YAML, its refusals in words, what a launcher prints."""
