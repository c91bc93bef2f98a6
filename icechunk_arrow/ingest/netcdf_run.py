"""The run of an ingest of HDF5 and NetCDF-4 files: look at all, decide, make arrays, send executors out, commit.

Owns the order of events. Imports h5py, which not everybody has: ``netcdf_source`` comes before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_arrow import errors
from icechunk_arrow.core import compute as pc
from icechunk_arrow.core.columns import from_values, to_numpy
from icechunk_arrow.errors import IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.agreement import units_givers
from icechunk_arrow.ingest.chunk_names import index_lists
from icechunk_arrow.ingest.concatenation import OddOnes, array_plans, starts_of, write_items
from icechunk_arrow.ingest.hdf5 import ScanOptions
from icechunk_arrow.ingest.hdf5_work import (
    SCAN_SCHEMA,
    ReferChunks,
    ReferTarget,
    Scan,
    WriteTarget,
    WriteValues,
    scan_url,
)
from icechunk_arrow.ingest.nodes import join_paths, make_nodes
from icechunk_arrow.ingest.progress import Amount, Failure, Ingested
from icechunk_arrow.ingest.source_facts import incomparable, refusal
from icechunk_arrow.ingest.spark_frames import frame_of, run_over
from icechunk_arrow.spark.writing.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icechunk_arrow.ingest.concatenation import ArrayPlan, Choices, WriteItem
    from icechunk_arrow.ingest.hdf5 import FileFacts
    from icechunk_arrow.ingest.progress import Reporter
    from icechunk_arrow.ingest.words import Said
    from icechunk_arrow.session import Session
    from icechunk_arrow.spark.writing.targets import Target
    from icechunk_arrow.storage.source_files import SourceFiles

__all__ = ["NetcdfSource", "run"]

_BLOCK_BYTES = 1 << 26
"""A task writes blocks of about this size, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetcdfSource:
    """Files, and how they are to be taken."""

    said: Said
    urls: Sequence[str]
    source_group: str
    combine_attrs: str | None

    @property
    def files(self) -> SourceFiles:
        """What reaches them."""
        return self.said.files


