"""``python -m tests.fuzzing --seed 1 --count 20000``: damage files, look, and print tables of what came of it."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzzing.rules import REQUIRED, refused_at_hand, refused_of_the_kit
from tests.fuzzing.running import run
from tests.fuzzing.samples import KINDS


def main() -> int:
    """Fuzz as told; 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    began = time.monotonic()
    found = run(given.seed, given.count, kind=given.kind, workers=given.workers)
    print(found.table())
    of_kit, at_hand = refused_of_the_kit(), refused_at_hand()
    print(f"\n{'rule':6} {'of these files':>14} {'of the kit':>12} {'at hand':>9}   refused")
    for rule in sorted({*REQUIRED, *found.rules}, key=lambda each: int(each[1:])):
        numbers = f"{found.rules[rule]:14} {len(of_kit.get(rule, ())):12}"
        print(f"{rule:6} {numbers} {int(bool(at_hand.get(rule))):9}")
    hit = {rule for rule, cases in of_kit.items() if cases} | {*filter(at_hand.get, at_hand)}
    missed = [rule for rule in REQUIRED if rule not in hit | {*found.rules}]
    print(f"rules that were not hit: {', '.join(missed) or 'none'}")
    print(f"\nseed {given.seed}: {found.cases} files in {time.monotonic() - began:.0f} s")
    print(found.told())
    return 1 if found.failures or missed else 0


if __name__ == "__main__":
    sys.exit(main())
