"""Kernel regression over rows that lie in the partitions of Dask collections."""
