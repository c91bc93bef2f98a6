"""Where the command begins: it says what to install when something is missing that commands need."""

from __future__ import annotations

import sys

__all__ = ["main"]

_NEEDED = {"click", "rich"}


def main() -> None:
    """Run the command line of this process, and end the process with its exit code."""
    try:
        from icechunk_arrow.cli.app import run  # noqa: PLC0415  (needs an extra)

        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        sys.stderr.write(
            f"icechunk-arrow: {missing} is not installed: pip install 'icechunk-arrow[cli]'\n"
        )
        sys.exit(1)
