"""Slices and shards: the rows of a batch that a rank computes, and arrays of which a rank holds its own rows."""
