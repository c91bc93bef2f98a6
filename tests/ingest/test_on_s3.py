"""Sources that stand in a bucket: found, referred to and copied by executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr

from icechunk_arrow import Repository, ingest
from icechunk_arrow.errors import SourceChangedError
from tests.ingest.files import equal_trees, opened, reopened, weather_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3Server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]


@pytest.mark.parametrize("virtual", [True, False])
def test_sources_in_a_bucket(
    spark: Any, tmp_path: Path, s3: S3Server, s3_url: str, virtual: bool
) -> None:
    """A Zarr store and a NetCDF file, into a repository in the bucket; references know the ETag."""
    fs, root = fsspec.url_to_fs(s3_url, **s3.storage_options)
    file = weather_file(tmp_path / "w.nc")
    fs.pipe_file(f"{root}/w.nc", file.read_bytes())
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=(6, 4), chunks=(2, 4), dtype="i4")
    array[...] = values = np.arange(24).reshape(6, 4)
    fs.put(str(tmp_path / "a.zarr"), f"{root}/a.zarr", recursive=True)
    repo = Repository.create(
        f"{s3_url}/repo",
        s3.storage_options,
        authorize_virtual_chunk_access={f"{s3_url}/": s3.storage_options},
    )
    options: dict[str, Any] = {"virtual": virtual, "source_options": s3.storage_options}

    ingest.zarr(spark, f"{s3_url}/a.zarr", repo, group="a", **options)
    ingest.netcdf(spark, f"{s3_url}/w.nc", repo, group="w", **options)

    found = opened(repo, "a")
    np.testing.assert_array_equal(found[...], values)
    equal_trees(reopened(repo, "w"), xr.open_dataset(file).load())
    if virtual:
        fs.pipe_file(f"{root}/a.zarr/c/0/0", b"x" * 100)
        with pytest.raises(SourceChangedError):
            found[...]
