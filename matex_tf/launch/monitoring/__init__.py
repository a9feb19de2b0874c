"""`matex top`, `matex report`, and the live display and event log of `matex run`."""
