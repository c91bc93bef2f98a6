"""A storm on the network between a bucket and Spark: driver and tasks write rows, and read them, through a proxy.

What holds: what was acknowledged is there; what failed is there wholly or not at all, and the error is one of ours
that names a file or place, through however many layers of Spark it came; what is read is what was written.
"""

from __future__ import annotations

import random
import re
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

import icechunk_arrow.spark
from icechunk_arrow import Repository, errors
from tests.faults.network_clients import as_ours, names_a_thing
from tests.faults.network_storm import RATES, SETTINGS, is_listing, may
from tests.faults.proxy import Spoil, fault_proxy, seeded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from icechunk_arrow.errors import IcechunkArrowError
    from tests.servers import S3Server

__all__ = ["Figures", "storm"]

LENGTH, CHUNK = 96, 4
_OF_A_TASK = re.compile(r"icechunk_arrow\.errors\.(\w+): (.*)")
PERSISTENT = 0.15
"""A task that fails is tried again by nobody here: what lasts is an error at once."""


@dataclass(kw_only=True)
class Figures:
    """What a storm was."""

    requests: int = 0
    spoilt: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


def _handed_on(error: Exception) -> IcechunkArrowError | None:
    """Find the error of a task in what Spark says when a frame of a user's is computed."""
    told = _OF_A_TASK.search(str(error))
    return getattr(errors, told[1])(told[2]) if told else None


class _Storm:
    """One array, of which each step writes some cells, or reads all."""

    def __init__(self, spark: Any, open_: Callable[[], Repository], seed: int) -> None:
        self.spark, self.open = spark, open_
        self.rng = np.random.default_rng(seed)
        self.values = np.zeros(LENGTH, np.int64)
        """What was acknowledged."""
        self.figures = Figures()

    def write(self) -> None:
        """Write some cells: all of them stand there afterwards, or an error came."""
        places = np.sort(self.rng.choice(LENGTH, 2 * CHUNK, replace=False))
        cells = self.rng.integers(1, 1 << 40, len(places))
        rows = [(int(x), int(a)) for x, a in zip(places, cells, strict=True)]
        frame = self.spark.createDataFrame(rows, "x long, a long").repartition(2)
        after = self.values.copy()
        after[places] = cells
        self.after = after
        icechunk_arrow.spark.write_rows(frame, self.open(), ["a"], coordinates={"x": "index"})
        self.values = after

    def read(self) -> None:
        """Read all cells, in tasks."""
        frame = icechunk_arrow.spark.read_array(self.spark, self.open(), "/a", partition_bytes=64)
        found = {row["x"]: row["a"] for row in frame.collect()}
        assert found == dict(enumerate(self.values.tolist()))

    def tried(self, name: str) -> bool:
        """Do it; whether it went well."""
        try:
            getattr(self, name)()
        except AssertionError:
            raise
        except Exception as error:
            ours = as_ours(error) or _handed_on(error)
            if ours is None or not names_a_thing(ours):
                raise AssertionError(f"{name}: {ours or error!r}") from error
            self.figures.errors[f"{name}: {type(ours).__name__}"] += 1
            return False
        self.figures.done[name] += 1
        return True

    def settle(self, stored: npt.NDArray[np.int64]) -> None:
        """After an error: all that was to be written stands there, or nothing of it."""
        there = stored.tolist()
        assert there in (self.values.tolist(), self.after.tolist()), "half a write is there"
        self.values = stored


def storm(folder: Path, seed: int, count: int, *, spark: Any, server: S3Server) -> Figures:
    """Write and read so often."""
    url = f"{server.url}/{secrets.token_hex(8)}"
    plain = Repository.create(url, server.storage_options)
    session = plain.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(LENGTH,), chunks=(CHUNK,), dtype="i8", dimension_names=["x"]
    )
    session.commit("an array")

    def stored() -> npt.NDArray[np.int64]:
        store = Repository.open(str(server.folder / url.removeprefix("s3://"))).readonly_session(
            "main"
        )
        return np.asarray(zarr.open_array(store.store, path="a", mode="r")[:])

    def fits(spoil: Spoil, method: str, path: str) -> bool:
        return may(spoil, method, path, is_web=False)

    plan = seeded(seed, RATES, may=fits, persistent=PERSISTENT)
    with fault_proxy(
        server.endpoint,
        plan,
        is_listing=is_listing,
        whole=server.find_object,
        chance=random.Random(f"{seed} s3"),
    ) as proxy:
        options = {**server.storage_options, "endpoint_url": proxy.endpoint}
        under_way = _Storm(
            spark,
            lambda: Repository.open(url, options, storage_settings=SETTINGS, pickle_secrets=True),
            seed,
        )
        try:
            for _ in range(count):
                if not under_way.tried("write"):
                    proxy.settle()
                    under_way.settle(stored())
                under_way.tried("read")
            proxy.plan = lambda *_: None
            assert under_way.tried("read")
        except BaseException as error:
            error.add_note(f"seed {seed}, count {count}")
            raise
        assert not proxy.strayed, proxy.strayed
        figures = under_way.figures
        figures.requests = len(proxy.passed)
        figures.spoilt.update({spoil.name: n for spoil, n in proxy.spoilt.items()})
    return figures
