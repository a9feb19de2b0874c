"""Steps in eager code: what ran under a tape is recorded, and proved as a graph is; then its way back is sharded."""
