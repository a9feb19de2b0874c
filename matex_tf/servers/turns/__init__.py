"""Helpers of asynchronous training (`apart.turns`): values of variables, and staleness."""
