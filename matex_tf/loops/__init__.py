"""Training loops of the script's own: what ranks share of a step is proved, then the step is sharded."""
