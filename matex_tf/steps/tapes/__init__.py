"""Calls in eager code while tapes record, which ranks share: a forward and a backward step each."""
