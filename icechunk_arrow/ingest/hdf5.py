"""HDF5 and NetCDF-4 files: groups, variables, how the bytes of each are stored, and where.

Owns reading an open file into values. Knows h5py, and the ways in which NetCDF writes dimensions.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa

from icechunk_arrow.core.cf import DECIDING, PACKING, decoded_dtype
from icechunk_arrow.core.columns import from_numpy
from icechunk_arrow.errors import CorruptFileError, IcechunkArrowError, InvalidInputError
from icechunk_arrow.ingest.array_documents import (
    bytes_codec,
    data_type_of,
    fill_value_of,
    xarray_fill_value,
)
from icechunk_arrow.ingest.collecting import uncollected
from icechunk_arrow.ingest.source import (
    FileContents,
    Meaning,
    ScanOptions,
    Variable,
    message_of,
    references_batch,
    repeated,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy.typing as npt

    from icechunk_arrow.storage.source_files import SourceFiles

_HIDDEN = frozenset(
    {
        "CLASS",
        "DIMENSION_LABELS",
        "DIMENSION_LIST",
        "NAME",
        "REFERENCE_LIST",
        "_NCProperties",
        "_Netcdf4Coordinates",
        "_Netcdf4Dimid",
        "_nc3_strict",
    }
)
"""What the HDF5 and NetCDF libraries write for themselves."""
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable."
_FLOATS = {("f", 2), ("f", 4), ("f", 8), ("c", 8), ("c", 16)}
_NOT_COORDINATE = "_nc4_non_coord_"
_SLAB_BYTES = 1 << 24
_FILTERS = {4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32004: "lz4", 32008: "bitshuffle"}
"""Names of filters for which Zarr has no codec."""


@dataclass(frozen=True, slots=True)
class Hdf5File:
    """An open file: a ``VariableSource``."""

    file: h5py.File
    location: str
    options: ScanOptions

    @classmethod
    @contextmanager
    def open(cls, files: SourceFiles, options: ScanOptions, location: str) -> Iterator[Hdf5File]:
        """Open a file; errors name it."""
        try:
            with files.opened(location) as handle:
                with uncollected():
                    file = h5py.File(handle, "r")
                try:
                    yield cls(file, location, options)
                finally:
                    with uncollected():
                        file.close()
        except IcechunkArrowError as error:
            if location in error.message:
                raise
            raise type(error)(message_of(location, error)) from error
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(
                f"{location} cannot be read as HDF5 or NetCDF-4: {error}"
            ) from error

    @uncollected()
    def contents(self) -> FileContents:
        """Read what the file holds, its values apart."""
        options = self.options
        root = self.file.get(options.source_group)
        if not isinstance(root, h5py.Group):
            raise InvalidInputError(f"there is no group {options.source_group!r} in the file")
        dimensions = _Dimensions()
        groups: dict[str, dict[str, Any]] = {"/": _attributes(root, "/", options.drop)}
        datasets: list[tuple[str, h5py.Dataset]] = []
        for path, node in _nodes(root, "", options.drop):
            if isinstance(node, h5py.Group):
                groups[path] = _attributes(node, path, options.drop)
            else:
                datasets.append((path, node))
        _number_dimensions(root, [node for _, node in datasets], dimensions)
        named = [(path, node, _dims(node, dimensions)) for path, node in datasets]
        for _, node, dims in named:
            for name, length in zip(dims, node.shape or (), strict=True):
                dimensions.use(name, length)
        variables = {
            path: _variable(path, node, dims, dimensions, options)
            for path, node, dims in named
            if not _is_bare_dimension(node)
        }
        return FileContents(groups=groups, variables=variables)

    @uncollected()
    def references(self, path: str) -> pa.RecordBatch:
        """Find the chunks of a variable that are stored; values in one piece are one.

        Chunks that are stored without some of the variable's filters have no location.
        """
        dataset = self._dataset(path)
        places = _chunked(dataset) if dataset.chunks else _in_one_piece(dataset)
        index, offset, length, plain = places
        location = repeated(self.location, len(index))
        if not plain.all():
            location = location.take(from_numpy(np.arange(len(index)), pa.int64(), plain))
        return references_batch(
            index,
            location,
            from_numpy(offset, pa.int64(), plain),
            from_numpy(length, pa.int64(), plain),
        )

    @uncollected()
    def values(self, path: str, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Read stored values, with fill values where the file has not been written as far; text as objects."""
        dataset = self._dataset(path)
        return _values(dataset, _dtype(dataset)[0], box)

    @uncollected()
    def meaning(self, path: str) -> Meaning:
        """Tell what stored values of a variable mean."""
        dataset = self._dataset(path)
        units = dataset.attrs.get("units", b"")
        return Meaning(
            packing=_packing(dataset, path, self.options.drop),
            fill_value=dataset.fillvalue,
            units=units.decode() if isinstance(units, bytes) else str(units),
        )

    def _dataset(self, path: str) -> h5py.Dataset:
        """Find the dataset of a variable that a scan has seen."""
        inner = path.lstrip("/")
        group = self.file[self.options.source_group]
        node = group.get(inner)
        if node is None:
            above, _, name = inner.rpartition("/")
            node = group.get(f"{above}/{_NOT_COORDINATE}{name}".lstrip("/"))
        if not isinstance(node, h5py.Dataset):
            raise InvalidInputError(f"there is no variable {path!r} in the file any more")
        return node


