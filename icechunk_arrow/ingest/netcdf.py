"""``ingest.netcdf``: files whose variables follow one another become arrays of a repository.

Owns what the caller says about files, which files are meant, and the order of events: look at all, decide, make
arrays, let executors refer and write, commit.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyarrow as pa

from icechunk_arrow import errors
from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import from_values, to_numpy
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.agreement import COMBINE_ATTRS
from icechunk_arrow.ingest.concatenation import (
    Choices,
    OddOnes,
    array_plans,
    starts_of,
    write_items,
)
from icechunk_arrow.ingest.executor import cut, write_parts
from icechunk_arrow.ingest.file_tasks import ReferChunks, Scan, WriteValues
from icechunk_arrow.ingest.options import IngestOptions, IngestWords, check_choice
from icechunk_arrow.ingest.progress import Amount, Failure, Ingested
from icechunk_arrow.ingest.source import ScanOptions, incomparable, index_lists, refusal
from icechunk_arrow.ingest.spark import SparkExecutor
from icechunk_arrow.ingest.target import join_paths, make_nodes
from icechunk_arrow.storage.source_files import absolute_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icechunk_arrow.ingest.concatenation import ArrayPlan, WriteItem
    from icechunk_arrow.ingest.executor import Executor
    from icechunk_arrow.ingest.file_tasks import OpenFile
    from icechunk_arrow.ingest.progress import Reporter
    from icechunk_arrow.ingest.source import FileContents
    from icechunk_arrow.spark.writing.targets import Target
    from icechunk_arrow.storage.source_files import SourceFiles

    _Stage = tuple[str, Amount, ReferChunks | WriteValues, list[Any]]
    """What is being done, how much there is of it, and the work with its parts."""

_BLOCK_BYTES = 1 << 26
"""A task writes blocks of about this size, one after the other."""


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
    options = IngestOptions.of(words)
    check_choice("combine_attrs", combine_attrs, (None, *COMBINE_ATTRS))
    urls = _urls(source, options.files)
    if len(urls) > 1 and concat_dim is None:
        raise InvalidInputError(
            f"there are {len(urls)} files: concat_dim says along which dimension they follow one another"
        )
    if importlib.util.find_spec("h5py") is None:
        raise InvalidInputError("NetCDF and HDF5 need h5py: pip install 'icechunk-arrow[netcdf]'")
    from icechunk_arrow.ingest.hdf5 import Hdf5File  # noqa: PLC0415  (needs h5py)

    choices = Choices(
        concat_dim=concat_dim,
        virtual=virtual,
        rewrite=frozenset(rewrite),
        rewrite_below_bytes=rewrite_below_bytes,
        chunks=dict(chunks or {}),
        codecs=codecs,
    )
    scan = ScanOptions(
        source_group="/" + source_group.strip("/"),
        drop=frozenset(options.drop),
        concat_dim=concat_dim,
    )
    files = FileSet(
        executor=SparkExecutor(spark),
        urls=urls,
        open=partial(Hdf5File.open, options.files, scan),
        combine_attrs=combine_attrs,
        choices=choices,
        options=options,
    )
    return files.take(target)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """Files that become one, how they are to be taken, and the executor that does the work."""

    executor: Executor
    urls: Sequence[str]
    open: OpenFile
    combine_attrs: str | None
    choices: Choices
    options: IngestOptions

    def take(self, target: Target) -> Ingested:
        """Bring the files in."""
        options = self.options
        title = f"ingest of {len(self.urls)} NetCDF files"
        reporter = options.reporter(self.executor, title)
        scanned = self._scan(reporter)
        plans = scanned.plans(self.choices)
        arrays = {join_paths(options.group, plan.variable.path): plan.document for plan in plans}
        groups = {
            join_paths(options.group, path): each for path, each in scanned.first.groups.items()
        }
        with options.writing(target, title) as under_way:
            make_nodes(under_way.session, groups, arrays, overwrite=options.overwrite)
            count = 0
            for stage, amount, work, parts in (
                self._referring(scanned, [plan for plan in plans if plan.referred]),
                self._writing(scanned, [plan for plan in plans if not plan.referred]),
            ):
                if parts:
                    with reporter.stage(stage, amount):
                        count += write_parts(self.executor, under_way.session, work, parts)
        return Ingested(
            snapshot_id=under_way.snapshot_id,
            arrays=tuple(arrays),
            file_count=scanned.table.num_rows,
            chunk_count=count,
            failures=scanned.failures,
        )

    def _scan(self, reporter: Reporter) -> _Scanned:
        """Look at all files, and leave out or refuse those that do not fit to the first."""
        failures, options, concat_dim = list[Failure](), self.options, self.choices.concat_dim
        first = None
        rest = list(self.urls)
        while first is None:
            if not rest:
                raise InvalidInputError(
                    f"none of the {len(self.urls)} files can be read; {failures[0].reason}"
                )
            try:
                options.files.facts(rest[0])
                with self.open(rest[0]) as source:
                    first = source.contents()
            except IcechunkArrowError as error:
                if options.stops:
                    raise
                failures.append(Failure(source=rest.pop(0), reason=error.message))
        work = Scan(
            files=options.files,
            open=self.open,
            first=first,
            concat_dim=concat_dim,
            combine_attrs=self.combine_attrs,
        )
        parts = cut(list(enumerate(rest)))
        with reporter.stage("looking at files", Amount(files=len(rest))):
            answers = [answer for _, answer in self.executor.map(work, parts)]
        files = pa.concat_tables(answers).sort_by("position")
        fitting = files.filter(pc.is_null(files["error"]))
        for row in files.filter(pc.is_valid(files["error"])).to_pylist():
            if options.stops:
                raise getattr(errors, row["error"])(row["reason"])
            failures.append(Failure(source=row["location"], reason=row["reason"]))
        lengths = {} if concat_dim is None else first.lengths(concat_dim)
        if concat_dim is not None and not lengths:
            dims = sorted({dim for each in first.variables.values() for dim in each.dims})
            raise InvalidInputError(
                f"no variable of {rest[0]} has the dimension {concat_dim!r}; there are {dims}"
            )
        if self.combine_attrs == "drop_conflicts":
            first = _without(first, set(pc.list_flatten(fitting["attributes"]).to_pylist()))
        return _Scanned(
            first=first, table=fitting, failures=tuple(failures), groups=tuple(sorted(lengths))
        )

    def _referring(self, scanned: _Scanned, plans: Sequence[ArrayPlan]) -> _Stage:
        """Say how to refer to the chunks of all files."""
        work = ReferChunks(
            open=self.open,
            group=self.options.group,
            plans=tuple(plans),
            slots={name: place for place, name in enumerate(scanned.groups)},
        )
        if not plans:
            return "referring to chunks", scanned.amount, work, []
        table = self._recorded(scanned.table).append_column("starts", scanned.starts())
        numbers = from_values(range(table.num_rows), pa.int64())
        parts = cut(table.append_column("position", numbers))
        return "referring to chunks", scanned.amount, work, parts

    def _recorded(self, table: pa.Table) -> pa.Table:
        """Give the files, and what is recorded of each: all must have an ETag or a time."""
        files = table.select(["location", "etag", "last_modified"])
        if not self.options.detect_changes:
            return files.select(["location"])
        known = to_numpy(pc.is_valid(files["etag"])) | to_numpy(pc.is_valid(files["last_modified"]))
        if not known.all():
            names = [files["location"][int(row)].as_py() for row in np.flatnonzero(~known)]
            raise refusal(list(map(incomparable, names)), len(names), len(known))
        return files

    def _writing(self, scanned: _Scanned, plans: Sequence[ArrayPlan]) -> _Stage:
        """Say how to write the values of the other arrays."""
        starts = {name: starts_of(lengths) for name, lengths in scanned.lengths().items()}
        items = [
            item
            for plan in plans
            for item in write_items(plan, starts.get(plan.group, [0]), _BLOCK_BYTES)
        ]
        items.sort(key=lambda item: (item.pieces[0].file, item.path, item.start))
        names = ("location", "etag", "last_modified")
        files = list(zip(*(scanned.table[name].to_pylist() for name in names), strict=True))
        parts = cut([(item, [files[piece.file] for piece in item.pieces]) for item in items])
        work = WriteValues(
            files=self.options.files,
            open=self.open,
            group=self.options.group,
            plans={plan.variable.path: plan for plan in plans},
        )
        return "writing values", _amount_of(plans, items), work, parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scanned:
    """All files that fit, in order."""

    first: FileContents
    table: pa.Table
    """A row per file, as ``SCAN_SCHEMA`` has it: there may be a million files."""
    failures: tuple[Failure, ...]
    groups: tuple[str, ...]
    """Groups of which each row says a length, in order."""

    @property
    def names(self) -> list[str]:
        """The files."""
        locations: list[str] = self.table["location"].to_pylist()
        return locations

    def lengths(self) -> dict[str, list[int]]:
        """Give the lengths of all files, by group."""
        flat = to_numpy(pc.list_flatten(self.table["lengths"]))
        columns = flat.reshape(self.table.num_rows, len(self.groups)).T.tolist()
        return dict(zip(self.groups, columns, strict=True))

    def starts(self) -> pa.Array:
        """Where each file begins along the dimension, for each group: a list per file."""
        flat = to_numpy(pc.list_flatten(self.table["lengths"]))
        lengths = flat.reshape(self.table.num_rows, len(self.groups))
        return index_lists(np.cumsum(lengths, axis=0) - lengths)

    def plans(self, choices: Choices) -> list[ArrayPlan]:
        """Plan the arrays."""
        odd = OddOnes(
            layouts=self._odd("layouts"),
            packings=self._odd("packings"),
            decoded=self._decoded(),
            units=self._odd("units"),
        )
        return array_plans(self.first, self.names, self.lengths(), choices, odd)

    def _decoded(self) -> dict[str, np.dtype[Any]]:
        """Give for variables that files pack differently the type in which all their values are exact."""
        types: dict[str, np.dtype[Any]] = {}
        some = self.table.filter(pc.greater(pc.list_value_length(self.table["packings"]), 0))
        columns = (some[name].to_pylist() for name in ("packings", "decoded"))
        for paths, names in zip(*columns, strict=True):
            for path, name in zip(paths, names, strict=True):
                before = types.get(path, self.first.variables[path].decoded)
                types[path] = np.result_type(np.dtype(before), np.dtype(name)).newbyteorder("=")
        return types

    def _odd(self, column: str) -> dict[str, str]:
        """Give the variables that a column names for some file, with the first such file."""
        some = self.table.filter(pc.greater(pc.list_value_length(self.table[column]), 0))
        odd: dict[str, str] = {}
        names = some["location"].to_pylist()
        for name, paths in zip(names, some[column].to_pylist(), strict=True):
            for path in paths:
                odd.setdefault(path, name)
        return odd

    @property
    def amount(self) -> Amount:
        """How much there is."""
        return Amount(
            files=self.table.num_rows,
            chunks=int(to_numpy(self.table["chunk_count"]).sum()),
            bytes=int(to_numpy(self.table["size_bytes"]).sum()),
        )


def _without(facts: FileContents, attributes: set[str]) -> FileContents:
    """Leave out attributes, given as ``/path@name``."""

    def kept(path: str, found: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in found.items() if f"{path}@{name}" not in attributes}

    return replace(
        facts,
        groups={path: kept(path, found) for path, found in facts.groups.items()},
        variables={
            path: replace(each, attributes=kept(path, each.attributes))
            for path, each in facts.variables.items()
        },
    )


def _amount_of(plans: Sequence[ArrayPlan], items: Sequence[WriteItem]) -> Amount:
    """How much is to be written."""
    chunks = size_bytes = 0
    for plan in plans:
        shape = plan.document["shape"]
        chunks += math.prod(-(-n // edge) for n, edge in zip(shape, plan.chunks, strict=True))
        dtype = plan.variable.dtype
        size_bytes += math.prod(shape) * (dtype.itemsize if dtype is not None else 16)
    files = {piece.file for item in items for piece in item.pieces}
    return Amount(files=len(files), chunks=chunks, bytes=size_bytes)
