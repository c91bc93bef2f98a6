"""What memory this process has and had: Linux's own counters, which start anew when asked."""

from __future__ import annotations

import gc
from pathlib import Path

__all__ = ["Meter", "resident_bytes"]

_OWN = Path("/proc/self")


def _counter(name: str) -> int:
    for line in (_OWN / "status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"this system counts no {name}")


def resident_bytes() -> int:
    """Memory that the process has now."""
    return _counter("VmRSS")


def _forget_peak() -> None:
    (_OWN / "clear_refs").write_text("5")


class Meter:
    """Peaks since it was made, which is best right after the imports; and since the input was ready."""

    def __init__(self) -> None:
        gc.collect()
        _forget_peak()
        self._imports = self._input = resident_bytes()
        self._highest = 0

    def input_ready(self) -> None:
        """What is held now is the person's own."""
        gc.collect()
        self._highest = _counter("VmHWM")
        _forget_peak()
        self._input = resident_bytes()

    def figures(self) -> dict[str, int]:
        """Bytes at the highest: over what the imports hold, over the input too, and in all."""
        now = _counter("VmHWM")
        highest = max(now, self._highest)
        return {
            "beyond_imports": highest - self._imports,
            "beyond_input": now - self._input,
            "peak": highest,
        }
