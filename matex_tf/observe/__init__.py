"""Timeline, profile, cost of links, warnings of time that is lost."""
