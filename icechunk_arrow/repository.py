"""The repository that callers hold: thin, it holds the open parts and delegates.

What opens, reads and commits is imported with it; housekeeping, tables and publishing when they are asked for.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from icechunk_arrow.core.html import html_of
from icechunk_arrow.core.ids import check_id
from icechunk_arrow.engine import opening
from icechunk_arrow.engine.commit import check_message
from icechunk_arrow.engine.history import full_ancestors, resolve, tip_to_read, tip_to_write
from icechunk_arrow.engine.opening import CACHE_BYTES, Choices
from icechunk_arrow.errors import AlreadyExistsError, RepositoryNotFoundError
from icechunk_arrow.formats.budget import DECODE_LIMIT_BYTES
from icechunk_arrow.session import Session
from icechunk_arrow.storage.settings import StorageSettings

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    import pyarrow as pa

    from icechunk_arrow.core.conflict import ConflictSolver
    from icechunk_arrow.core.snapshot import SnapshotInfo
    from icechunk_arrow.engine.compaction import ChunkCompaction
    from icechunk_arrow.engine.config import RepositoryConfig
    from icechunk_arrow.engine.context import Context
    from icechunk_arrow.engine.opening import Allowed
    from icechunk_arrow.engine.rewriting import ManifestRewrite
    from icechunk_arrow.zarr import IcechunkStore

    Place = str | os.PathLike[str]

__all__ = ["Repository"]


class Repository:
    """A versioned collection of Zarr arrays: branches, tags, snapshots, and sessions to read and write.

    Made by :meth:`create`, :meth:`open` or :meth:`open_or_create`, which take

    url
        A path, or a URL that fsspec knows: ``s3://bucket/folder``, ``memory://name``, ….
    storage_options
        What the file system takes, as in pandas, dask and xarray.
    config
        How the repository is written. Given to ``create`` it is saved; given to ``open`` it overrides what is
        saved.
    storage_settings
        How the place is used: durability, tries, time-outs. This and what follows are never taken from the
        repository.
    cache_bytes
        How much of structure files and manifests is kept in memory.
    decode_limit_bytes
        How much any one file may take in memory while it is decoded. A file that would take more is refused with
        ``OversizedFileError``.
    authorize_virtual_chunk_access
        URL prefixes from which virtual chunks may be read, or a mapping of them to ``storage_options``.
    state_url
        Where the state file is, for a repository whose catalog is a state file apart from the data.
    pickle_secrets
        Whether pickles of what is opened (read-only sessions, forks, stores) hold the secrets among all
        ``storage_options``. Without it they are left out, and found again in the environment of the process that
        opens the pickle, or missed there by name. What this package hands to Spark's tasks holds them.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    @classmethod
    def create(
        cls,
        url: Place,
        storage_options: Mapping[str, Any] | None = None,
        *,
        config: RepositoryConfig | None = None,
        storage_settings: StorageSettings | None = None,
        cache_bytes: int = CACHE_BYTES,
        decode_limit_bytes: int = DECODE_LIMIT_BYTES,
        authorize_virtual_chunk_access: Allowed = None,
        catalog: str = "branches",
        state_url: Place | None = None,
        pickle_secrets: bool = False,
    ) -> Repository:
        """Make a repository where there is none.

        ``catalog="branches"`` keeps branches and tags as files of their own; ``catalog="state"`` keeps them in
        one state file, at ``state_url`` or beside the data.

        Raises
        ------
        AlreadyExistsError
            There is a repository already.
        ReadOnlyError
            The place cannot do what a commit needs.
        """
        choices = Choices(
            storage_settings=storage_settings or StorageSettings(),
            cache_bytes=cache_bytes,
            decode_limit_bytes=decode_limit_bytes,
            allowed=authorize_virtual_chunk_access,
            pickle_secrets=pickle_secrets,
        )
        return cls(
            opening.create_context(
                url, storage_options, config, choices, catalog=catalog, state_url=state_url
            )
        )

    @classmethod
    def open(
        cls,
        url: Place,
        storage_options: Mapping[str, Any] | None = None,
        *,
        config: RepositoryConfig | None = None,
        storage_settings: StorageSettings | None = None,
        cache_bytes: int = CACHE_BYTES,
        decode_limit_bytes: int = DECODE_LIMIT_BYTES,
        authorize_virtual_chunk_access: Allowed = None,
        state_url: Place | None = None,
        pickle_secrets: bool = False,
    ) -> Repository:
        """Open a repository that exists, or ``RepositoryNotFoundError``."""
        choices = Choices(
            storage_settings=storage_settings or StorageSettings(),
            cache_bytes=cache_bytes,
            decode_limit_bytes=decode_limit_bytes,
            allowed=authorize_virtual_chunk_access,
            pickle_secrets=pickle_secrets,
        )
        return cls(opening.open_context(url, storage_options, config, choices, state_url=state_url))

    @classmethod
    def open_or_create(
        cls, url: Place, storage_options: Mapping[str, Any] | None = None, **choices: Any
    ) -> Repository:
        """Open a repository, or make it; of several processes that try, one makes it."""
        to_open = {name: value for name, value in choices.items() if name != "catalog"}
        rounds = 4  # another process may be seen before the first entry, behind it, and behind the state file
        while True:
            with suppress(RepositoryNotFoundError):
                return cls.open(url, storage_options, **to_open)
            rounds -= 1
            try:
                return cls.create(url, storage_options, **choices)
            except AlreadyExistsError:
                if not rounds:  # something else is in the way
                    raise

    @staticmethod
    def exists(
        url: Place,
        storage_options: Mapping[str, Any] | None = None,
        *,
        state_url: Place | None = None,
    ) -> bool:
        """Whether there is a repository."""
        return opening.repository_exists(url, storage_options, state_url=state_url)

    def __repr__(self) -> str:
        return f"<Repository {self.url}>"

    def _repr_html_(self) -> str:
        return html_of(
            "Repository",
            {
                "url": self.url,
                "branches": ", ".join(sorted(self.list_branches())),
                "tags": ", ".join(sorted(self.list_tags())),
                "main": str(self.lookup_snapshot(self.lookup_branch("main"))),
            },
        )

    @property
    def url(self) -> str:
        """Where the repository is."""
        return self._context.storage.url

    @property
    def config(self) -> RepositoryConfig:
        """The settings in force: how the repository is written."""
        return self._context.config

    def save_config(self) -> None:
        """Write the settings in force into the repository, for every process that opens it from now on."""
        self._context.catalog.check_identity()
        self._context.saved_config.save()

    # -- branches and tags

    def list_branches(self) -> set[str]:
        """Names of all branches."""
        return self._context.catalog.list_branches()

    def lookup_branch(self, branch: str) -> str:
        """Id of the snapshot that a branch points to."""
        return tip_to_read(self._context, branch).snapshot_id

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Begin a branch at a snapshot."""
        self._context.catalog.create_branch(branch, self._to_be_named(snapshot_id))

    def reset_branch(
        self, branch: str, snapshot_id: str, from_snapshot_id: str | None = None
    ) -> None:
        """Point a branch at another snapshot; with ``from_snapshot_id`` only if it is still there."""
        expected = from_snapshot_id
        if expected is not None:
            tip = tip_to_read(self._context, branch)
            if tip.snapshot_id == expected and tip.newest is not None:
                expected = tip.newest.snapshot  # a foreign entry may name another one
        self._context.catalog.reset_branch(branch, self._to_be_named(snapshot_id), expected)

    def delete_branch(self, branch: str) -> None:
        """End a branch; ``main`` stays."""
        self._context.catalog.delete_branch(branch)

    def list_tags(self) -> set[str]:
        """Names of all tags that are not withdrawn."""
        return self._context.catalog.list_tags()

    def lookup_tag(self, tag: str) -> str:
        """Id of the snapshot that a tag points to."""
        return self._context.catalog.get_tag(tag)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Name a snapshot, for good."""
        self._context.catalog.create_tag(tag, self._to_be_named(snapshot_id))

    def delete_tag(self, tag: str) -> None:
        """Withdraw a tag; its name stays reserved for ever."""
        self._context.catalog.delete_tag(tag)

    def _to_be_named(self, snapshot_id: str) -> SnapshotInfo:
        """Give a snapshot that a branch or tag will name: that promises that it stays."""
        facts = self._context.files.read_facts(check_id(snapshot_id, "snapshot id"))
        if not facts.synced:
            self._context.storage.sync_everything()
        return facts.info

    # -- history

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """What is known of a snapshot: parent, time, message, metadata."""
        return self._context.files.read_facts(check_id(snapshot_id, "snapshot id")).info

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Iterator[SnapshotInfo]:
        """Walk from a snapshot to the first, newest first."""
        start = resolve(self._context, branch=branch, tag=tag, snapshot_id=snapshot_id)
        return full_ancestors(self._context.files, start)

    # -- sessions

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """Read one snapshot: a branch's newest or as of a time, a tag's, or one by id."""
        chosen_id = resolve(
            self._context, branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of
        )
        return Session(self._context, chosen_id)

    def writable_session(self, branch: str) -> Session:
        """Read a branch's newest snapshot, change it, and commit."""
        self._context.storage.require_writable()
        tip = tip_to_write(self._context, branch)
        return Session(self._context, tip.snapshot_id, tip)

    @contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
    ) -> Iterator[IcechunkStore]:
        """Give a store to write to; commits when the block ends well, and nothing when it raises."""
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries)

    # -- housekeeping

    def rewrite_manifests(
        self,
        branch: str,
        message: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> ManifestRewrite:
        """Arrange a branch's chunk references as the settings want it now, as one commit.

        Manifests that are as they should be stay. With ``dry_run`` nothing is written, and the answer says
        what would be. A commit that others make meanwhile is no hindrance.
        """
        from icechunk_arrow.engine.rewriting import rewrite_manifests  # noqa: PLC0415

        self._context.storage.require_writable()
        check_message(message, metadata)
        return rewrite_manifests(
            self._context, branch, message, properties=metadata or {}, dry_run=dry_run
        )

    def compact_chunks(
        self,
        branch: str,
        message: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        smaller_than_bytes: int | None = None,
        dry_run: bool = False,
    ) -> ChunkCompaction:
        """Gather a branch's small chunk files into larger ones, as one commit.

        Files of chunks below ``packed-chunk-threshold-bytes`` are gathered where less than
        ``smaller_than_bytes`` (an eighth of ``chunk-file-size-bytes``) of them is in use. The old files stay
        for older snapshots. A chunk that others write meanwhile stays theirs. With ``dry_run`` nothing is
        written, and the answer says what would be.

        Raises
        ------
        RebaseFailedError
            Another commit changed the metadata of an array meanwhile; try again.
        """
        from icechunk_arrow.engine.compaction import compact_chunks  # noqa: PLC0415

        session = self.writable_session(branch)
        return compact_chunks(
            self._context,
            session,
            message,
            properties=metadata or {},
            smaller_than_bytes=smaller_than_bytes,
            dry_run=dry_run,
        )

    # -- tables

    def tables(
        self,
        name: str,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
        since: str | None = None,
    ) -> pa.Table:
        """Give a table about a snapshot: ``main``'s newest, if none is named.

        ``nodes``, ``chunks``, ``arrays``, ``manifests``, ``files``, ``snapshots``, ``refs``, ``operations``,
        ``config``; and ``changes`` since another snapshot, branch or tag, or the parent if none is named. Those
        over chunks need DuckDB.
        """
        from icechunk_arrow.tables.reading import read_table  # noqa: PLC0415
        from icechunk_arrow.tables.selection import Selection  # noqa: PLC0415

        which = Selection(branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
        return read_table(self._context, name, which.resolve(self._context), since)

    @staticmethod
    def tables_together(
        repositories: Mapping[str, Repository],
        name: str,
        *,
        branch: str | None = None,
        tag: str | None = None,
        as_of: datetime | None = None,
    ) -> pa.Table:
        """Give a table about several repositories, with a first column ``repository`` that says which."""
        from icechunk_arrow.tables.reading import read_together  # noqa: PLC0415
        from icechunk_arrow.tables.selection import Selection  # noqa: PLC0415

        which = Selection(branch=branch, tag=tag, as_of=as_of)
        contexts = {label: each._context for label, each in repositories.items()}  # noqa: SLF001
        return read_together(contexts, name, which)

    @staticmethod
    def inspections() -> pa.Table:
        """List the queries of :meth:`inspect`: name, purpose, parameters, columns and engines."""
        from icechunk_arrow.tables.inspections import inspection_table  # noqa: PLC0415

        return inspection_table()

    def inspect(
        self,
        inspection: str,
        /,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
        **parameters: Any,
    ) -> pa.Table:
        """Ask a question of :meth:`inspections` about a snapshot: ``main``'s newest, if none is named.

        Needs DuckDB.

        Raises
        ------
        InvalidInputError
            There is no such question, or a parameter is unknown, missing or wrong.
        NodeNotFoundError
            The path that was given is no array's.
        """
        from icechunk_arrow.tables.inspecting import inspect_snapshot  # noqa: PLC0415
        from icechunk_arrow.tables.selection import Selection  # noqa: PLC0415

        which = Selection(branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
        return inspect_snapshot(self._context, inspection, which.resolve(self._context), parameters)

    # -- publishing

    def export_state(self) -> None:
        """Publish ``state.json``: all snapshots, branches and tags in one file, for other readers."""
        from icechunk_arrow.engine.state_catalog import export_state  # noqa: PLC0415

        export_state(self._context)
