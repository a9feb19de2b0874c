"""The array formats: NetCDF, HDF5 and Zarr."""
