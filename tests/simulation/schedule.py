"""Schedules: what actors do, and what happens to them at which call; drawn from a seed, or written down as JSON.

A schedule that was drawn decides while it runs, and what it decided is kept: written down it runs the same again,
also after some of it was left out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

__all__ = ["FAULTS", "Decision", "Dice", "Schedule", "Script", "drawn"]

Operation = dict[str, Any]
Decision = dict[str, Any]
"""At one call: ``to``, an actor that goes on instead; ``fault``, what goes wrong, with its numbers."""

READS = frozenset(
    {"get", "get_range", "get_tail", "get_versioned", "exists", "list", "list_folders"}
)
CUT = frozenset({"get", "get_range", "get_tail", "get_versioned"})
WRITES = frozenset({"put", "create", "replace", "overwrite", "delete", "sync"})
REQUESTS = frozenset({"put", "create", "replace"})
FAULTS = (
    "fail",  # an error, and nothing was done
    "lost",  # it was done, and the answer is an error
    "double",  # the request arrives twice, and the second answer is the one that comes
    "late",  # an error now, and it is done at some later time
    "cut",  # fewer bytes than there are
    "stale",  # a listing as it was some time ago
    "interrupt",  # Ctrl-C before it is done
    "interrupt after",  # Ctrl-C when it has been done
    "crash",  # the machine stops before it is done, and what was not synced is gone
    "crash after",
    "clock",  # somebody sets the machine's clock
    "delay",  # it takes long
)


def may_go_wrong(method: str, *, lingering: bool) -> list[str]:
    """Tell what can happen to a call."""
    common = ["fail", "interrupt", "crash", "clock", "delay"]
    if method in WRITES:
        common += ["lost", "lost", "interrupt after", "crash after"]
    if method in REQUESTS:
        common += ["double", "double"] + ["late"] * (3 * lingering)
    if method in CUT:
        common.append("cut")
    if method in {"list", "list_folders"}:
        common += ["stale"] * 3
    return common


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Some actors in one place; without ``decisions`` the seed decides."""

    seed: int
    catalog: str
    actors: dict[str, list[Operation]]
    lingering: bool = False
    """Whether a request may be carried out after its caller got an error."""
    tells_time: bool = True
    """Whether the place says when something was written."""
    ordered: bool = True
    """Whether a listing stops at its limit."""
    late_wipes: bool = False
    """Whether a place may be made anew between somebody's last look and the entry that follows: no store does both
    at once, so that the entry lands in a repository that is not its own."""
    switching: float = 0.2
    failing: float = 0.01
    kinds: tuple[str, ...] = FAULTS
    decisions: dict[str, Decision] | None = None

    def to_json(self) -> str:
        """Write it down."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Read what was written down."""
        found = json.loads(text)
        return cls(**{**found, "kinds": tuple(found["kinds"])})

    def written_down(self, decisions: dict[str, Decision]) -> Schedule:
        """The same with what was decided while it ran."""
        return replace(self, decisions=dict(decisions))

    def __str__(self) -> str:
        """One line for each operation and each decision."""
        lines = [f"seed {self.seed}, catalog {self.catalog}, lingering {self.lingering}"]
        for name, operations in self.actors.items():
            lines.append(f"{name}:")
            for each in operations:
                rest = {k: v for k, v in each.items() if k not in {"id", "op"}}
                lines.append(f"    {each['id']:>3} {each['op']} {rest or ''}")
                mine = f"{name}/{each['id']}/"
                below = f"{name}.{each['id']}."
                lines += [
                    f"        at {point}: {decision}"
                    for point, decision in (self.decisions or {}).items()
                    if point.startswith((mine, below))
                ]
        return "\n".join(lines)


