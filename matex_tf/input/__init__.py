"""Input: each rank reads and decodes the rows that it trains, in an unchanged script."""
