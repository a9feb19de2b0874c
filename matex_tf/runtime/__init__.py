"""The runtime of a rank: collectives of Python objects, output, errors, the watchdog, and the end of a run."""
