"""Input and output of `kubectl`: the MPIJob as YAML, states, error messages, and the launchers' output."""
