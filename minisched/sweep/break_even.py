"""The settings where overlap wins, ties and loses: speed-ups over ``serial``, by design.

Two factors decide. The first is the host's share: overlap saves most where host and device take
equally long, and almost no time where one of them dominates. The second is the length of an answer.
Overlap gains on each step except the first, and loses a step that is launched for a request that
has already ended. A design that foresees the end of an answer avoids that step. A length can be
foreseen; a stop token can't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..checks.history import many
from ..export.scene import CellGrid, GridCell, Part, Scene
from .grid import SweepCell
from .sweep import lost_cell, run_cell
from .workers import HERE, Workers, spread

RATIOS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)  # of host to device
LENGTHS = (1, 2, 4, 16, 64)  # tokens of an answer
MOST_MS = 1_000_000  # of host, device or copy in a step
DESIGNS = (
    "overlap", "overlap_thread", "mini_overlap", "vllm_async", "mlx_async", "mindie_dual",
    "multi_step",
)  # fmt: skip
REQUESTS, RUNNING = 12, 4  # more requests than may run; all of equal length
RULES = "sglang"  # of every design, so designs differ in their order alone


@dataclass(frozen=True)
class BreakEven:
    """Each design's runs over host/device ratios and lengths of answers, and ``serial``'s.

    ``yours`` is the index of the ratio from the command line. ``rows[design][length, ratio]``
    contains a run's figures, by column (``sweep.py``).
    """

    ratios: Sequence[float]
    lengths: Sequence[int]
    yours: int
    device_ms: float
    copy_ms: float
    is_stopped: bool
    rows: Mapping[str, Mapping[tuple[int, int], Mapping[str, Any]]]

    @property
    def designs(self) -> list[str]:
        """Return all designs except the baseline."""
        return [name for name in self.rows if name != "serial"]

    @cached_property
    def speedups(self) -> dict[str, dict[tuple[int, int], float]]:
        """Return speed-ups over ``serial``, where both ran."""
        serial, found = self.rows["serial"], {}
        for design in self.designs:
            found[design] = {
                at: serial[at]["makespan_ms"] / row["makespan_ms"]
                for at, row in self.rows[design].items()
                if row["state"] == serial[at]["state"] == "ok"
            }
        return found

    def why(self, design: str) -> str:
        """Write in one sentence where a design wins most, and why it loses."""
        values = self.speedups[design]
        if not values:
            return next(str(row["reason"]) for row in self.rows[design].values())
        best = max(values, key=lambda at: values[at])
        said = f"at most {values[best]:.2f}× ({self._place(best)})"
        lost = {at: value for at, value in values.items() if value < 1 - TIE}
        if not lost:
            return f"{said}; it never loses."
        worst = min(lost, key=lambda at: lost[at])
        mine, base = (self.rows[name][worst] for name in (design, "serial"))
        more, wasted = mine["steps"] - base["steps"], mine["wasted_rows"]
        because = f"{many(more, 'step')} more than serial's {base['steps']}"
        because = because if more > 0 else "as many steps, further apart"
        waste = f" and {many(wasted, 'row')} for nothing" if wasted else ""
        return (
            f"{said}; loses {100 * (1 - lost[worst]):.0f} % ({self._place(worst)}): "
            f"{because}{waste}."
        )

    def _place(self, at: tuple[int, int]) -> str:
        return f"{many(self.lengths[at[0]], 'token')}, host {self.ratios[at[1]]:g} of the device"

    @property
    def title(self) -> str:
        """Write the finding of the whole map."""
        every = [
            (value, at, design)
            for design, found in self.speedups.items()
            for at, value in found.items()
        ]
        if not every:
            return "no design runs with these settings"
        (top, _, _), (low, at, loser) = max(every), min(every)
        said = f"Overlap makes it up to {top:.2f} times as fast as serial"
        tokens = many(self.lengths[at[0]], "token")
        if low >= 1 - TIE:
            return f"{said}, and never slower"
        return f"{said}; {loser} is up to {100 * (1 - low):.0f} % slower, on answers of {tokens}"

    @property
    def scene(self) -> Scene:
        """Draw a panel for each design."""
        ends = "a stop token ends each answer" if self.is_stopped else "each answer ends by length"
        columns = [f"{ratio:g}" for ratio in self.ratios]
        columns[self.yours] += " (yours)"
        return heat_map(
            self.title,
            f"speed-up over serial; across: host over device time of a step, down: length of an "
            f"answer; device {self.device_ms:g} ms, copy {self.copy_ms:g} ms",
            [many(length, "token") for length in self.lengths],
            columns,
            self.speedups,
            {design: self.why(design) for design in self.designs},
            (f"{REQUESTS} requests, {RUNNING} at a time, on sim, under SGLang's rules; {ends}.",),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of ``minisched map``: a list for each length, a number for each ratio."""
        return {
            "ratios": list(self.ratios),
            "lengths": list(self.lengths),
            "yours": self.ratios[self.yours],
            "device_ms": self.device_ms,
            "copy_ms": self.copy_ms,
            "stop": self.is_stopped,
            "title": self.title,
            "speedups": {
                design: [[values.get((row, column)) for column in range(len(self.ratios))]
                         for row in range(len(self.lengths))]
                for design, values in self.speedups.items()
            },
            "why": {design: self.why(design) for design in self.designs},
        }  # fmt: skip


