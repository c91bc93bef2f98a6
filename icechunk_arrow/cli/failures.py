"""What DuckDB and Arrow meet, as errors of ours; and that DuckDB has to be installed."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["query_failures"]

_TRACEBACK = "Traceback (most recent call last)"
_ERROR_NAME = re.compile(r"^(?:\s+.*\n)*[\w.]+: ")


@contextmanager
def query_failures(what: str) -> Iterator[None]:
    """Say what DuckDB and Arrow meet as errors of ours, without their tracebacks."""
    try:
        import duckdb  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise InvalidInputError("SQL needs DuckDB: pip install 'icechunk-arrow[duckdb]'") from error
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        raise InvalidInputError(f"{what} failed: {_without_traceback(str(error))}") from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def _without_traceback(text: str) -> str:
    """Leave the message alone, where DuckDB was told of an error in Python by its traceback."""
    if _TRACEBACK not in text:
        return text
    message = text.rpartition("\n  File ")[2].partition("\n")[2]
    return _ERROR_NAME.sub("", message)