@dataclass(slots=True)
class _Dimensions:
    """Names and lengths of the dimensions of a file, found as variables use them."""

    lengths: dict[str, int] = field(default_factory=dict)
    by_id: dict[int, str] = field(default_factory=dict)
    phony: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    phony_count: int = 0

    def use(self, path: str, length: int) -> None:
        self.lengths[path] = max(self.lengths.get(path, 0), length)

    def invent(self, group: str, lengths: list[int], free: list[int]) -> dict[int, str]:
        """Name dimensions that the file leaves unnamed as the NetCDF library does: by their lengths."""
        known = self.phony.setdefault(group, [])
        chosen: dict[int, str] = {}
        for axis in free:
            fitting = (
                name
                for name, length in known
                if length == lengths[axis] and name not in chosen.values()
            )
            name = next(fitting, None)
            if name is None:
                name = f"phony_dim_{self.phony_count}"
                self.phony_count += 1
                known.append((name, lengths[axis]))
            chosen[axis] = name
        return chosen


def _nodes(group: h5py.Group, above: str, drop: Collection[str]) -> Iterator[tuple[str, Any]]:
    for name in group:
        path = f"{above}/{name.removeprefix(_NOT_COORDINATE)}"
        if path in drop:
            continue
        node = group.get(name)
        if node is None:
            raise InvalidInputError(
                f"{path!r} is a link to something that is not there; leave it out with drop=[{path!r}]"
            )
        if isinstance(node, h5py.Group):
            yield path, node
            yield from _nodes(node, path, drop)
        elif isinstance(node, h5py.Dataset):
            yield path, node


def _number_dimensions(
    root: h5py.Group, nodes: list[h5py.Dataset], dimensions: _Dimensions
) -> None:
    """Learn which number the NetCDF library gave to each dimension, in groups above too."""
    above = root
    while above.name != "/":
        above = above.parent
        nodes += [node for node in map(above.get, above) if isinstance(node, h5py.Dataset)]
    for node in nodes:
        number = node.attrs.get("_Netcdf4Dimid")
        if number is not None and node.is_scale:
            dimensions.by_id[int(number)] = node.name
            if node.shape and node.ndim == 1:
                dimensions.use(node.name, node.shape[0])


def _dims(dataset: h5py.Dataset, dimensions: _Dimensions) -> tuple[str, ...]:
    """Name the dimensions of a dataset, by the paths of their scales."""
    shape = dataset.shape or ()
    if not shape:
        return ()
    attributes = dataset.attrs
    numbers = attributes.get("_Netcdf4Coordinates")
    if numbers is not None and all(int(number) in dimensions.by_id for number in numbers):
        return tuple(dimensions.by_id[int(number)] for number in numbers)
    names: dict[int, str] = {}
    if "DIMENSION_LIST" in attributes:
        for axis, scales in enumerate(attributes["DIMENSION_LIST"]):
            if len(scales):
                names[axis] = dataset.file[scales[0]].name
    elif dataset.is_scale:
        names[0] = dataset.name
    free = [axis for axis in range(len(shape)) if axis not in names]
    group = dataset.name.rpartition("/")[0]
    names |= dimensions.invent(group, list(shape), free)
    return tuple(names[axis] for axis in range(len(shape)))


def _is_bare_dimension(dataset: h5py.Dataset) -> bool:
    name = dataset.attrs.get("NAME") if dataset.is_scale else None
    return isinstance(name, bytes) and name.startswith(_NO_VARIABLE)


