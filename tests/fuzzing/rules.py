"""Which rule a damage breaks, where a mutation breaks one and the same whatever is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzzing.damage import Case

__all__ = ["rule_of"]

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
