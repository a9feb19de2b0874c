"""Tables: columns chosen as data and labels, texts as integers, rows kept as they are read."""
