"""What is there already comes in: Zarr, NetCDF and HDF5, tables of references, tables of rows.

Each is a function of a Spark session, a source and a target. Executors do the work, the driver decides, and one
commit makes all of it visible. To read in this order: ``executor``, ``progress``, ``source``; the formats ``zarr``,
``kerchunk``, ``virtualizarr``, ``grib``, ``hdf5`` (with ``collecting``); ``agreement`` and ``concatenation``, which
decide, and ``file_tasks``; ``spark``; and the functions in ``stores``, ``netcdf``, ``rows``.
"""

from __future__ import annotations

from icechunk_arrow.ingest.netcdf import netcdf
from icechunk_arrow.ingest.options import IngestWords
from icechunk_arrow.ingest.progress import Amount, Failure, Ingested, Progress
from icechunk_arrow.ingest.rows import IngestedTable, dataframe, delta
from icechunk_arrow.ingest.stores import grib_index, references, zarr

# netcdf and zarr are modules too: here the functions have these names, once the modules are imported

__all__ = [
    "Amount",
    "Failure",
    "IngestWords",
    "Ingested",
    "IngestedTable",
    "Progress",
    "dataframe",
    "delta",
    "grib_index",
    "netcdf",
    "references",
    "zarr",
]
