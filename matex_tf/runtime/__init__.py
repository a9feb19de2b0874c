"""The life of a rank: collectives of Python objects, output, errors, the watchdog, and the end."""
