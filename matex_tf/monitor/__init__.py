"""Records the resources, progress and waiting of each rank in the run's folder, and displays them
live and as a report.
"""
