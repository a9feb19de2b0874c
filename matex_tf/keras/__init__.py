"""Calls of fit, evaluate, predict and train_on_batch."""
