"""The array formats: NetCDF, HDF5 and Zarr. Samples lie along one dimension; variables are stacked as channels.

`stack` is their base class, and `variable` that of an array in an open file; `netcdf`, `hdf5` and `zarr` have what
differs. `dimensions` matches dimensions of several files, `texts` makes integers of text variables, `options` checks
names, and `contents` explains a damaged file. The C libraries of netCDF4 and h5py are not thread-safe, so all their
calls go through `library`. With parallel=True a read is a *transfer*, for which all ranks come together (`collective`).
"""
