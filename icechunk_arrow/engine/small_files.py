"""Small files that stand where one may stand already: the settings, and the state file.

Owns how a writer knows its own file again when the answer to writing it was lost.

Specification: schemas/README.md#lost-answers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_arrow.errors import (
    AlreadyExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_arrow.storage.port import Storage

__all__ = ["create_small", "write_small"]

_MOST_REFUSALS = 3
"""A name that is taken so often although no file is found under it is taken by something else, such as a folder."""


def create_small(storage: Storage, key: str, data: bytes, *, limit_bytes: int) -> bytes:
    """Write a small file where there is none, and give what stands there then: ``data``, or another's."""
    return write_small(
        storage,
        key,
        lambda found: data if found is None else found,
        limit_bytes=limit_bytes,
        is_absent=True,
    )


def write_small(
    storage: Storage,
    key: str,
    decide: Callable[[bytes | None], bytes],
    *,
    limit_bytes: int,
    is_absent: bool = False,
) -> bytes:
    """Write a small file over the one that stands there, if one does, and give what stands there then.

    ``decide`` says for the bytes that are found (None for no file) which are to stand there; what it gives back as
    it was, stays. It is asked again when another writer was faster, and when no answer came: then it must know the
    caller's own file. No more than ``limit_bytes`` are fetched of it. ``is_absent`` saves the first look.

    Raises
    ------
    AlreadyExistsError
        Something that is no file has the name.
    StorageError
        No answer came, and the file is not what it was to be.
    """
    failure: StorageError | None = None
    refusals = 0
    present, token = (None, "") if is_absent else _look(storage, key, limit_bytes)
    while True:
        wanted = decide(present)
        if wanted == present:
            if failure is not None or refusals:
                storage.sync()  # it may be this caller's own file, of which no answer came
            return wanted
        if failure is not None:
            raise failure
        try:
            if present is None:
                storage.create(key, wanted)
            else:
                storage.replace(key, wanted, token)
        except AlreadyExistsError:
            refusals += 1
            if refusals == _MOST_REFUSALS:
                raise
        except PreconditionFailedError:
            pass
        except StorageError as error:
            failure = error
        else:
            return wanted
        present, token = _look(storage, key, limit_bytes)


def _look(storage: Storage, key: str, limit_bytes: int) -> tuple[bytes | None, str]:
    try:
        return storage.get_versioned(key, limit_bytes=limit_bytes)
    except ObjectNotFoundError:
        return None, ""
