"""Mutants of a solution that are as good: by exercise, and by the reason.

A mutant is named by its lines that differ. An exercise that is not here is not mutated yet.
"""

from __future__ import annotations

AS_GOOD: dict[str, dict[str, tuple[str, ...]]] = {
    "Device": {
        "no work moves no clock": ("if ms + 0 == 0: return None",),
        "`op` is the pair that their own `launch` gave": (
            "if len(op) == 0: return None",
            "if len(op) == 1: return None",
            "if len(op) > 2: return None",
        ),
    },
}
