"""Readers: each rank reads only its rows of a data set, such as `DataSet("NETCDF", "run_*.nc", data="t2m")`.

To add a format, subclass `Format` (open, count, read rows a to b) and pass the class to `register`.
"""

# Each import registers its formats. A path without a format is offered to them in this order.
from matex_tf.readers.arrays import hdf5 as _hdf5  # noqa: F401
from matex_tf.readers.arrays import netcdf as _netcdf  # noqa: F401
from matex_tf.readers.arrays import zarr as _zarr  # noqa: F401
from matex_tf.readers.base.formats import Format, ReaderError, register
from matex_tf.readers.csv import format as _csv  # noqa: F401
from matex_tf.readers.dataset import DataSet
from matex_tf.readers.images import cifar as _cifar  # noqa: F401
from matex_tf.readers.images import mnist as _mnist  # noqa: F401
from matex_tf.readers.typed import parquet as _parquet  # noqa: F401
from matex_tf.readers.typed import tfrecord as _tfrecord  # noqa: F401

__all__ = ["DataSet", "Format", "ReaderError", "register"]
