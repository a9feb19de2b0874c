"""`matex plan`: its options, its measurements, and its output."""
