"""The storage protocol: everything that the engine asks of a place that holds bytes.

Owns the names of the operations and their promises; knows nothing of what the bytes mean.
One contract suite (``tests/storage``) runs against every implementation.

Keys are relative, ``/``-separated, without leading slash, empty parts or dots.
Objects under a key are written once and never altered, except by :meth:`Storage.replace`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icechunk_arrow.errors import ReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

__all__ = ["Capabilities", "ObjectInfo", "Storage", "Token", "Writable"]

Writable = bytes | bytearray | memoryview
"""What can be written."""
Token = str
"""Names one content of one object: what :meth:`Storage.replace` compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object of a listing."""

    key: str
    size_bytes: int
    modified: datetime | None
    """When the place says it was written, in UTC; None where it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
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
    missing: str = ""
    """For what is False above: why, and what the person can do."""


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
        """The place, as the person would write it."""

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
    def get(self, key: str) -> bytes:
        """Get the whole object, or ``ObjectNotFoundError``."""

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
        """Whether :meth:`sync` keeps its promise; False where the person chose to do without."""
        return True

    @abstractmethod
    def sync(self) -> None:
        """Return when everything put through this handle so far survives a power cut."""

    def sync_everything(self) -> None:
        """As :meth:`sync`, for what was put through any handle, and named by somebody, so far."""
        self.sync()

    @abstractmethod
    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist: one winner, never a part visible, then durable.

        ``AlreadyExistsError`` when it is there (also when it is our own, after a lost answer: the
        caller finds out by reading). ``StorageError`` leaves open whether it was written.
        """

    @abstractmethod
    def get_versioned(self, key: str) -> tuple[bytes, Token]:
        """Get the whole object and the token of this content."""

    @abstractmethod
    def replace(self, key: str, data: bytes, token: Token) -> None:
        """Replace the object whose content is still the token's, durable on return.

        ``PreconditionFailedError`` when it changed or vanished (also when the change is our own,
        after a lost answer: the caller finds out by reading).
        """

    @abstractmethod
    def overwrite(self, key: str, data: bytes) -> None:
        """Write an object whole, over one that may be there; readers see the old or the new one.

        Nobody is asked, and a power cut may take it back: for what decides nothing.
        """

    def time_of_put(self, key: str) -> datetime | None:  # noqa: ARG002 - not every place says
        """When the place says that an object was written that was just put; None where it does not say."""
        return None

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether there is an object of this name."""

    @abstractmethod
    def list(self, prefix: str = "", *, limit: int | None = None) -> Iterator[ObjectInfo]:
        """Every object below a folder (``prefix`` is empty or ends with ``/``), sorted by key.

        Unfinished creations and replacements never show; a put that a crash cut short may, as an
        object that nothing names. With ``limit`` it ends after so many.
        """

    @abstractmethod
    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """List the names of the folders directly below one, sorted; on a disk they may be empty."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is not there is no error."""

    def tidy(self) -> None:  # noqa: B027 - most places have nothing of the kind
        """Remove what crashes left of unfinished writes long ago, where a place has such; never fails.

        Only for a place that is known to hold what the caller writes: it may be somebody's folder with much else.
        """
