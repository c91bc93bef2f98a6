"""Where the command begins: it says what to install before anything asks for it."""

from __future__ import annotations

import sys

__all__ = ["main"]

_NEEDED = {"typer", "rich"}


def main() -> None:
    """Run the command line of this process, and end the process with its exit code."""
    try:
        from icechunk_arrow.cli.app import run  # noqa: PLC0415  (needs an extra)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(
            f"icechunk-arrow: {error.name} is not installed: pip install 'icechunk-arrow[cli]'\n"
        )
        sys.exit(1)
    run()
