"""What every format needs."""
