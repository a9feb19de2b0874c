"""Who owns which piece of an update, and where its state is kept."""
