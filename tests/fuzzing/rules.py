"""Which rule a damage breaks, where a mutation breaks one and the same whatever is drawn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.conformance.kit.writing import FOLDER
from tests.fuzzing.looks import LOOKS, look
from tests.fuzzing.samples import sample

if TYPE_CHECKING:
    from tests.fuzzing.damage import Case

__all__ = ["REQUIRED", "refused_of_the_kit", "rule_of"]

_CASES = sorted(path.parent.name for path in FOLDER.glob("refused/*/error.json"))
REQUIRED = sorted({name.partition("-")[0] for name in _CASES}, key=lambda rule: int(rule[1:]))
"""Rules that a reader must check, as the conformance kit has them."""


def refused_of_the_kit() -> dict[str, list[str]]:
    """By rule, the cases of the kit that are refused with an error that names a file it may name."""
    found: dict[str, list[str]] = {rule: [] for rule in REQUIRED}
    for name in _CASES:
        of = sample(f"refused/{name}")
        error = json.loads((FOLDER / "refused" / name / "error.json").read_text())
        keys = [error["key"], *error["also"]]
        stems = [key.rpartition("/")[2].partition(".")[0] for key in keys if key[1] == "/"]
        of.lay_out()
        for way in LOOKS:
            answer = look(way, of.url, "structure")
            if answer.refusal and any(each in answer.refusal for each in [*keys, *stems]):
                found[error["rule"]].append(name)
                break
    return found


_RULES = {
    ("manifest", "rows' order"): "R24",
    ("manifest", "doubled row"): "R24",
    ("structure", "rows' order"): "R14",
    ("structure", "doubled row"): "R14",
    ("log", "rows' order"): "R34",
    ("log", "doubled row"): "R34",
    ("ledger log", "missing row"): "R80",
}


def rule_of(case: Case) -> str | None:
    """Name the rule that a case breaks if it is refused; None where that depends on what was drawn."""
    if len(case.steps) > 1:
        return None
    way = case.steps[0][0]
    if way in {"missing column", "type", "column's name"}:
        return "R11"
    if way == "seal":
        return "R9"
    return _RULES.get((case.kind, way))
