"""Which rows are this rank's, windows of them, missing values and scaling."""