def run(spark: Any, source: NetcdfSource, choices: Choices, target: Target) -> Ingested:
    """Bring files in."""
    own = source.said
    options = ScanOptions(
        source_group=source.source_group,
        drop=frozenset(own.drop),
        concat_dim=choices.concat_dim,
    )
    title = f"ingest of {len(source.urls)} NetCDF files"
    reporter = own.reporter(spark, title)
    scanned = _scan(spark, source, options, reporter)
    plans = scanned.plans(choices)
    arrays = {join_paths(own.group, plan.variable.path): plan.document for plan in plans}
    groups = {join_paths(own.group, path): found for path, found in scanned.first.groups.items()}
    with own.writing(target, title) as under_way:
        make_nodes(under_way.session, groups, arrays, overwrite=own.overwrite)
        sending = _Sending(
            spark=spark,
            session=under_way.session,
            scanned=scanned,
            source=source,
            group=own.group,
            reporter=reporter,
        )
        count = sending.refer(plans) + sending.write(plans)
    return Ingested(
        snapshot_id=under_way.snapshot_id,
        arrays=tuple(arrays),
        file_count=scanned.table.num_rows,
        chunk_count=count,
        failures=scanned.failures,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scanned:
    """All files that fit, in order."""

    first: FileFacts
    table: pa.Table
    """A row per file, as ``SCAN_SCHEMA`` has it: there may be a million files."""
    failures: tuple[Failure, ...]
    groups: tuple[str, ...]
    """Groups of which each row says a length, in order."""

    @property
    def names(self) -> list[str]:
        """The files."""
        found: list[str] = self.table["location"].to_pylist()
        return found

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
        found: dict[str, np.dtype[Any]] = {}
        some = self.table.filter(pc.greater(pc.list_value_length(self.table["packings"]), 0))
        columns = (some[name].to_pylist() for name in ("packings", "decoded"))
        for paths, names in zip(*columns, strict=True):
            for path, name in zip(paths, names, strict=True):
                before = found.get(path, self.first.variables[path].decoded)
                found[path] = np.result_type(np.dtype(before), np.dtype(name)).newbyteorder("=")
        return found

    def _odd(self, column: str) -> dict[str, str]:
        """Give the variables that a column names for some file, with the first such file."""
        some = self.table.filter(pc.greater(pc.list_value_length(self.table[column]), 0))
        found: dict[str, str] = {}
        names = some["location"].to_pylist()
        for name, paths in zip(names, some[column].to_pylist(), strict=True):
            for path in paths:
                found.setdefault(path, name)
        return found

    @property
    def amount(self) -> Amount:
        """How much there is."""
        return Amount(
            files=self.table.num_rows,
            chunks=int(to_numpy(self.table["chunk_count"]).sum()),
            bytes=int(to_numpy(self.table["size_bytes"]).sum()),
        )


def _scan(spark: Any, source: NetcdfSource, options: ScanOptions, reporter: Reporter) -> _Scanned:
    """Look at all files, and leave out or refuse those that do not fit to the first."""
    failures: list[Failure] = []
    first = None
    rest, files = list(source.urls), source.files
    while first is None:
        if not rest:
            raise InvalidInputError(
                f"none of the {len(source.urls)} files can be read; {failures[0].reason}"
            )
        try:
            _, first = scan_url(files, rest[0], options)
        except IcechunkArrowError as error:
            if source.said.stops:
                raise
            failures.append(Failure(source=rest.pop(0), reason=error.message))
    work = Scan(files=files, options=options, first=first, combine_attrs=source.combine_attrs)
    table = pa.Table.from_pydict(
        {
            "position": from_values(range(len(rest)), pa.int64()),
            "location": from_values(rest, pa.string()),
        }
    )
    with reporter.stage("looking at files", Amount(files=len(rest))):
        found = run_over(frame_of(spark, table), work, SCAN_SCHEMA)
    found = found.sort_by("position")
    fitting = found.filter(pc.is_null(found["error"]))
    for row in found.filter(pc.is_valid(found["error"])).to_pylist():
        if source.said.stops:
            raise getattr(errors, row["error"])(row["reason"])
        failures.append(Failure(source=row["location"], reason=row["reason"]))
    concat_dim = options.concat_dim
    lengths = {} if concat_dim is None else first.lengths(concat_dim)
    if concat_dim is not None and not lengths:
        dims = sorted({dim for each in first.variables.values() for dim in each.dims})
        raise InvalidInputError(
            f"no variable of {rest[0]} has the dimension {concat_dim!r}; there are {dims}"
        )
    if source.combine_attrs == "drop_conflicts":
        first = _without(first, set(pc.list_flatten(fitting["attributes"]).to_pylist()))
    return _Scanned(
        first=first, table=fitting, failures=tuple(failures), groups=tuple(sorted(lengths))
    )


def _without(facts: FileFacts, attributes: set[str]) -> FileFacts:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sending:
    """What executors are sent out with."""

    spark: Any
    session: Session
    scanned: _Scanned
    source: NetcdfSource
    group: str
    reporter: Reporter

    def refer(self, plans: Sequence[ArrayPlan]) -> int:
        """Refer to the chunks of all files, and tell how many."""
        chosen = [plan for plan in plans if plan.referred]
        if not chosen:
            return 0
        slots = {name: place for place, name in enumerate(self.scanned.groups)}
        work = ReferChunks(
            files=self.source.files,
            source_group=self.source.source_group,
            targets=tuple(
                ReferTarget(
                    path=join_paths(self.group, plan.variable.path),
                    source=plan.variable.path,
                    chunks=plan.chunks,
                    axis=plan.axis,
                    slot=slots[plan.group] if plan.axis is not None else 0,
                )
                for plan in chosen
            ),
        )
        files = self._files()
        table = files.append_column("starts", self.scanned.starts())
        count = from_values(range(table.num_rows), pa.int64())
        table = table.append_column("position", count)
        with self.reporter.stage("referring to chunks", self.scanned.amount):
            frame = frame_of(self.spark, table)
            return run_tasks(frame, self.session, work).chunk_count

    def _files(self) -> pa.Table:
        """Give the files, and what is recorded of each: all must have an ETag or a time."""
        files = self.scanned.table.select(["location", "etag", "last_modified"])
        if not self.source.said.detect_changes:
            return files.select(["location"])
        known = to_numpy(pc.is_valid(files["etag"])) | to_numpy(pc.is_valid(files["last_modified"]))
        if not known.all():
            names = [files["location"][int(row)].as_py() for row in np.flatnonzero(~known)]
            raise refusal(list(map(incomparable, names)), len(names), len(known))
        return files

    def write(self, plans: Sequence[ArrayPlan]) -> int:
        """Write the values of the other arrays, and tell how many chunks they are."""
        chosen = [plan for plan in plans if not plan.referred]
        starts = {name: starts_of(found) for name, found in self.scanned.lengths().items()}
        items = [
            item
            for plan in chosen
            for item in write_items(plan, starts.get(plan.group, [0]), _BLOCK_BYTES)
        ]
        if not items:
            return 0
        items.sort(key=lambda item: (item.pieces[0].file, item.path, item.start))
        files = self.scanned.table
        names, etags, times = (
            files[name].to_pylist() for name in ("location", "etag", "last_modified")
        )
        integers, texts = pa.list_(pa.int64()), pa.list_(pa.string())
        pieces = [item.pieces for item in items]
        table = pa.Table.from_pydict(
            {
                "item": from_values(range(len(items)), pa.int64()),
                "path": from_values([item.path for item in items], pa.string()),
                "start": from_values([item.start for item in items], integers),
                "stop": from_values([item.stop for item in items], integers),
                "locations": from_values([[names[p.file] for p in each] for each in pieces], texts),
                "etags": from_values([[etags[p.file] for p in each] for each in pieces], texts),
                "times": from_values([[times[p.file] for p in each] for each in pieces], integers),
                "froms": from_values([[p.start for p in each] for each in pieces], integers),
                "tos": from_values([[p.stop for p in each] for each in pieces], integers),
            }
        )
        givers = units_givers(self.scanned.first)
        work = WriteValues(
            files=self.source.files,
            source_group=self.source.source_group,
            drop=frozenset(self.source.said.drop),
            targets={plan.variable.path: self._target(plan, givers) for plan in chosen},
        )
        with self.reporter.stage("writing values", _amount_of(chosen, items)):
            frame = frame_of(self.spark, table)
            return run_tasks(frame, self.session, work).chunk_count

    def _target(self, plan: ArrayPlan, givers: Mapping[str, str]) -> WriteTarget:
        variable = plan.variable
        giver = givers.get(variable.path, variable.path)
        attributes = self.scanned.first.variables[giver].attributes
        return WriteTarget(
            path=join_paths(self.group, variable.path),
            source=variable.path,
            dtype=self.scanned.first.variables[variable.path].dtype,
            shape=variable.shape,
            decoded=variable.dtype if plan.decoded else None,
            axis=plan.axis,
            units_source=giver,
            units=attributes.get("units"),
            calendar=str(attributes.get("calendar", "")),
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
