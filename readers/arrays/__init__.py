"""NetCDF, HDF5 and Zarr."""
