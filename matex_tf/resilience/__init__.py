"""Saved states of a run, restarts from them, and runs that continue with fewer ranks after a rank is lost."""
