"""What all ingests of files are told: options, checked in one place.

Owns the options that ``ingest.zarr``, ``netcdf`` and ``references`` have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypedDict

from icechunk_arrow.errors import InvalidInputError
from icechunk_arrow.ingest.progress import Reporter
from icechunk_arrow.spark.writing.targets import writing
from icechunk_arrow.storage.source_files import SourceFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from icechunk_arrow.ingest.executor import Executor
    from icechunk_arrow.ingest.progress import Progress
    from icechunk_arrow.spark.writing.targets import Target, Writing

_FAILURES = ("error", "report")
"""What becomes of a source that cannot be taken: nothing is committed, or the rest is."""


class IngestWords(TypedDict, total=False):
    """Words that go with every ingest.

    group : str
        Where the arrays come to stand in the repository; its root, if nothing is said.
    drop : list of str
        Nodes of the source to leave out, by path, with all below them.
    overwrite : bool
        Replace arrays that are there already; otherwise they are an error.
    source_options, storage_options : dict
        What the file system of the source takes, and that of the repository where the target is a URL.
    branch, message, metadata
        Of the commit.
    failures : str
        ``"error"``: a source that cannot be taken is an error that names it, and nothing is committed.
        ``"report"``: the rest is committed, and what failed is listed in the result.
    detect_changes : bool
        Record with every reference the ETag or the time of its file as it is now, so that one that is rewritten
        later is an error when it is read, and never gives other values. Each file is asked once; one that cannot be
        is an error. ``False`` refers to files without asking.
    on_progress
        A function that is called now and then with a :class:`Progress`.
    """

    group: str
    drop: Iterable[str]
    overwrite: bool
    source_options: Mapping[str, Any] | None
    storage_options: Mapping[str, Any] | None
    branch: str
    message: str | None
    metadata: Mapping[str, Any] | None
    failures: str
    detect_changes: bool
    on_progress: Callable[[Progress], None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """The options of one ingest, those included that the caller left out."""

    group: str = "/"
    drop: tuple[str, ...] = ()
    overwrite: bool = False
    source_options: Mapping[str, Any] | None = field(default=None, repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    branch: str = "main"
    message: str | None = None
    metadata: Mapping[str, Any] | None = None
    failures: str = "error"
    detect_changes: bool = True
    on_progress: Callable[[Progress], None] | None = None

    @classmethod
    def of(cls, words: IngestWords) -> IngestOptions:
        """Take what the caller gave; options that there are not are an error, as they are in any call."""
        unknown = sorted(words.keys() - {each.name for each in fields(cls)})
        if unknown:
            raise TypeError(f"an ingest got an unexpected keyword argument {unknown[0]!r}")
        values: dict[str, Any] = dict(words)
        drop = values.pop("drop", ())
        options = cls(**values, drop=tuple("/" + each.strip("/") for each in drop))
        check_choice("failures", options.failures, _FAILURES)
        return options

    @property
    def stops(self) -> bool:
        """Whether a source that cannot be taken is an error."""
        return self.failures == "error"

    @property
    def files(self) -> SourceFiles:
        """What reaches the files of the source."""
        return SourceFiles(dict(self.source_options or {}))

    def reporter(self, executor: Executor, title: str) -> Reporter:
        """Make what tells the caller how far the ingest has come."""
        return Reporter(executor, title, self.on_progress)

    def writing(self, target: Target, title: str) -> AbstractContextManager[Writing]:
        """Open the session that all of it goes to."""
        return writing(
            target,
            branch=self.branch,
            message=self.message or title,
            metadata=self.metadata,
            storage_options=self.storage_options,
        )


def check_choice(option: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse a word that is none of the known ones."""
    if value not in choices:
        raise InvalidInputError(f"{option} must be one of {list(choices)}, not {value!r}")
