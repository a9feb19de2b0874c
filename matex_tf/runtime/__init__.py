"""The life of a rank: collectives of Python objects, output, errors, the watchdog, the end."""
