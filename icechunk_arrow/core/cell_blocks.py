"""Cells of some chunks, filled from rows that come in any order: which are written, and what with.

Owns what becomes of several rows of one cell, and of rows without a value. A block is a run of cells; an address is
a cell's number in it. Must not know which array the cells are of, nor where they go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Addresses = npt.NDArray[np.unsignedinteger[Any]]
    Mask = npt.NDArray[np.bool_]
    Values = npt.NDArray[Any]

__all__ = ["POLICIES", "CellBlock", "CellError", "carried_dtype", "native_dtype", "new_block"]

POLICIES = ("error", "last", "mean", "sum")


class CellError(Exception):
    """A cell cannot be written: its address, and why."""

    def __init__(self, address: int, fault: str) -> None:
        super().__init__(fault)
        self.address = address
        self.fault = fault


def native_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give a type in this machine's order of bytes; types of texts have none."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def carried_dtype(dtype: np.dtype[Any], policy: str) -> np.dtype[Any]:
    """Say as what the values for cells of a type are brought here."""
    if policy == "mean" or (policy == "sum" and dtype.kind == "f"):
        return np.dtype(np.float64)
    return np.dtype(np.int64) if policy == "sum" else native_dtype(dtype)


def new_block(count: int, dtype: np.dtype[Any], policy: str, missing: Any) -> CellBlock:
    """Make a block of empty cells; ``missing`` is what stands for a value that is null."""
    kinds: dict[str, type[CellBlock]] = {
        "error": _Single,
        "last": _Latest,
        "mean": _Mean,
        "sum": _Sum,
    }
    values = np.zeros(count, carried_dtype(dtype, policy))
    return kinds[policy](values=values, dtype=dtype, missing=missing)


@dataclass(slots=True)
class CellBlock:
    """Some cells of one array."""

    values: Values
    dtype: np.dtype[Any]
    missing: Any
    written: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.written = np.zeros(len(self.values), np.bool_)

    def add(
        self,
        addresses: Addresses,
        values: Values,
        valid: Mask | None = None,
        order: Values | None = None,
    ) -> None:
        """Write rows, which come in the order of the frame.

        Parameters
        ----------
        addresses, values
            Of each row.
        valid
            False where the value is null; None where there is none that is.
        order
            By what some row is later than another, before their order here counts.
        """
        raise NotImplementedError

    def finish(self) -> Values:
        """Give the cells after the last row; those that nothing was written to are anything.

        Raises
        ------
        CellError
            A cell has rows that do not go together.
        """
        raise NotImplementedError

    def _filled(self, values: Values, valid: Mask | None) -> Values:
        if valid is None:
            return values
        filled = values.copy()
        filled[~valid] = self.missing
        return filled


@dataclass(slots=True)
class _Single(CellBlock):
    """One row a cell, and no more."""

    added: list[Addresses] = field(default_factory=list)
    row_count: int = 0

    def add(
        self,
        addresses: Addresses,
        values: Values,
        valid: Mask | None = None,
        order: Values | None = None,  # noqa: ARG002
    ) -> None:
        self.values[addresses] = self._filled(values, valid)
        self.written[addresses] = True
        self.row_count += len(addresses)
        self.added.append(addresses)
        if self.row_count > len(
            self.values
        ):  # so what is kept for the message is no more than the cells
            self._refuse()

    def finish(self) -> Values:
        if self.row_count != np.count_nonzero(self.written):
            self._refuse()
        return self.values

    def _refuse(self) -> None:
        found = np.sort(np.concatenate(self.added))
        again = found[1:][found[1:] == found[:-1]]
        count = np.count_nonzero(found == again[0])
        raise CellError(int(again[0]), f"{count} rows have a value for it")


@dataclass(slots=True)
class _Latest(CellBlock):
    """The row that is last."""

    latest: npt.NDArray[np.int64] = field(init=False)
    """The number of the row that a cell is of."""
    order: Values | None = None
    row_count: int = 0

    def __post_init__(self) -> None:
        super(_Latest, self).__post_init__()
        self.latest = np.full(len(self.values), -1, np.int64)

    def add(
        self,
        addresses: Addresses,
        values: Values,
        valid: Mask | None = None,
        order: Values | None = None,
    ) -> None:
        values = self._filled(values, valid)
        if order is not None:
            if self.order is None:
                self.order = np.zeros(len(self.values), order.dtype)
            rows = np.argsort(order, kind="stable")
            rows = rows[
                ~self.written[addresses[rows]] | (order[rows] >= self.order[addresses[rows]])
            ]
            addresses, values, order = addresses[rows], values[rows], order[rows]
        numbers = np.arange(self.row_count, self.row_count + len(addresses))
        self.row_count += len(addresses)
        # an assignment to one place several times would leave any of them
        np.maximum.at(self.latest, addresses, numbers)
        last = self.latest[addresses] == numbers
        where = addresses[last]
        self.values[where] = values[last]
        self.written[where] = True
        if order is not None and self.order is not None:
            self.order[where] = order[last]

    def finish(self) -> Values:
        return self.values


@dataclass(slots=True)
class _Total(CellBlock):
    """All rows that have a value, added up."""

    counts: npt.NDArray[np.uint32] = field(init=False)
    infinite: Mask = field(init=False)
    """Which have a row that is infinite itself."""
    result: ClassVar[str]
    """What comes of the rows, in words."""

    def __post_init__(self) -> None:
        super(_Total, self).__post_init__()
        self.counts = np.zeros(len(self.values), np.uint32)
        self.infinite = np.zeros(len(self.values), np.bool_)

    def add(
        self,
        addresses: Addresses,
        values: Values,
        valid: Mask | None = None,
        order: Values | None = None,  # noqa: ARG002
    ) -> None:
        self.written[addresses] = True
        if valid is not None:
            addresses, values = addresses[valid], values[valid]
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(self.values, addresses, values)
        np.add.at(self.counts, addresses, np.uint32(1))
        if values.dtype.kind == "f":
            self.infinite[addresses[np.isinf(values)]] = True
        self._note(addresses, values)

    def _note(self, addresses: Addresses, values: Values) -> None:
        """Look at rows that were added."""

    def finish(self) -> Values:
        found = self._result()
        found[self.counts == 0] = self.missing
        return found

    def _result(self) -> Values:
        raise NotImplementedError

    def _rounded(self, found: npt.NDArray[np.float64]) -> Values:
        """Round to the array's floats; what becomes infinite only by that does not fit."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = found.astype(native_dtype(self.dtype))
        beyond = np.isinf(rounded) & ~self.infinite
        if beyond.any():
            raise CellError(int(np.argmax(beyond)), f"{self.result} does not fit into {self.dtype}")
        return rounded

    def _as_integers(self, found: npt.NDArray[np.float64]) -> Values:
        """Round to the nearest; of what fits, since the rows did."""
        return np.rint(found).astype(native_dtype(self.dtype))


@dataclass(slots=True)
class _Sum(_Total):
    result = "the sum of its rows"
    rough: npt.NDArray[np.float64] | None = None
    """The same as floats, which show where 64 bits were too few."""

    def _note(self, addresses: Addresses, values: Values) -> None:
        if self.values.dtype.kind == "i":
            if self.rough is None:
                self.rough = np.zeros(len(self.values), np.float64)
            np.add.at(self.rough, addresses, values.astype(np.float64))

    def _result(self) -> Values:
        if self.dtype.kind == "f":
            return self._rounded(self.values)
        limits = np.iinfo(self.dtype)
        beyond = (self.values < limits.min) | (self.values > min(limits.max, 2**63 - 1))
        if self.rough is not None:
            beyond |= np.abs(self.rough - self.values) > 2.0**62
        if beyond.any():
            raise CellError(int(np.argmax(beyond)), f"{self.result} does not fit into {self.dtype}")
        return self.values.astype(native_dtype(self.dtype))


@dataclass(slots=True)
class _Mean(_Total):
    result = "the mean of its rows"

    def _result(self) -> Values:
        found = self.values / np.maximum(self.counts, 1)
        if self.dtype.kind == "f":
            return self._rounded(found)
        return self._as_integers(found)
