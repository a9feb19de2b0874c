"""A step on ranks that are not there, event by event: ranks, collectives, parameter servers, and what if."""
