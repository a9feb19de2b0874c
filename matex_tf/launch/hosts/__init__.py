"""The hosts of a run: which ones answer, how many ranks they take, and changes of the list while the run trains."""
