"""Slices of batches follow the speed of the ranks (`matex run --adapt`)."""