def measure_break_even(
    designs: Sequence[str] = DESIGNS,
    host_ms: float = 6.0,
    device_ms: float = 10.0,
    copy_ms: float = 0.5,
    is_stopped: bool = False,
    lengths: Sequence[int] = LENGTHS,
    workers: Workers = HERE,
    hear: Callable[[str], None] = lambda design: None,
) -> BreakEven:
    """Run every design, and ``serial``, at every ratio and length.

    The ratio of ``host_ms`` and ``device_ms`` is one of them. With ``is_stopped`` an answer ends at
    a stop token. Its probability makes the lengths the mean.

    Raises:
        ValueError: a time is negative or above ``MOST_MS``, or the device takes none.
    """
    for name, value in (("host_ms", host_ms), ("device_ms", device_ms), ("copy_ms", copy_ms)):
        if not 0 <= value <= MOST_MS or (name == "device_ms" and not value):
            least = "above 0" if name == "device_ms" else "at least 0"
            raise ValueError(
                f"{name} is {value:g}, but it must be {least} and at most {MOST_MS:,} ms."
            )
    yours = round(host_ms / device_ms, 3)
    ratios = sorted({*RATIOS, yours})
    places = [(row, column) for row in range(len(lengths)) for column in range(len(ratios))]
    todo = [(name, at) for name in dict.fromkeys(["serial", *designs]) for at in places]
    cells = []
    for name, (row, column) in todo:
        length = lengths[row]
        ends = {"new_tokens": 8 * length, "stop": min(0.9, 1 / length)} if is_stopped else {
            "new_tokens": length}  # fmt: skip
        cells.append(SweepCell({
            "loop": name, "host_ms": round(ratios[column] * device_ms, 6), "device_ms": device_ms,
            "copy_ms": copy_ms, "requests": REQUESTS, "max_running_requests": RUNNING,
            "prompt_tokens": 8, "rules": RULES, **ends,
        }))  # fmt: skip
    rows: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {name: {} for name, _ in todo}
    for at, found in spread(run_cell, cells, workers, lost_cell):
        name, place = todo[at]
        rows[name][place] = found
        hear(name)
    return BreakEven(
        ratios, lengths, ratios.index(yours), device_ms, copy_ms, is_stopped,
        {name: dict(sorted(found.items())) for name, found in rows.items()},
    )  # fmt: skip


# -- Heat maps: speed-ups over two settings, one map for each choice, on one scale -----------------
#
# Speed-ups are brown where a choice loses, grey for ties and green where it wins. A number has the
# exact value. A line separates wins from losses: the break-even.

Place = tuple[int, int]  # row and column

TIE = 0.02  # the largest relative difference of a tie
SPEEDUPS = (  # a kind, its greatest value, its meaning
    ("loses much", 0.85, "loses more than 15 %"),
    ("loses", 1 - TIE, "loses"),
    ("ties", 1 + TIE, "ties, within 2 %"),
    ("wins", 1.25, "wins"),
    ("wins more", 1.5, "wins more than 25 %"),
    ("wins much", float("inf"), "wins more than 50 %"),
)


def heat_map(
    title: str, about: str, rows: Sequence[str], columns: Sequence[str],
    panels: Mapping[str, Mapping[Place, float]], said: Mapping[str, str], notes: Sequence[str] = (),
) -> Scene:  # fmt: skip
    """Draw each choice's speed-ups over another one.

    ``said`` has a quiet note for each choice's name.
    """
    parts = []
    for name, values in panels.items():
        cells = {at: GridCell(kind_of(value), f"{value:.2f}×") for at, value in values.items()}
        walls = [*break_even(values)]
        parts.append(Part(name, said[name], [CellGrid(rows, columns, cells, walls=walls)]))
    legend = {kind: words for kind, _, words in SPEEDUPS} | {"wall": "break-even"}
    return Scene(title, about, parts, legend, notes)


def kind_of(value: float) -> str:
    """Return the look of a place."""
    return next(kind for kind, most, _ in SPEEDUPS if value <= most)


def break_even(values: Mapping[Place, float]) -> Iterator[tuple[Place, Place]]:
    """Yield neighbouring places of which one wins and the other does not."""
    for (row, column), value in values.items():
        for other in ((row, column + 1), (row + 1, column)):
            if other in values and (value > 1 + TIE) != (values[other] > 1 + TIE):
                yield (row, column), other
