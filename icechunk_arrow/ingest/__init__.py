"""What people have already comes in: Zarr, NetCDF and HDF5, tables of references, tables of rows.

Each is a function of a Spark session, a source and a target. Executors do the work, the driver decides, and one
commit makes all of it visible.
"""

from __future__ import annotations

from icechunk_arrow.ingest.dataframe_source import dataframe
from icechunk_arrow.ingest.delta_source import IngestedTable, delta
from icechunk_arrow.ingest.grib_index import grib_index
from icechunk_arrow.ingest.netcdf_source import netcdf
from icechunk_arrow.ingest.progress import Amount, Failure, Ingested, Progress
from icechunk_arrow.ingest.references_source import references
from icechunk_arrow.ingest.words import IngestWords
from icechunk_arrow.ingest.zarr_source import zarr

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
