"""What a run learns from its times: slices of batches (`matex run --adapt`), and the way of the sums."""
