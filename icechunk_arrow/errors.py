"""Every error of this package, grouped by what the caller that catches it can do.

::

    IcechunkArrowError
    ├── ConflictError                          another writer was faster: rebase or try again
    │   └── RebaseFailedError                  the rebase met changes that do not go together
    ├── NotFoundError            (KeyError)    the thing you named is not there
    │   ├── RepositoryNotFoundError
    │   ├── RefNotFoundError                   a branch or tag
    │   ├── SnapshotNotFoundError
    │   │   ├── ForeignSnapshotError           it is another repository's
    │   │   └── RetiredSnapshotError           it was expired
    │   ├── NodeNotFoundError                  an array or group
    │   └── ObjectNotFoundError  (FileNotFoundError)   a file in the storage
    ├── AlreadyExistsError       (FileExistsError)
    ├── InvalidInputError        (ValueError)  an argument is wrong
    ├── ReadOnlyError            (PermissionError)  this handle or place cannot be written
    ├── NotAuthorizedError       (PermissionError)  a location outside what was allowed
    ├── FormatError                            a file does not say what it should
    │   ├── CorruptFileError                   it is damaged
    │   │   └── OversizedFileError             it would take more memory than was allowed
    │   ├── UnsupportedFormatError             it was written by something newer
    │   └── SourceChangedError                 the file behind a virtual chunk is not the recorded one
    └── StorageError             (OSError)     the environment failed; often worth another try
        ├── PreconditionFailedError            the object changed under a conditional write
        └── NotDurableError                    what was written elsewhere may be lost in a power cut

A message names the thing, the fact and the way out. What a handler needs is also an attribute.
Errors survive pickling, because executors send them home. A bug is an ``AssertionError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AlreadyExistsError",
    "ConflictError",
    "CorruptFileError",
    "ForeignSnapshotError",
    "FormatError",
    "IcechunkArrowError",
    "InvalidInputError",
    "NodeNotFoundError",
    "NotAuthorizedError",
    "NotDurableError",
    "NotFoundError",
    "ObjectNotFoundError",
    "OversizedFileError",
    "PreconditionFailedError",
    "ReadOnlyError",
    "RebaseFailedError",
    "RefNotFoundError",
    "RepositoryNotFoundError",
    "RetiredSnapshotError",
    "SnapshotNotFoundError",
    "SourceChangedError",
    "StorageError",
    "UnsupportedFormatError",
]


class IcechunkArrowError(Exception):
    """The root of all errors of this package."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: value for name, value in self.__dict__.items() if name != "message"}
        return _rebuild, (type(self), self.message, facts)


def _rebuild(
    kind: type[IcechunkArrowError], message: str, facts: dict[str, Any]
) -> IcechunkArrowError:
    """Make an error again from its parts, whatever its constructor asks for."""
    maker: Any = OSError if issubclass(kind, OSError) else kind
    error: IcechunkArrowError = maker.__new__(kind)
    IcechunkArrowError.__init__(error, message, **facts)
    return error


class ConflictError(IcechunkArrowError):
    """The branch has moved since the session began; its changes are kept."""

    def __init__(
        self,
        message: str,
        *,
        expected_parent: str | None = None,
        actual_parent: str | None = None,
    ) -> None:
        super().__init__(message, expected_parent=expected_parent, actual_parent=actual_parent)

    expected_parent: str | None
    actual_parent: str | None


class RebaseFailedError(ConflictError):
    """A commit on the branch and this session changed the same things."""

    def __init__(self, message: str, *, snapshot: str, conflicts: Sequence[Any]) -> None:
        IcechunkArrowError.__init__(
            self,
            message,
            snapshot=snapshot,
            conflicts=tuple(conflicts),
            expected_parent=None,
            actual_parent=snapshot,
        )

    snapshot: str
    conflicts: tuple[Any, ...]


class NotFoundError(IcechunkArrowError, KeyError):
    """What was asked for is not there."""


class RepositoryNotFoundError(NotFoundError):
    """There is no repository at this place."""


class RefNotFoundError(NotFoundError):
    """There is no such branch or tag."""


class SnapshotNotFoundError(NotFoundError):
    """There is no such snapshot."""


class ForeignSnapshotError(SnapshotNotFoundError):
    """A structure file is there, and belongs to another repository."""


class RetiredSnapshotError(SnapshotNotFoundError):
    """The snapshot was there, and was expired on purpose."""

    parent_id: str | None


class NodeNotFoundError(NotFoundError):
    """There is no such array or group."""


class ObjectNotFoundError(NotFoundError, FileNotFoundError):
    """There is no such object in the storage."""


class AlreadyExistsError(IcechunkArrowError, FileExistsError):
    """The name is taken."""


class InvalidInputError(IcechunkArrowError, ValueError):
    """An argument is wrong, and nothing was changed."""


class ReadOnlyError(IcechunkArrowError, PermissionError, ValueError):
    """This session, store or place cannot be written; zarr knows it as a ``ValueError``."""


class NotAuthorizedError(IcechunkArrowError, PermissionError):
    """A location lies outside the prefixes that the caller allowed."""


class FormatError(IcechunkArrowError):
    """A file does not say what it should."""


class CorruptFileError(FormatError):
    """A file is damaged: cut, altered, exchanged or incomplete."""


class OversizedFileError(CorruptFileError):
    """A file would take more memory than the caller that opened it allows; made so by damage, or on purpose."""

    key: str
    limit_bytes: int

    @classmethod
    def of(cls, key: str, fact: str, limit_bytes: int) -> OversizedFileError:
        """Say that the file of a key has, or may take, more than is allowed."""
        return cls(
            f"{key} {fact}, and {limit_bytes} are allowed: it is damaged, made to do harm, or very large. If you "
            f"trust it, open the repository with more decode_limit_bytes.",
            key=key,
            limit_bytes=limit_bytes,
        )


class UnsupportedFormatError(FormatError):
    """A file is sound, but written by a newer version than this one reads."""


class SourceChangedError(FormatError):
    """The file behind a virtual chunk changed after the reference was made."""


class StorageError(IcechunkArrowError, OSError):
    """The storage failed; trying again may help."""


class PreconditionFailedError(StorageError):
    """The object is not the one that was to be replaced."""


class NotDurableError(StorageError):
    """What was written elsewhere was not synced, and the commit would promise that it stays."""
