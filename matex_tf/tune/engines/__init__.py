"""What proposes configurations: random search, SMAC's random forest, Optuna's TPE, each behind ask and tell."""
