"""``ingest.netcdf``: HDF5 and NetCDF-4 files, read in parallel, become arrays of a repository.

Owns what a person says about files, and who is asked which files are meant.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Unpack

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.agreement import COMBINE_ATTRS
from icechunk_arrow.ingest.concatenation import Choices
from icechunk_arrow.ingest.spark_frames import check_choice
from icechunk_arrow.ingest.words import IngestWords, said
from icechunk_arrow.storage.source_files import absolute_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icechunk_arrow.ingest.progress import Ingested
    from icechunk_arrow.spark.writing.targets import Target
    from icechunk_arrow.storage.source_files import SourceFiles

__all__ = ["netcdf"]


def netcdf(
    spark: Any,
    source: Any,
    target: Target,
    *,
    concat_dim: str | None = None,
    virtual: bool = True,
    source_group: str = "/",
    chunks: Mapping[str, Any] | None = None,
    codecs: Any = None,
    rewrite: Iterable[str] = (),
    rewrite_below_bytes: int = 1 << 20,
    combine_attrs: str | None = None,
    **words: Unpack[IngestWords],
) -> Ingested:
    """Bring HDF5 or NetCDF-4 files in, one behind the other along a dimension, as one commit.

    What comes out is what ``xarray.open_mfdataset(files, combine="nested", concat_dim=…)`` reads: variables with
    the dimension ``concat_dim`` follow one another, all others must be the same in every file, and are
    taken once. Executors read the files; the driver looks at the first only.

    Parameters
    ----------
    spark
        A Spark session, classic or of Spark Connect.
    source
        A path or URL, or several, taken in this order, ``*`` standing for files in the order of their names; or a
        DataFrame with a column ``path``, taken in the order of a column ``position`` if there is one, else
        of the paths.
    target
        A repository, its path or URL, or a writable session, which is then not committed here.
    concat_dim
        The dimension along which files follow one another; needed where there are several files.
    virtual
        Leave values where they are, and refer to their chunks in the files. The coordinate along ``concat_dim``
        is written all the same, and so are other values that no reference can point to (text of any length, files
        that end within a chunk), if a file has less than ``rewrite_below_bytes`` of them and all store them
        alike. False writes all values anew.
    source_group
        The group of the files to begin at.
    chunks, codecs
        For values that are written: a length by dimension, or a shape by variable; codecs of all variables, or by
        variable, as Zarr documents name them. Others keep the files' chunks, and are compressed with zstd.
    rewrite
        Variables whose values are written even where the others are referred to.
    rewrite_below_bytes
        See ``virtual``.
    combine_attrs
        ``"identical"``, ``"override"`` (the first file's) or ``"drop_conflicts"``, as in xarray, of attributes
        that do not say what values mean. By default those of variables must be identical, and those of groups are
        the first file's. Where scale, offset, missing value, sign or valid range differ, values cannot be referred
        to, and are decoded where they are written; where other units or calendars do, times are counted
        in the first file's, if that is exact, and anything else is an error.
    words
        :class:`IngestWords`. To ``drop`` are variables and groups, and attributes as ``/variable@attribute``: what
        says what values mean only where all files agree.
    """
    own = said(words)
    check_choice("combine_attrs", combine_attrs, (None, *COMBINE_ATTRS))
    urls = _urls(source, own.files)
    if len(urls) > 1 and concat_dim is None:
        raise InvalidInputError(
            f"there are {len(urls)} files: concat_dim says along which dimension they follow one another"
        )
    if importlib.util.find_spec("h5py") is None:
        raise InvalidInputError("NetCDF and HDF5 need h5py: pip install 'icechunk-arrow[netcdf]'")
    from icechunk_arrow.ingest.netcdf_run import NetcdfSource, run  # noqa: PLC0415  (needs h5py)

    choices = Choices(
        concat_dim=concat_dim,
        virtual=virtual,
        rewrite=frozenset(rewrite),
        rewrite_below_bytes=rewrite_below_bytes,
        chunks=dict(chunks or {}),
        codecs=codecs,
    )
    start = "/" + source_group.strip("/")
    files = NetcdfSource(said=own, urls=urls, source_group=start, combine_attrs=combine_attrs)
    return run(spark, files, choices, target)


def _urls(source: Any, files: SourceFiles) -> list[str]:
    """Give the files' URLs, in order."""
    if hasattr(source, "toArrow") and hasattr(source, "columns"):
        if "path" not in source.columns:
            raise InvalidInputError(
                f"a DataFrame of files needs a column 'path'; it has {source.columns}"
            )
        has_order = "position" in source.columns
        table = source.select("path", *(["position"] if has_order else [])).toArrow()
        table = table.sort_by("position" if has_order else "path")
        places = table["path"].to_pylist()
    else:
        places = [source] if isinstance(source, str | os.PathLike) else list(source)
    urls: list[str] = []
    for place in places:
        if place is None:
            raise InvalidInputError("one of the files has no path")
        url = absolute_url(place)
        urls += files.match(url) if "*" in url else [url]
    if not urls:
        raise InvalidInputError(f"there are no files: {source!r} names none")
    twice, times = Counter(urls).most_common(1)[0]
    if times > 1:
        raise InvalidInputError(f"{twice} is given twice", url=twice)
    return urls
