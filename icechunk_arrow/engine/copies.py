"""What a session is in a forked child, where it is a copy.

What one session has staged is committed by one process, once: the one that opened it. So a copy of a
writable session reads what was there at the fork, and changes nothing. Where another thread was just
changing or committing the session, nobody knows what the copy holds, and it does not even read.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from icechunk_arrow.errors import ReadOnlyError, StorageError
from icechunk_arrow.storage.forked_children import renew_in_forks

if TYPE_CHECKING:
    from typing import NoReturn

    from icechunk_arrow.engine.staging import Staging

__all__ = ["OfOneProcess"]


class OfOneProcess:
    """The part of a session that knows in which process it is."""

    _is_copy = False
    _is_lost = False
    """Whether nobody knows what this copy holds."""
    _staging: Staging
    _preload: threading.Thread | None = None

    @property
    def _is_writer(self) -> bool:
        """Whether there is anything that a copy must not do again; asks nobody."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._lock = threading.RLock()
        renew_in_forks(self)

    def renew_after_fork(self) -> None:
        """Become a copy in another process."""
        is_whole = self._lock.acquire(blocking=False)
        self._lock = threading.RLock()
        self._preload = None
        if self._is_writer:
            self._is_copy = True
            self._is_lost = not is_whole
            if self._is_lost:
                self._staging = _UnknownStaging()  # type: ignore[assignment]

    def _refuse_copy(self) -> None:
        if self._is_copy:
            raise ReadOnlyError(
                "this session was opened in another process, of which this one is a fork: its changes are "
                "made and committed there, once. Open a session here, by repo.writable_session(branch), or "
                "give each process a fork of the session, by session.fork()"
            )


class _UnknownStaging:
    """In place of what a session has staged."""

    def __getattr__(self, name: str) -> NoReturn:
        raise StorageError(
            "this process was forked while another thread changed or committed this session, so that its "
            "copy here is of no use; open a session here"
        )
