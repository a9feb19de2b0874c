"""`python -m matex_tf.analysis` prints docs/placements.md."""

from matex_tf.analysis.reference import reference

if __name__ == "__main__":
    print(reference(), end="")
