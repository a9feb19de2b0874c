"""The functions of other libraries that are replaced for the steps that ranks share."""
