"""Which rows of a batch are this rank's, and with what weight they count."""
