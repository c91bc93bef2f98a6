"""Transactional, versioned storage for Zarr v3 arrays whose metadata is plain Parquet.

Each name is imported when it is first asked for: the command line, and a process that only sends sessions on, wait
for nothing that they do not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from icechunk_arrow.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptFileError,
    ForeignSnapshotError,
    FormatError,
    IcechunkArrowError,
    InvalidInputError,
    NodeNotFoundError,
    NotAuthorizedError,
    NotFoundError,
    OversizedFileError,
    ReadOnlyError,
    RebaseFailedError,
    RefNotFoundError,
    RepositoryNotFoundError,
    RetiredSnapshotError,
    SnapshotNotFoundError,
    SourceChangedError,
    StorageError,
    UnsupportedFormatError,
)

if TYPE_CHECKING:
    from icechunk_arrow.core.conflict import (
        BasicConflictSolver,
        Conflict,
        ConflictDetector,
        ConflictSolver,
        ConflictType,
        VersionSelection,
    )
    from icechunk_arrow.core.manifest_settings import (
        ManifestPreload,
        ManifestRule,
        ManifestSet,
        ManifestSettings,
    )
    from icechunk_arrow.core.snapshot import SnapshotInfo
    from icechunk_arrow.engine.compaction import ChunkCompaction
    from icechunk_arrow.engine.config import RepositoryConfig
    from icechunk_arrow.engine.history import Diff
    from icechunk_arrow.engine.rewriting import ManifestRewrite
    from icechunk_arrow.repository import Repository
    from icechunk_arrow.session import ForkSession, Session
    from icechunk_arrow.storage.settings import StorageSettings
    from icechunk_arrow.zarr import IcechunkStore, VirtualChunkSpec

    __version__: str

__all__ = [
    "AlreadyExistsError",
    "BasicConflictSolver",
    "ChunkCompaction",
    "Conflict",
    "ConflictDetector",
    "ConflictError",
    "ConflictSolver",
    "ConflictType",
    "CorruptFileError",
    "Diff",
    "ForeignSnapshotError",
    "ForkSession",
    "FormatError",
    "IcechunkArrowError",
    "IcechunkStore",
    "InvalidInputError",
    "ManifestPreload",
    "ManifestRewrite",
    "ManifestRule",
    "ManifestSet",
    "ManifestSettings",
    "NodeNotFoundError",
    "NotAuthorizedError",
    "NotFoundError",
    "OversizedFileError",
    "ReadOnlyError",
    "RebaseFailedError",
    "RefNotFoundError",
    "Repository",
    "RepositoryConfig",
    "RepositoryNotFoundError",
    "RetiredSnapshotError",
    "Session",
    "SnapshotInfo",
    "SnapshotNotFoundError",
    "SourceChangedError",
    "StorageError",
    "StorageSettings",
    "UnsupportedFormatError",
    "VersionSelection",
    "VirtualChunkSpec",
    "__version__",
]

_HOMES = {
    "core.conflict": (
        "BasicConflictSolver",
        "Conflict",
        "ConflictDetector",
        "ConflictSolver",
        "ConflictType",
        "VersionSelection",
    ),
    "core.manifest_settings": (
        "ManifestPreload",
        "ManifestRule",
        "ManifestSet",
        "ManifestSettings",
    ),
    "core.snapshot": ("SnapshotInfo",),
    "engine.compaction": ("ChunkCompaction",),
    "engine.config": ("RepositoryConfig",),
    "engine.history": ("Diff",),
    "engine.rewriting": ("ManifestRewrite",),
    "repository": ("Repository",),
    "session": ("ForkSession", "Session"),
    "storage.settings": ("StorageSettings",),
    "zarr": ("IcechunkStore", "VirtualChunkSpec"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {"repository", "session", "zarr"}
"""Modules that may be asked for as attributes, too."""


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  (10 ms)

    try:
        return version("icechunk-arrow")
    except PackageNotFoundError:  # a plain checkout
        return "0+unknown"


if not TYPE_CHECKING:  # a type checker would believe that there is every name

    def __getattr__(name: str) -> object:
        """Import what is asked for, and keep it."""
        if name == "__version__":
            value = _version()
        elif name in _HOME_OF:
            value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        elif name in _MODULES:
            value = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
