"""The storage protocol: everything that the engine asks of a place that holds bytes.

Owns the names of the operations, their promises, and the rules of what may be asked, which hold in every place;
knows nothing of what the bytes mean. One contract suite (``tests/storage``) runs against every implementation.

Keys are relative, ``/``-separated, without leading slash, empty parts or dots.
Objects under a key are written once and never altered, except by :meth:`Storage.replace`.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from icechunk_arrow.errors import InvalidInputError, OversizedFileError, ReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

Writable = bytes | bytearray | memoryview
"""What can be written."""
Flat = bytes | memoryview
"""Bytes that lie one after the other; their ``len`` is how many they are."""
Token = str
"""Names one content of one object: what :meth:`Storage.replace` compares."""

# A part is not "." or "..", and holds no separator of any system, no NUL and no lone surrogate
# (which has no UTF-8 form, so no object store could take it).
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00\ud800-\udfff]+"
_KEY = re.compile(f"{_PART}(?:/{_PART})*")
_LARGEST = 2**63 - 1


class ObjectInfo(Struct, frozen=True, kw_only=True):
    """One object of a listing."""

    key: str
    size_bytes: int
    modified: datetime | None
    """When the place says it was written, in UTC; None where it does not say."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a place can do; what it cannot do is refused with the name of what is missing."""

    create: bool
    """Exclusive creation that has one winner and never shows part of an object."""
    replace: bool
    """Replacement that fails when the object changed since it was read."""
    limited_listing: bool
    """A sorted listing stops at its limit without reading the rest of the folder."""
    fast: bool
    """Calls take microseconds and may run on the caller's thread: memory and local disk."""
    lingering: bool = False
    """A request whose caller was interrupted may still be carried out, later."""
    folder: str | None = None
    """Where keys are files on a disk of this machine: the folder below which they are, with a ``/`` behind it."""
    missing: str = ""
    """For what is False above: why, and what the caller can do."""


