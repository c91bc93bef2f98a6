"""Write the kit: `python -m tests.conformance.kit` adds the cases that are not there, and alters none.

`--anew` removes the whole kit first: only as long as nobody relies on it.
"""

from __future__ import annotations

import argparse
import shutil

from tests.conformance.kit.writing import FOLDER, write_kit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.kit", description=__doc__)
    parser.add_argument("--anew", action="store_true", help="remove all cases, and make them again")
    if parser.parse_args().anew:
        shutil.rmtree(FOLDER, ignore_errors=True)
    added = write_kit()
    print(*(f"added {name}" for name in added), sep="\n")
    print(f"{len(added)} cases were added")


if __name__ == "__main__":
    main()
