"""The models of five papers as functions, with the numbers of their equations and checks of their domains."""