class Dice:
    """Decides by chance."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._rng = Random(f"{schedule.seed}/run")

    def decide(self, point: str, method: str, others: list[str]) -> Decision | None:
        """Decide what happens at a call, or between two operations, which has no method."""
        rng, schedule = self._rng, self._schedule
        decision: Decision = {}
        if others and rng.random() < schedule.switching * (1 if method else 2):
            decision["to"] = rng.choice(others)
        if method and rng.random() < schedule.failing:
            possible = may_go_wrong(method, lingering=schedule.lingering)
            possible = [kind for kind in possible if kind in schedule.kinds]
            if possible:
                kind = decision["fault"] = rng.choice(possible)
                if kind in {"late", "stale"}:
                    decision["ticks"] = rng.randint(1, 40)
                elif kind == "cut":
                    decision["share"] = rng.choice([0.0, 0.5, 0.99])
                elif kind == "clock":
                    decision["seconds"] = rng.choice([-1e8, -4000, -200, 200, 4000, 1e8])
                elif kind == "delay":
                    decision["seconds"] = rng.choice([1, 100, 100_000])
        return decision or None


class Script:
    """Decides as it is written down."""

    def __init__(self, decisions: dict[str, Decision]) -> None:
        self._decisions = decisions

    def decide(self, point: str, method: str, others: list[str]) -> Decision | None:
        """Give what is written for a point."""
        return self._decisions.get(point)


# -- drawn from a seed

PATHS = ["/a", "/b", "/g/c"]
NEW = ["/n", "/g/m"]
SIZES = [4, 20, 100]
"""Chunks that stand in the manifest, in a file with others, in one of their own."""
SHAPE = 6
"""Chunks of each array."""

WEIGHTS = {
    "put": 20,
    "commit": 20,
    "begin": 6,
    "drop": 3,
    "create": 3,
    "remove": 2,
    "attributes": 3,
    "read": 5,
    "rebase": 4,
    "fork": 3,
    "open": 5,
    "look": 7,
    "reopen": 2,
    "branch": 4,
    "tag": 3,
    "compact": 1,
    "rewrite": 1,
    "history": 3,
}


def drawn(seed: int, catalog: str = "", operations: int = 0) -> Schedule:
    """Draw a schedule; of a seed it is always the same one."""
    rng = Random(f"{seed}/schedule")
    chosen = rng.choice(["branches", "branches", "state"])
    writers, readers = rng.choice([(3, 0), (3, 1), (2, 1), (4, 0)])
    weights = {name: weight * rng.choice([0, 1, 1, 2]) for name, weight in WEIGHTS.items()}
    weights.update(put=20, commit=20)
    of_reader = {"open": 5, "look": 8, "history": 3, "reopen": 1}
    most = operations or rng.choice([8, 8, 8, 10])
    actors = {}
    for number in range(writers + readers):
        mine = weights if number < writers else of_reader
        names = rng.choices(list(mine), list(mine.values()), k=most)
        name = ("w" if number < writers else "r") + str(number)
        actors[name] = [_operation(rng, i, each) for i, each in enumerate(names)]
    if rng.random() < 0.15:
        someone = rng.choice(sorted(actors))
        actors[someone].insert(rng.randrange(most), {"id": most, "op": "remake"})
    kinds = FAULTS if rng.random() < 0.5 else tuple(rng.sample(FAULTS, rng.randint(1, 4)))
    lingering = rng.random() < 0.4
    if lingering and rng.random() < 0.3:
        kinds = ("late", "fail")
    return Schedule(
        seed=seed,
        catalog=catalog or chosen,
        actors=actors,
        lingering=lingering,
        tells_time=rng.random() < 0.7,
        ordered=rng.random() < 0.6,
        switching=rng.choice([0.03, 0.1, 0.3, 0.6]),
        failing=rng.choice([0.0, 0.02, 0.05, 0.1]),
        kinds=kinds,
    )


def _branch(rng: Random) -> str:
    return rng.choice(["main", "main", "main", "b0"])


def _put(rng: Random) -> Operation:
    place = rng.randrange(SHAPE)
    size = rng.choice([*SIZES, None]) if rng.random() < 0.8 else None
    return {"op": "put", "path": rng.choice([*PATHS, NEW[0]]), "place": place, "size": size}


def _operation(rng: Random, number: int, name: str) -> Operation:
    found: Operation = {"id": number, "op": name}
    match name:
        case "put":
            found |= _put(rng)
        case "begin" | "open":
            found["branch"] = _branch(rng)
            if name == "open" and rng.random() < 0.2:
                found["tag"] = f"t{rng.randrange(2)}"
        case "create":
            found["path"] = rng.choice([*NEW, *NEW, PATHS[1]])
        case "remove":
            found["path"] = rng.choice([*NEW, *NEW, *PATHS[1:]])
        case "attributes":
            found |= {"path": rng.choice(["/", "/g"]), "value": number}
        case "commit":
            found |= {"rebase": rng.random() < 0.6, "tries": rng.choice([1, 1, 2, 3])}
            found |= {"place": rng.randrange(SHAPE), "size": rng.choice(SIZES)}
        case "fork":
            places = rng.sample(range(SHAPE), rng.randint(2, 3))
            cut = rng.randint(1, len(places) - 1)
            path = rng.choice(PATHS)
            found["parts"] = [
                [{"op": "put", "path": path, "place": i, "size": rng.choice(SIZES)} for i in part]
                for part in (places[:cut], places[cut:])
            ]
        case "branch":
            found |= {
                "do": rng.choice(["create", "create", "reset", "expect", "delete"]),
                "branch": rng.choice(["b0", "b0", "main"]),
                "back": rng.randrange(3),
            }
        case "tag":
            found |= {
                "do": rng.choice(["create", "create", "delete"]),
                "tag": f"t{rng.randrange(2)}",
            }
        case "compact" | "rewrite" | "history":
            found["branch"] = _branch(rng)
    return found


__all__ += ["NEW", "PATHS", "SHAPE", "SIZES", "Operation"]
