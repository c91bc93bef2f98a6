"""Chunks of an array between numpy and bytes, with the codecs that the array has: zarr's own, many at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from icechunk_arrow.core.cf_values import missing_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icechunk_arrow.session import OpenSession

__all__ = ["ChunkCodecs"]


class ChunkCodecs:
    """Encodes chunks of one array, and reads stored ones."""

    def __init__(self, session: OpenSession, path: str) -> None:
        self.path = path
        self._array = zarr.open_array(
            store=session.store, path=path.strip("/"), mode="r", zarr_format=3
        )
        inner: Any = self._array.async_array
        meta: Any = self._array.metadata
        self._pipeline: Any = inner.codec_pipeline
        self._prototype = default_buffer_prototype()
        grid = session.get_array(path).grid
        self._chunk_shape = grid.chunk_shape
        self._spec = ArraySpec(
            shape=grid.chunk_shape,
            dtype=meta.data_type,
            fill_value=meta.fill_value,
            config=inner.config,
            prototype=self._prototype,
        )

    @property
    def fill(self) -> Any:
        """What is read where nothing was written."""
        return self._array.fill_value

    @property
    def missing(self) -> Any:
        """What stands for a value that is null.

        NaN or no time where there are such, else what the attributes say, else the fill value.
        """
        dtype = self._array.dtype
        match dtype.kind:
            case "f":
                return np.nan
            case "M":
                return np.datetime64("NaT", "us")
            case "i" | "u":
                limits = np.iinfo(dtype)
                for mark in reversed(missing_values(self._array.attrs.asdict())):
                    if isinstance(mark, np.integer) and limits.min <= mark <= limits.max:
                        return dtype.type(mark)
        return self.fill

    def encode(self, chunks: Sequence[npt.NDArray[Any]]) -> list[bytes]:
        """Encode chunks."""
        buffer = self._prototype.nd_buffer.from_numpy_array
        return sync(self._encode([buffer(chunk) for chunk in chunks]))

    async def _encode(self, buffers: Sequence[Any]) -> list[bytes]:
        encoded = await asyncio.gather(
            *(self._pipeline.encode([(buffer, self._spec)]) for buffer in buffers)
        )
        return [each.to_bytes() for (each,) in map(list, encoded)]

    def lay_under(
        self,
        cells: npt.NDArray[Any],
        known: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
    ) -> None:
        """Give the cells of some chunks that are not known the values that are stored.

        Parameters
        ----------
        cells, known
            A row for each chunk of a block.
        rows, places
            Which rows these chunks are, and where in the grid.
        """
        edges = np.array(self._chunk_shape)
        low = places.min(axis=0) * edges
        high = np.minimum((places.max(axis=0) + 1) * edges, self._array.shape)
        box = tuple(slice(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True))
        stored = np.asarray(self._array[box])
        for row, first in zip(rows.tolist(), (places * edges - low).tolist(), strict=True):
            side = tuple(slice(a, a + n) for a, n in zip(first, self._chunk_shape, strict=True))
            under = stored[side]
            inside = tuple(slice(0, n) for n in under.shape)
            mine = cells[row].reshape(self._chunk_shape)[inside]
            unknown = ~known[row].reshape(self._chunk_shape)[inside]
            mine[unknown] = under[unknown]
