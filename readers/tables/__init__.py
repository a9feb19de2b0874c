"""Tables: columns for data and labels, texts as integers, and storage of parsed rows."""
