"""Assigns rows to ranks; windows, missing values and scaling of rows."""
