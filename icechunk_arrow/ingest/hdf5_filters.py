"""The filters of an HDF5 dataset, as codecs of a Zarr v3 array that read the same bytes.

Owns which filters can be said, and with what names. zarr has these codecs itself; they have no specification yet,
of which zarr 3.1 warns whenever such an array is opened.
"""

from __future__ import annotations

from typing import Any

__all__ = ["codec_of_filter"]

_NAMES = {4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32004: "lz4", 32008: "bitshuffle"}


def codec_of_filter(number: int, settings: tuple[int, ...], name: bytes) -> dict[str, Any] | str:
    """Give the codec that undoes a filter, or the filter's name where there is none."""
    match number:
        case 1:
            return _codec("zlib", level=min(settings[0], 9) if settings else 1)
        case 2:
            return _codec("shuffle", elementsize=settings[0])
        case 3:
            return _codec("fletcher32")
        case 307:
            return _codec("bz2", level=settings[0] if settings else 9)
        case 32001:
            return _codec("blosc")
        case 32015:
            return _codec("zstd", level=settings[0] if settings else 3)
    return _NAMES.get(number) or name.decode(errors="replace") or f"number {number}"


def _codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": f"numcodecs.{name}", "configuration": configuration}
