"""Tables of loops and relays for ``designs.md``, from the code, so that they cannot be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..loops.design import LOOPS
from ..relay.registry import RELAYS

# -- Tables as Markdown ----------------------------------------------------------------------------


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A line for the heads, one that sets them off, and one a row; no newline at the end."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def loops_table() -> str:
    """Markdown: each loop with its source, its depth and its relays, the default first."""
    head = ("loop", "follows", "steps in flight", "past a length", "relays")
    rows = (
        (f"`{name}`", spec.follows, str(spec.depth), str(spec.overrun), ", ".join(spec.relays))
        for name, spec in LOOPS.items()
    )
    return table(head, rows)


def relays_table() -> str:
    """Markdown: which loop may use which relay, and what the others lack."""
    head = ("relay", "needs", "loops that take it")
    rows = (
        (f"`{name}`", spec.needs, ", ".join(loops_with(name)) or "none")
        for name, spec in RELAYS.items()
    )
    return table(head, rows)


def loops_with(relay: str) -> Iterator[str]:
    """The loops that a relay fits."""
    return (name for name, spec in LOOPS.items() if relay in spec.relays)


def refusals_table() -> str:
    """Markdown: what does not go with a loop, and the original's reason; all the rest goes."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, spec in LOOPS.items():
        for word, reason in spec.refuses.items():
            feature, _, relay = word.partition(" with ")
            if feature not in ("other relays", "real devices"):
                design = f"{name}:{relay}" if relay else name
                found.setdefault((design, reason), []).append(feature)
    loops_of: dict[tuple[str, str], list[str]] = {}
    for (name, reason), features in found.items():
        loops_of.setdefault((", ".join(features), reason), []).append(f"`{name}`")
    rows = ((features, ", ".join(names), reason) for (features, reason), names in loops_of.items())
    return table(("refused", "by", "because"), rows)
