"""What `make demo` shows: two versions of an array, read through Zarr, inspected as plain Parquet.

Everything happens in a temporary folder; nothing is left behind.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import numpy as np
import zarr

import icechunk_arrow.duckdb
from icechunk_arrow import Repository


def say(title: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{title}\033[0m" if title else "")


def picture(values: np.ndarray) -> str:
    """Draw numbers as characters, dark to light."""
    shades = np.array(list(" .:-=+*#%@"))
    low, high = float(values.min()), float(values.max())
    levels = ((values - low) / (high - low or 1.0) * (len(shades) - 1)).astype(int)
    return "\n".join("    " + "".join(row) for row in shades[levels])


def write_two_versions(repo: Repository) -> tuple[str, str]:
    """Commit an array, then a change to a part of it."""
    session = repo.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "demo"})
    temperature = root.create_array(
        "temperature",
        shape=(24, 64),
        chunks=(6, 16),
        dtype="float64",
        compressors=None,
        dimension_names=("lat", "lon"),
    )
    lat, lon = np.mgrid[-1:1:24j, 0 : 4 * np.pi : 64j]
    temperature[:] = 15 + 10 * np.cos(lat * 2) * np.sin(lon)
    first = session.commit("A first field")

    session = repo.writable_session("main")
    zarr.open_array(session.store, path="temperature")[6:12, 16:32] = 40
    second = session.commit("A heat wave", metadata={"reason": "demo"})
    return first, second


def inventory(repo: Repository) -> str:
    """Ask the chunk manifests themselves: DuckDB reads these Parquet files where they are."""
    con = duckdb.connect()
    icechunk_arrow.duckdb.attach(con, repo, "demo")
    return str(
        con.sql('SELECT path, index, kind, "offset", length FROM demo.chunks ORDER BY coord')
    )


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "demo"
        repo = Repository.create(root)
        say("Two commits")
        first, second = write_two_versions(repo)
        for info in repo.ancestry(branch="main"):
            print(f"    {info.id}  {info.written_at:%H:%M:%S.%f}  {info.message}")

        for title, snapshot_id in (("The first version", first), ("The second", second)):
            say(f"{title}, read through Zarr")
            store = repo.readonly_session(snapshot_id=snapshot_id).store
            print(picture(zarr.open_array(store, path="temperature", mode="r")[:]))

        say("The chunk inventory, asked of the manifests by DuckDB")
        print(inventory(repo))

        say("What lies on disk")
        for path in sorted(root.rglob("*")):
            if path.is_file():
                print(f"    {path.stat().st_size:7d}  {path.relative_to(root)}")


if __name__ == "__main__":
    main()