def _variable(
    path: str,
    dataset: h5py.Dataset,
    dims: tuple[str, ...],
    dimensions: _Dimensions,
    options: ScanOptions,
) -> Variable:
    dtype, fault = _dtype(dataset)
    if fault is not None:
        raise InvalidInputError(f"{path!r} {fault}; leave it out with drop=[{path!r}]")
    if dataset.shape is None:
        raise InvalidInputError(f"{path!r} has no shape; leave it out with drop=[{path!r}]")
    shape = tuple(
        dimensions.lengths[name] if most is None else length
        for name, length, most in zip(dims, dataset.shape, dataset.maxshape, strict=True)
    )
    codecs, unreferable = _codecs(dataset, dtype)
    names = tuple(name.rpartition("/")[2].removeprefix(_NOT_COORDINATE) for name in dims)
    variable = Variable(
        path=path,
        dims=names,
        shape=shape,
        chunks=dataset.chunks,
        dtype=dtype,
        data_type=data_type_of(dtype),
        fill_value=fill_value_of(dataset.fillvalue, dtype),
        codecs=codecs,
        attributes=_attributes(dataset, path, options.drop, dtype),
        dropped={
            name: _plain(dataset.attrs[name])
            for name in dataset.attrs
            if name in DECIDING and f"{path}@{name}" in options.drop
        },
        decoded=_decoded(dtype, _packing(dataset, path, options.drop)),
        unreferable=unreferable,
        chunk_count=dataset.id.get_num_chunks() if dataset.chunks else 1,
        fingerprint=None,
    )
    if options.concat_dim is not None and options.concat_dim not in names:
        return replace(variable, fingerprint=_fingerprint(variable, dataset))
    return variable


def _fingerprint(variable: Variable, dataset: h5py.Dataset) -> str:
    """Sum up the values, of whatever size: what is taken from one file must be the same in all."""
    digest = hashlib.sha256()
    rest = tuple(slice(0, length) for length in variable.shape[1:])
    for rows in _slabs(variable):
        values = _values(dataset, variable.dtype, (*rows, *rest))
        texts = variable.dtype is None
        digest.update("\0".join(values.ravel().tolist()).encode() if texts else values.tobytes())
    return digest.hexdigest()


