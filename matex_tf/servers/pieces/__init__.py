"""Updates in pieces: assignment to owners, storage, exchange, and costs."""
