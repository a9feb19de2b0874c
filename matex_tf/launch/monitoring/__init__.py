"""`matex top`, `matex report`, and what `matex run` does for a run that is recorded."""
