"""Numbers of runs in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..checks.overlap import forwards, measure
from ..devices.cost import MILLISECOND
from ..export.views.marks import named, number, word
from ..loops.run import Run
from .simulate import makespan_ms
from .wording import joined


@dataclass(frozen=True)
class Table:
    """Rows of words, shown as a table."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def _repr_html_(self) -> str:
        lines = [f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in self.heads)}</tr>"]
        lines += [f"<tr>{''.join(f'<td>{escape(x)}</td>' for x in row)}</tr>" for row in self.rows]
        return f"<table>{''.join(lines)}</table>"

    def __repr__(self) -> str:
        columns = list(zip(self.heads, *self.rows, strict=True))
        widths = [max(map(len, column)) for column in columns]
        return "\n".join(
            "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
            for row in (self.heads, *self.rows)
        )


def table(*runs: Run, names: Sequence[str] = ()) -> Table:
    """What runs did with their time; the first is the one that speed-ups refer to.

    ``names`` are what runs are called, if not by their loop.

    Raises:
        ValueError: there are names, but not one for each run.
    """
    if names and len(names) != len(runs):
        raise ValueError(f"there are {len(names)} names, but {len(runs)} runs.")
    rows = []
    for name, run in zip(names or [run.loop for run in runs], runs, strict=True):
        report = measure(run.trace)
        rows.append(
            (
                name,
                str(report.steps),
                f"{makespan_ms(run):g} ms",
                f"{report.device_busy_percent:.0f} %",
                f"{report.bubble_ns / MILLISECOND:g} ms",
                f"{runs[0].trace.end / max(1, run.trace.end):.2f}×",
                "yes" if run.outputs == runs[0].outputs else "NO",
            )
        )
    heads = (
        "relay" if names else "loop",
        "steps",
        "makespan",
        "device busy",
        "device idle",
        "speed-up",
        "same tokens",
    )
    return Table(heads, tuple(rows))


def inputs_sent(run: Run, steps: int = 4) -> Table:
    """What the host sent as inputs of the first steps, and where they leave their tokens.

    Raises:
        NothingToShow: a mark of the future map is not what it should be.
    """
    ran = {item.step: item for item in forwards(run.trace)}
    rows = []
    for mark in named(run.trace, "future slots")[:steps]:
        step = number(mark, "step")
        reads = [f"-{slot}" for slot in word(mark, "reads").split()]
        sent = joined(reads) if reads else "the tokens of the prompts"
        slots = joined(word(mark, "slots").split())
        rows.append((str(step), joined(list(ran[step].rids)), sent, f"slots {slots}"))
    return Table(("step", "requests", "the host sends", "leaves its tokens in"), tuple(rows))
