"""Training steps that ranks share: traced once as the script wrote them, copied with collectives, and called."""
