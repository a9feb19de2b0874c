"""Readers that give each rank only its share of a data set: `DataSet("MNIST", directory)`.

A new format is a subclass of `Format` (open, count, read rows a to b) given to `register`.
"""

from matex_tf.readers import mnist as _mnist  # noqa: F401  (registers its format)
from matex_tf.readers.dataset import DataSet
from matex_tf.readers.formats import Format, ReaderError, register

__all__ = ["DataSet", "Format", "ReaderError", "register"]
