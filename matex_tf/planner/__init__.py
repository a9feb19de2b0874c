"""Predicts the time of a step on numbers of ranks that are not available: phantom ranks measure, a model predicts."""
