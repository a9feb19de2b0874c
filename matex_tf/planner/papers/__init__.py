"""The models of five papers as functions, by their equations' numbers, each with its domain checked."""
