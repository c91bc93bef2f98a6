"""Transactional, versioned storage for Zarr v3 arrays whose metadata is plain Parquet."""

from importlib.metadata import PackageNotFoundError, version

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
from icechunk_arrow.engine.diff import Diff
from icechunk_arrow.engine.rewriting import ManifestRewrite
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
from icechunk_arrow.repository import Repository
from icechunk_arrow.session import ForkSession, Session
from icechunk_arrow.storage.settings import StorageSettings
from icechunk_arrow.zarr import IcechunkStore, VirtualChunkSpec

try:
    __version__ = version("icechunk-arrow")
except PackageNotFoundError:  # a plain checkout
    __version__ = "0+unknown"

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
