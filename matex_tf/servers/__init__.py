"""`sharded` and `servers:S`: the variables of optimizers are divided among ranks. See `servers.pieces`."""
