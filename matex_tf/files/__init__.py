"""One set of files for all ranks: rank 0 writes to the real files; each other rank writes to a private folder."""
