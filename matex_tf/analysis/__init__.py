"""Graph in, verdict out: what of a training step ranks may share, proved from its ops. No MPI and no Keras here."""
