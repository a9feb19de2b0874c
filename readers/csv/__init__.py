"""The CSV format."""