class Storage(ABC):
    """A place that holds bytes under keys.

    Every method may raise ``StorageError``, ``InvalidInputError`` for a name that no object can
    have, and those that write ``ReadOnlyError`` where the place does not let itself be written.
    Implementations are safe to use from many threads, and pickle (memory places excepted: they
    say so).
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The place, as the caller would write it."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this place can do, as far as it is known without writing there."""

    def require_writable(self) -> None:
        """Find out whether commits can be made here, or raise ``ReadOnlyError`` saying why not.

        It may write and remove something of its own, so it is for sessions that will write.
        Afterwards :attr:`capabilities` is certain.
        """
        capabilities = self.capabilities
        if not capabilities.create:
            raise ReadOnlyError(
                f"{self.url} can only be read: {capabilities.missing}", url=self.url
            )

    @abstractmethod
    def get(self, key: str, *, limit_bytes: int | None = None) -> bytes:
        """Get the whole object, or ``ObjectNotFoundError``.

        One that turns out to have more than ``limit_bytes`` is an ``OversizedFileError``, as soon as that is
        known: no more than these are taken of it, whatever a file or a server says of itself.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Get ``length`` bytes from ``start``, fewer where the object ends.

        ``ObjectNotFoundError`` where there is none.
        """

    @abstractmethod
    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """Get the last ``length`` bytes (all, if there are fewer) and the object's size."""

    @abstractmethod
    def put(
        self,
        key: str,
        data: Writable | Iterable[Writable],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Write an object under a fresh name; durable after the next :meth:`sync`.

        A name that is taken is a mistake of the caller; ``AlreadyExistsError`` where that is
        noticed. ``data`` may come in pieces that are written one after the other; they are gone through
        once. ``metadata`` is kept beside the object where the place can do that, and left out elsewhere.
        """

    @property
    def syncs(self) -> bool:
        """Whether :meth:`sync` keeps its promise; False where the caller chose to do without."""
        return True

    @abstractmethod
    def sync(self) -> None:
        """Return when everything put through this handle so far survives a power cut.

        So does then what a :meth:`create` or :meth:`replace` wrote that raised, where it turns out to be there.
        """

    def sync_everything(self) -> None:
        """As :meth:`sync`, for what was put through any handle, and that a file names, so far."""
        self.sync()

    @abstractmethod
    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist: one winner, never a part visible, then durable.

        ``AlreadyExistsError`` when it is there (also when it is our own, after a lost answer: the
        caller finds out by reading). ``StorageError`` leaves open whether it was written.
        """

    @abstractmethod
    def get_versioned(self, key: str, *, limit_bytes: int | None = None) -> tuple[bytes, Token]:
        """Get the whole object as :meth:`get` does, and the token of this content."""

    @abstractmethod
    def replace(self, key: str, data: bytes, token: Token) -> None:
        """Replace the object whose content is still the token's, durable on return.

        ``PreconditionFailedError`` when it changed or vanished (also when the change is our own,
        after a lost answer: the caller finds out by reading).
        """

    @abstractmethod
    def overwrite(self, key: str, data: bytes) -> None:
        """Write an object whole, over one that may be there; readers see the old or the new one.

        No other writer is asked, and a power cut may take it back: for what decides nothing.
        """

    def time_of_put(self, key: str) -> datetime | None:  # noqa: ARG002 - not every place says
        """When the place says that an object was written that was just put; None where it does not say."""
        return None

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether there is an object of this name."""

    def list(self, prefix: str = "", *, limit: int | None = None) -> Iterator[ObjectInfo]:
        """Every object below a folder (``prefix`` is empty or ends with ``/``), sorted by key.

        Unfinished creations and replacements never show; a put that a crash cut short may, as an
        object that nothing names. With ``limit`` it ends after so many.
        """
        check_prefix(prefix)
        check_limit(limit)
        return islice(self._list(prefix, limit), limit)

    @abstractmethod
    def _list(self, prefix: str, limit: int | None) -> Iterator[ObjectInfo]:
        """List the objects below a folder, sorted; a place that can ends after ``limit`` of them by itself."""

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """List the names of the folders directly below one, sorted; on a disk they may be empty."""
        check_prefix(prefix)
        return iter(sorted(self._list_folders(prefix)))

    @abstractmethod
    def _list_folders(self, prefix: str) -> Iterable[str]:
        """Name the folders directly below one, in any order."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is not there is no error."""

    def tidy(self) -> None:  # noqa: B027 - most places have nothing of the kind
        """Remove what crashes left of unfinished writes long ago, where a place has such; never fails.

        Only for a place that is known to hold what the caller writes: it may be a folder with much else.
        """


def is_key(name: str) -> bool:
    """Whether an object can have this name."""
    return _KEY.fullmatch(name) is not None


def check_key(key: str) -> str:
    """Return the key, or say that no object can have this name."""
    if _KEY.fullmatch(key) is None:
        raise InvalidInputError(
            f"{key!r} is no name of an object: parts between '/' must not be empty, '.' or '..', "
            "nor hold a backslash, a NUL or half a surrogate pair"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix, or say that it names no folder."""
    if prefix and not (prefix.endswith("/") and is_key(prefix[:-1])):
        raise InvalidInputError(f"{prefix!r} names no folder: it must be empty or end with one '/'")
    return prefix


def check_range(start: int, length: int) -> None:
    """Refuse ranges that no object has."""
    if start < 0 or length < 0 or start + length > _LARGEST:
        raise InvalidInputError(f"there is no range of {length} bytes from {start}")


def check_limit(limit: int | None) -> None:
    """Refuse a negative limit."""
    if limit is not None and limit < 0:
        raise InvalidInputError(f"a listing cannot be limited to {limit} objects")


def listing_order(name: str, is_folder: bool) -> str:
    """By what the entries of one folder are sorted so that all keys below come out sorted."""
    return f"{name}/" if is_folder else name


def check_size(key: str, size_bytes: int, limit_bytes: int | None) -> None:
    """Refuse an object that has more bytes than its reader allows."""
    if limit_bytes is not None and size_bytes > limit_bytes:
        raise OversizedFileError.of(key, f"has at least {size_bytes} bytes", limit_bytes)


def flat_pieces(data: Writable | Iterable[Writable]) -> Iterator[Flat]:
    """Take the data as flat buffers, none empty, without copying what lies flat already.

    Each is asked for when it is wanted: some are only made then.
    """
    pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    # a file may be put together of very many small ones, which are bytes
    flat = (piece if isinstance(piece, bytes) else _flat(piece) for piece in pieces)
    return (piece for piece in flat if piece)


def _flat(piece: Writable) -> Flat:
    view = memoryview(piece)
    return view.cast("B") if view.nbytes and view.c_contiguous else view.tobytes()


def joined(data: Writable | Iterable[Writable]) -> bytes:
    """Join the data; bytes come back as they are."""
    if isinstance(data, bytes):
        return data
    return b"".join(flat_pieces(data))


def content_token(data: bytes) -> Token:
    """Make the token of a content, for places that have none of their own."""
    return hashlib.sha256(data).hexdigest()
