"""``python -m icechunk_arrow.cli``: the same as ``icechunk-arrow``."""

from __future__ import annotations

from icechunk_arrow.cli.entry import main

if __name__ == "__main__":
    main()
