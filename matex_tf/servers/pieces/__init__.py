"""Updates in pieces: who owns which, what is held and exchanged of them, and what they cost."""
