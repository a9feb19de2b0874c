"""The report of recorded runs as one HTML page."""
