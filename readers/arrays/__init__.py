"""NetCDF and HDF5."""
