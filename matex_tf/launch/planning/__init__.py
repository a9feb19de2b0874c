"""`matex plan`: its options, and what it does."""
