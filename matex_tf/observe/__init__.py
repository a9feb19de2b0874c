"""Timeline, profile, costs of links, and warnings about lost time."""
