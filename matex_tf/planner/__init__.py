"""How long a step will take on numbers of ranks that are not there: measured by phantom ranks, priced by a model."""
