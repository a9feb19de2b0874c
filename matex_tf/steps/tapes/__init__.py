"""Shared calls in eager code while tapes record: each is a forward and a backward step."""
