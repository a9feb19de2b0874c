"""What each rank of a run uses and waits for, recorded in the run's folder; the live picture and the report of it."""
