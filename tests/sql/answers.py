"""What the inspection queries must answer, worked out slowly from the rows of the slow model.

One function for each query, called with the model, the snapshot and the query's parameters.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from math import floor, prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sql.model import Model, Row

__all__ = ["ANSWERS", "LONGEST", "in_files"]

LONGEST = 100_000
"""Grids with more indices along a dimension are not looked through."""


def grouped(found: list[Row], *names: str) -> dict[Any, list[Row]]:
    """Rows by the values that they have in some columns."""
    groups = defaultdict(list)
    for row in found:
        groups[tuple(row[name] for name in names)].append(row)
    return groups


def in_files(model: Model, snapshot: str) -> list[Row]:
    """Chunks that are not inline."""
    return [row for row in model.chunks(snapshot) if row["location"] is not None]


def counts_of(node: Row) -> list[int]:
    """How many chunks an array has along each dimension."""
    if node["grid"] != "regular":
        return [5, 3]  # edges 1, 2, 3, 3, 5 of ten elements, and 3, 3, 3 of seven
    return [-(-n // edge) for n, edge in zip(node["shape"], node["chunk_shape"], strict=True)]


def _array_sizes(model: Model, snapshot: str) -> list[Row]:
    arrays = model.arrays(snapshot)
    total = sum(row["stored_bytes"] for row in arrays)
    names = (
        *("path", "grid_chunk_count", "chunk_count", "missing", "files", "manifests"),
        *("stored_bytes", "logical_bytes"),
    )
    return [
        {
            **{name: row[name] for name in names},
            "mean_chunk_bytes": row["stored_bytes"] / row["chunk_count"]
            if row["chunk_count"]
            else None,
            "share": row["stored_bytes"] / total if total else None,
        }
        for row in arrays
    ]


def _missing_chunks(model: Model, snapshot: str, path: str | None = None) -> list[Row]:
    return [
        {
            **{name: row[name] for name in ("path", "grid_chunk_count", "chunk_count", "missing")},
            "present_share": row["chunk_count"] / row["grid_chunk_count"]
            if row["grid_chunk_count"]
            else None,
        }
        for row in model.arrays(snapshot)
        if row["missing"] != 0 and path in {None, row["path"]}
    ]


def _gaps(
    model: Model, snapshot: str, path: str | None = None, dimension: int = 0
) -> Iterator[Row]:
    """Each index along the dimension, then neighbours that are alike put together."""
    chunks = grouped(model.chunks(snapshot), "path")
    for node in model.nodes(snapshot):
        counts = counts_of(node) if node["type"] == "array" else []
        if dimension >= len(counts) or path not in {None, node["path"]}:
            continue
        if counts[dimension] > LONGEST:
            continue
        each = prod(count for place, count in enumerate(counts) if place != dimension)
        held = [row["index"][dimension] for row in chunks[node["path"],]]
        states = []
        for place in range(counts[dimension]):
            there = held.count(place)
            state = "missing" if there == 0 else "partial" if there < each else ""
            states.append((place, state if each else "", each - there))
        for state, run in groupby(states, lambda item: item[1]):
            members = list(run)
            if state:
                yield {
                    "path": node["path"],
                    "dimension": dimension,
                    "state": state,
                    "first_index": members[0][0],
                    "stop_index": members[-1][0] + 1,
                    "missing_chunks": sum(member[2] for member in members),
                }


def _coverage_by_file(model: Model, snapshot: str, path: str, dimension: int = 0) -> Iterator[Row]:
    chunks = [row for row in model.chunks(snapshot) if row["path"] == path]
    for (location,), members in grouped(chunks, "location").items():
        places = {row["index"][dimension] for row in members}
        yield {
            "location": location,
            "kind": members[0]["kind"],
            "first_index": min(places),
            "stop_index": max(places) + 1,
            "index_count": len(places),
            "contiguous": len(places) == max(places) + 1 - min(places),
            "chunk_count": len(members),
            "bytes": sum(row["length"] for row in members),
        }


def _compression(model: Model, snapshot: str) -> list[Row]:
    nodes = {row["path"]: row for row in model.nodes(snapshot)}
    kept = ("path", "chunk_count", "stored_bytes", "logical_bytes", "compression_ratio")
    return [
        {
            **{name: row[name] for name in kept},
            **{name: nodes[row["path"]][name] for name in ("data_type", "codecs")},
        }
        for row in model.arrays(snapshot)
    ]


def _compression_by_codec(model: Model, snapshot: str) -> Iterator[Row]:
    nodes = {row["path"]: row for row in model.nodes(snapshot)}
    both = [{**nodes[row["path"]], **row} for row in model.arrays(snapshot)]
    for (codecs, kind), members in grouped(both, "codecs", "data_type").items():
        known = [
            (floor(row["logical_bytes"] * row["chunk_count"] / row["grid_chunk_count"]), row)
            for row in members
            if row["logical_bytes"] is not None and row["grid_chunk_count"]
        ]
        stored = sum(row["stored_bytes"] for _, row in known)
        held = float(sum(size for size, _ in known)) if known else None
        yield {
            "codecs": codecs,
            "data_type": kind,
            "array_count": len(members),
            "chunk_count": sum(row["chunk_count"] for row in members),
            "stored_bytes": sum(row["stored_bytes"] for row in members),
            "held_bytes": held,
            "compression_ratio": held / stored if stored and held is not None else None,
        }


def _small_files(model: Model, snapshot: str, smaller_than_bytes: int = 1 << 20) -> list[Row]:
    names = ("location", "kind", "bytes_referenced", "chunk_count", "array_count")
    return [
        {name: row[name] for name in names}
        for row in model.files(snapshot)
        if row["bytes_referenced"] < smaller_than_bytes
    ]


def _fragmentation(model: Model, snapshot: str, smaller_than_bytes: int = 1 << 20) -> Iterator[Row]:
    files = {row["location"]: row for row in model.files(snapshot)}
    for (path, kind), members in grouped(in_files(model, snapshot), "path", "kind").items():
        mine = [files[location] for location in {row["location"] for row in members}]
        stored = sum(row["length"] for row in members)
        yield {
            "path": path,
            "kind": kind,
            "files": len(mine),
            "small_files": sum(row["bytes_referenced"] < smaller_than_bytes for row in mine),
            "one_chunk_files": sum(row["chunk_count"] == 1 for row in mine),
            "chunk_count": len(members),
            "stored_bytes": stored,
            "chunks_per_file": len(members) / len(mine),
            "bytes_per_file": stored / len(mine),
        }


def _virtual_storage(model: Model, snapshot: str, depth: int = 1) -> Iterator[Row]:
    virtual = [row for row in in_files(model, snapshot) if row["kind"] == "virtual"]
    for row in virtual:
        parts = row["location"].split("/")
        row["bucket"] = "/".join(parts[:3])
        row["prefix"] = "/".join(parts[:-1][: 3 + depth]) + "/"
    for (bucket, prefix), members in grouped(virtual, "bucket", "prefix").items():
        yield {
            "bucket": bucket,
            "prefix": prefix,
            "files": len({row["location"] for row in members}),
            "chunk_count": len(members),
            "array_count": len({row["node_id"] for row in members}),
            "bytes": sum(row["length"] for row in members),
        }


def _ranges(model: Model, snapshot: str) -> dict[Any, list[Row]]:
    filled = [row for row in in_files(model, snapshot) if row["length"]]
    return grouped(filled, "location", "offset", "length")


def _duplicate_ranges(model: Model, snapshot: str) -> list[Row]:
    return [
        {
            "location": location,
            "first_byte": offset,
            "length": length,
            "chunk_count": len(members),
            "array_count": len({row["node_id"] for row in members}),
            "repeated_bytes": (len(members) - 1) * length,
        }
        for (location, offset, length), members in _ranges(model, snapshot).items()
        if len(members) > 1
    ]


def _overlapping_ranges(model: Model, snapshot: str) -> Iterator[Row]:
    """Each range compared with each."""
    ranges = _ranges(model, snapshot)
    for (location, offset, length), members in ranges.items():
        before = [
            other[1] + other[2]
            for other in ranges
            if other[0] == location and other[1:] < (offset, length)
        ]
        if before and max(before) > offset:
            yield {
                "location": location,
                "first_byte": offset,
                "length": length,
                "chunk_count": len(members),
                "earlier_stop": max(before),
                "shared_bytes": min(max(before), offset + length) - offset,
            }


def _largest_chunks(
    model: Model, snapshot: str, path: str | None = None, count: int = 20
) -> list[Row]:
    chunks = [row for row in model.chunks(snapshot) if path in {None, row["path"]}]
    chunks.sort(key=lambda row: (-row["length"], row["path"], row["coord"]))
    return [
        {
            "rank": rank,
            "first_byte": row["offset"],
            **{name: row[name] for name in ("path", "index", "kind", "location", "length")},
        }
        for rank, row in enumerate(chunks[:count], 1)
    ]


def _manifest_health(model: Model, snapshot: str) -> Iterator[Row]:
    """Boxes of manifests that meet, and manifests that begin before an earlier one ends."""
    manifests = model.manifests(snapshot)
    spans = {
        key: (min(row["coord"] for row in members), key[1], max(row["coord"] for row in members))
        for key, members in grouped(model.chunks(snapshot), "node_id", "manifest").items()
    }
    for row in manifests:
        name = row["manifest"]
        met = {
            other["manifest"]
            for other in manifests
            for mine in row["arrays"]
            for theirs in other["arrays"]
            if other is not row
            and mine["node_id"] == theirs["node_id"]
            and all(
                a["start"] < b["stop"] and b["start"] < a["stop"]
                for a, b in zip(mine["extent"], theirs["extent"], strict=True)
            )
        }
        late = sum(
            any(
                other[:2] < spans[mine["node_id"], name][:2]
                and other[2] >= spans[mine["node_id"], name][0]
                for key, other in spans.items()
                if key[0] == mine["node_id"]
            )
            for mine in row["arrays"]
        )
        yield {
            **{key: row[key] for key in ("manifest", "size_bytes", "row_count", "array_count")},
            "bytes_per_row": row["size_bytes"] / row["row_count"],
            "overlapping": len(met),
            "out_of_order": late,
        }


def _growth(model: Model, snapshot: str) -> Iterator[Row]:
    kept = ("snapshot", "parent", "written_at", "message", "manifest_count", "manifest_bytes")
    for row in model.snapshots(snapshot):
        new = model.chunks(row["snapshot"])
        old = [] if row["parent"] is None else model.chunks(row["parent"])
        stored, before = (sum(each["length"] for each in side) for side in (new, old))
        yield {
            **{name: row[name] for name in kept},
            "chunk_count": len(new),
            "added_chunks": len(new) - len(old),
            "stored_bytes": stored,
            "added_bytes": stored - before,
        }


def _growth_by_array(model: Model, snapshot: str) -> Iterator[Row]:
    for row in model.snapshots(snapshot):
        new = grouped(model.chunks(row["snapshot"]), "node_id")
        old = {} if row["parent"] is None else grouped(model.chunks(row["parent"]), "node_id")
        for key in new.keys() | old.keys():
            sizes = [sum(each["length"] for each in side.get(key, [])) for side in (new, old)]
            counts = [len(side.get(key, [])) for side in (new, old)]
            if sizes[0] != sizes[1] or counts[0] != counts[1]:
                yield {
                    "snapshot": row["snapshot"],
                    "written_at": row["written_at"],
                    "path": (new.get(key) or old[key])[0]["path"],
                    "node_id": key[0],
                    "chunk_count": counts[0],
                    "added_chunks": counts[0] - counts[1],
                    "stored_bytes": sizes[0],
                    "added_bytes": sizes[0] - sizes[1],
                }


def _changes_by_array(model: Model, snapshot: str, since: str) -> Iterator[Row]:
    """``since`` is the id of a snapshot."""
    found = grouped(model.changes(since, snapshot), "path", "change", "node_type")
    for (path, change, kind), members in found.items():
        yield {
            "path": path,
            "change": change,
            "node_type": kind,
            "change_count": len(members),
            "before_bytes": sum(row["before_length"] or 0 for row in members),
            "after_bytes": sum(row["after_length"] or 0 for row in members),
        }


def _references_to(model: Model, _: str, location: str) -> Iterator[Row]:
    """Each snapshot of each branch and tag, looked through."""
    chunks: dict[str, list[Row]] = {}
    for ref in model.refs():
        paths = defaultdict(list)
        for age, each in enumerate(model.history(ref["snapshot"])):
            if each not in chunks:
                chunks[each] = in_files(model, each)
            hits = [row for row in chunks[each] if row["location"].startswith(location)]
            for (path,), members in grouped(hits, "path").items():
                paths[path].append((age, each, members))
        for path, found in paths.items():
            yield {
                "type": ref["type"],
                "name": ref["name"],
                "path": path,
                "at_tip": found[0][0] == 0,
                "snapshot_count": len(found),
                "newest_snapshot": found[0][1],
                "chunk_count": len(found[0][2]),
                "bytes": sum(row["length"] for row in found[0][2]),
            }


def _changed_sources(model: Model, snapshot: str, observed_files: Any) -> Iterator[Row]:
    seen = {row["location"]: row for row in observed_files.to_pylist()}
    for row in model.chunks(snapshot):
        found = seen.get(row["location"])
        if found is None or row["kind"] != "virtual":
            continue
        etags = [each and each.replace('"', "") for each in (row["etag"], found["etag"])]
        size, times = found["size_bytes"], (row["last_modified"], found["last_modified"])
        if None not in etags and etags[0] != etags[1]:
            problem = "etag"
        elif None not in times and _is_younger(*times):
            problem = "time"
        elif size is not None and row["offset"] + row["length"] > size:
            problem = "length"
        else:
            continue
        yield {
            **{name: row[name] for name in ("path", "index", "location", "length")},
            "first_byte": row["offset"],
            "problem": problem,
            "recorded_etag": row["etag"],
            "observed_etag": found["etag"],
            "recorded_time": times[0],
            "observed_time": times[1],
            "observed_bytes": size,
        }


def _is_younger(recorded: Any, observed: Any) -> bool:
    """A record of whole seconds is compared in seconds."""
    if recorded.microsecond == 0:
        observed = observed.replace(microsecond=0)
    return bool(observed > recorded)


def _unreferenced_files(model: Model, _: str) -> list[Row]:
    """Files on the disk, without those that a snapshot of a branch or tag is made of."""
    reached = {each for ref in model.refs() for each in model.history(ref["snapshot"])}
    live = {f"{letter}/{each}.parquet" for each in reached for letter in "st"}
    chunks = set()
    for each in reached:
        live |= {f"i/{row['manifest']}.parquet" for row in model.manifests(each)}
        live |= {f"a/{name}" for name in model.attribute_files(each)}
        chunks |= {row["location"] for row in in_files(model, each) if row["kind"] == "native"}
    found = []
    for letter in "acist":
        for path in (model.root / letter).glob("*"):
            key, location = f"{letter}/{path.name}", f"file://{path}"
            if key not in live and location not in chunks:
                found.append({"location": location, "size_bytes": path.stat().st_size})
    return found


ANSWERS: dict[str, Callable[..., Any]] = {
    "array_sizes": _array_sizes,
    "changed_sources": _changed_sources,
    "changes_by_array": _changes_by_array,
    "compression": _compression,
    "compression_by_codec": _compression_by_codec,
    "coverage_by_file": _coverage_by_file,
    "duplicate_ranges": _duplicate_ranges,
    "fragmentation": _fragmentation,
    "gaps": _gaps,
    "growth": _growth,
    "growth_by_array": _growth_by_array,
    "largest_chunks": _largest_chunks,
    "manifest_health": _manifest_health,
    "missing_chunks": _missing_chunks,
    "overlapping_ranges": _overlapping_ranges,
    "references_to": _references_to,
    "small_files": _small_files,
    "unreferenced_files": _unreferenced_files,
    "virtual_storage": _virtual_storage,
}
"""By the name of the query. Rows of manifest_health lack the columns ``manifest_set`` and ``fill``, which the
settings decide; those of unreferenced_files lack ``last_modified``."""
