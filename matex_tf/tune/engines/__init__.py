"""Engines that propose configurations: random search, SMAC's random forest, Optuna's TPE. See `engine.Engine`."""