def _slabs(variable: Variable) -> Iterator[tuple[slice, ...]]:
    """Cut the first axis into parts of a size that memory has, of whole chunks."""
    if not variable.shape:
        yield ()
        return
    row_bytes = max(1, variable.size_bytes // max(1, variable.shape[0]))
    edge = variable.chunks[0] if variable.chunks else 1
    step = max(1, _SLAB_BYTES // (row_bytes * edge)) * edge
    for start in range(0, variable.shape[0], step):
        yield (slice(start, min(start + step, variable.shape[0])),)


def _packing(dataset: h5py.Dataset, path: str, drop: Collection[str]) -> dict[str, Any]:
    """Give the attributes that say what stored numbers stand for, as the file has them."""
    return {
        name: dataset.attrs[name]
        for name in dataset.attrs
        if name in PACKING and f"{path}@{name}" not in drop
    }


def _decoded(dtype: np.dtype[Any] | None, packing: dict[str, Any]) -> str | None:
    if dtype is None or dtype.kind not in "iuf":
        return None
    try:
        return decoded_dtype(dtype, packing).str
    except (TypeError, ValueError):  # a scale that is text, as nothing would decode it
        return None


def _dtype(dataset: h5py.Dataset) -> tuple[np.dtype[Any] | None, str | None]:
    """Give the type of values, or what is wrong with it."""
    dtype = dataset.dtype
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return (None, None) if text.length is None else (np.dtype(f"S{text.length}"), None)
    if dtype.kind in "biu" or (dtype.kind, dtype.itemsize) in _FLOATS:
        return np.dtype(dtype.str), None
    return None, f"is of the type {dtype}, for which Zarr arrays have no equal"


def _codecs(
    dataset: h5py.Dataset, dtype: np.dtype[Any] | None
) -> tuple[tuple[Any, ...], str | None]:
    """Give the codecs that read the stored bytes; or why none do."""
    if dtype is None:
        return (), "text of any length stands in another place of the file than its array"
    properties = dataset.id.get_create_plist()
    layout = properties.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        return (), "it is put together of other files"
    if properties.get_external_count():
        return (), "its values stand in another file"
    if layout == h5py.h5d.COMPACT:
        return (), "its values stand in the header of the file"
    fault = _odd_bytes(dataset)
    if fault is not None:
        return (), fault
    codecs: list[Any] = [bytes_codec(dtype)]
    for place in range(properties.get_nfilters()):
        number, _, settings, name = properties.get_filter(place)
        codec = _filter_codec(number, settings, name)
        if isinstance(codec, str):
            return (), f"Zarr has no codec for its filter {codec}"
        codecs.append(codec)
    return tuple(codecs), None


def _filter_codec(number: int, settings: tuple[int, ...], name: bytes) -> dict[str, Any] | str:
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
    return _FILTERS.get(number) or name.decode(errors="replace") or f"number {number}"


def _codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": f"numcodecs.{name}", "configuration": configuration}


def _odd_bytes(dataset: h5py.Dataset) -> str | None:
    """Say why the stored bytes are not those of the type that h5py gives, which converts them."""
    kind = dataset.id.get_type()
    if isinstance(kind, h5py.h5t.TypeStringID):
        padded = kind.get_strpad() != h5py.h5t.STR_NULLTERM or kind.get_size() == 1
        return None if padded else "its texts end at a NUL, and anything may stand behind"
    if isinstance(kind, h5py.h5t.TypeEnumID):
        kind = kind.get_super()
    if isinstance(kind, h5py.h5t.TypeIntegerID | h5py.h5t.TypeBitfieldID):
        whole = kind.get_precision() == 8 * kind.get_size() and kind.get_offset() == 0
        return None if whole else "its numbers have fewer bits than their bytes"
    if isinstance(kind, h5py.h5t.TypeFloatID) and kind != h5py.h5t.py_create(dataset.dtype):
        return "its floats are not those of IEEE 754"
    return None


def _attributes(
    node: Any, path: str, drop: Collection[str], dtype: np.dtype[Any] | None = None
) -> dict[str, Any]:
    """Read attributes as JSON has them, in the form that xarray reads from Zarr."""
    attributes: dict[str, Any] = {}
    for name in node.attrs:
        if name in _HIDDEN or f"{path}@{name}" in drop:
            continue
        value = node.attrs[name]
        if name == "_FillValue" and isinstance(node, h5py.Dataset):
            scalar = np.asarray(value).reshape(-1)
            attributes[name] = xarray_fill_value(scalar[0] if len(scalar) else b"", dtype)
            continue
        try:
            attributes[name] = _plain(value)
        except TypeError:
            raise InvalidInputError(
                f"the attribute {name!r} of {path!r} is of a type that JSON does not have; leave it out "
                f"with drop=['{path}@{name}']"
            ) from None
    return attributes


def _plain(value: Any) -> Any:
    """Turn the value of an attribute into one of JSON; a list of one is its item, as in NetCDF."""
    if isinstance(value, h5py.Empty):
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray):
        items = [_plain(each) for each in value.tolist()]
        return items[0] if len(items) == 1 else items
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    raise TypeError


def _values(
    dataset: h5py.Dataset, dtype: np.dtype[Any] | None, box: tuple[slice, ...]
) -> npt.NDArray[Any]:
    inside = tuple(
        slice(min(part.start, length), min(part.stop, length))
        for part, length in zip(box, dataset.shape, strict=True)
    )
    values = dataset.asstr()[inside] if dtype is None else dataset[inside]
    values = np.asarray(values, object if dtype is None else dtype.newbyteorder("="))
    if inside == box:
        return values
    fill = "" if dtype is None else dataset.fillvalue
    whole = np.full([part.stop - part.start for part in box], fill, values.dtype)
    whole[tuple(slice(0, length) for length in values.shape)] = values
    return whole


# -- where chunks stand: places in the file's own grid, offsets, lengths, and whether a reference can say them

_Places = tuple[Any, Any, Any, Any]  # of numpy arrays, which have a row for each chunk


def _chunked(dataset: h5py.Dataset) -> _Places:
    """Read the index of chunks; some may be stored otherwise than the dataset says."""
    rows: list[tuple[tuple[int, ...], int, int, int]] = []
    if dataset.id.get_num_chunks():
        dataset.id.chunk_iter(rows.append)
    if not rows:
        return _nothing(dataset.ndim)
    corners, masks, offsets, lengths = zip(*rows, strict=True)
    corner = np.array(corners, np.int64).reshape(len(rows), dataset.ndim)
    inside = (corner < np.array(dataset.shape, np.int64)).all(axis=1)
    return (
        (corner // np.array(dataset.chunks, np.int64))[inside],
        np.array(offsets, np.int64)[inside],
        np.array(lengths, np.int64)[inside],
        np.array(masks, np.int64)[inside] == 0,
    )


def _in_one_piece(dataset: h5py.Dataset) -> _Places:
    start = dataset.id.get_offset()
    if start is None or 0 in dataset.shape:
        return _nothing(dataset.ndim)
    one = np.zeros((1, dataset.ndim), np.int64)
    length = np.array([dataset.id.get_storage_size()], np.int64)
    return one, np.array([start], np.int64), length, np.ones(1, np.bool_)


def _nothing(ndim: int) -> _Places:
    none = np.empty(0, np.int64)
    return np.empty((0, ndim), np.int64), none, none, np.empty(0, np.bool_)
