"""The hosts that a run may use: which answer, how many ranks they take, and what comes and goes while it trains."""
