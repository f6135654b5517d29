"""What ``clear_cache`` does to MLX's memory, decode by decode: figures and a picture.

``minisched diagrams mlx_memory`` draws ``traces/mlx_memory.svg`` where MLX is installed; the one
that is kept was measured on the Linux CPU build. It is drawn only when it is named, and ``--check``
leaves it out, because memory is the process's. On sim there is no memory to count: a run there
shows when the cache is cleared, and nothing more.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from ..trace import Trace
from .mlx_runs import memory_run
from .units import tick_step
from .views.axes import ValueAxis
from .views.marks import NothingToShow
from .views.page import EDGE, LEFT, Page, about_run
from .views.shapes import line, path, text

MIB, HEIGHT = 1 << 20, 220
Reading = tuple[int, int]  # (finalized decodes so far, bytes); a clearing gives one more


@dataclass(frozen=True)
class MemoryReport:
    """One run's memory in bytes; on a device that counts none the readings are empty.

    ``before_clear`` and ``after_clear`` are the cache at each clearing.
    """

    cache: tuple[Reading, ...]
    active: tuple[Reading, ...]
    before_clear: tuple[int, ...]
    after_clear: tuple[int, ...]
    clears: int

    @property
    def most_cached(self) -> int:
        """The most that the library kept."""
        return max((value for _, value in self.cache), default=0)


def memory_report(trace: Trace) -> MemoryReport:
    """What a run's counters say (``devices/mlx.py:count_memory``)."""
    clears = [mark.time for mark in trace.marks if mark.name == "clear cache"]
    cache, active = (_readings(trace, name, clears) for name in ("cache memory", "active memory"))
    drops = [(before[1], after[1]) for before, after in pairwise(cache) if before[0] == after[0]]
    return MemoryReport(
        tuple(cache),
        tuple(active),
        tuple(before for before, _ in drops),
        tuple(after for _, after in drops),
        len(clears),
    )


def _readings(trace: Trace, name: str, clears: Sequence[int]) -> list[Reading]:
    """A counter by decodes: the first reading after a clearing belongs to the same decode."""
    found: list[Reading] = []
    left = list(clears)
    for item in trace.counters:
        if item.name != name:
            continue
        was_cleared = bool(left) and left[0] <= item.time
        if was_cleared:
            left.pop(0)
        decodes = found[-1][0] if found else 0
        found.append((decodes if was_cleared else decodes + 1, item.value))
    return found


def draw_memory(every: int = 16) -> str:
    """Measure both runs and draw them.

    Raises:
        ValueError: MLX is not installed, or cannot be used here.
    """
    runs = []
    for clear_cache_every in (0, every):
        gc.collect()  # what other runs have left must not go while this one counts
        with TemporaryDirectory() as folder:
            runs.append(memory_run(Path(folder) / "tiny_llama", clear_cache_every))
    return memory_picture(runs[0].trace, runs[1].trace, every)


def memory_picture(without: Trace, cleared: Trace, every: int) -> str:
    """Cached bytes with and without clearing, and what is in use: an SVG.

    Raises:
        NothingToShow: the device counted no memory.
    """
    kept, given_back = memory_report(without), memory_report(cleared)
    if not (kept.cache and given_back.cache):
        raise NothingToShow("the trace has no cache memory counter: its device keeps no cache.")
    said = [
        [mark.attrs for mark in run.marks if mark.name == "tokens"] for run in (without, cleared)
    ]
    same = "the same" if said[0] == said[1] else "not the same"
    page = Page("mlx_async: memory with and without clear_cache", about_run(cleared))
    page.heading("Memory", "after each finalized decode")
    most = max(value for run in (kept, given_back) for _, value in (*run.cache, *run.active))
    y = ValueAxis(-(-most // MIB), page.top + 18, page.top + 18 + HEIGHT)
    last = max(kept.cache[-1][0], given_back.cache[-1][0])
    page.add(*y.draw("MiB"), *_decode_axis(last, y))
    for kind, readings, words in (
        ("line second", kept.cache, "cached, never cleared"),
        ("line", given_back.cache, f"cached, cleared every {every} decodes"),
        ("limit", given_back.active, "in use"),
    ):
        page.add(path(kind, _drawn(readings, last, y), words, series=words))
    page.top = y.bottom + 30
    page.legend({
        "line second": "cached, never cleared",
        "line": f"cached, cleared every {every} finalized decodes",
        "limit": "in use",
    })  # fmt: skip
    page.notes(
        f"Most cached: {kept.most_cached / MIB:.1f} MiB without clearing, "
        f"{given_back.most_cached / MIB:.1f} MiB with it. The tokens are {same}.",
    )
    return page.finish()


def _x(decodes: int, last: int) -> float:
    return LEFT + decodes * (EDGE - LEFT) / max(1, last)


def _decode_axis(last: int, y: ValueAxis) -> list[str]:
    drawn = [text(20, y.bottom + 18, "decodes", "small")]
    for at in range(0, last + 1, tick_step(max(1, last))):
        drawn.append(line("axis", _x(at, last), y.bottom, _x(at, last), y.bottom + 5))
        drawn.append(text(_x(at, last), y.bottom + 18, str(at), "small", "middle"))
    return drawn


def _drawn(readings: Sequence[Reading], last: int, y: ValueAxis) -> str:
    points = [f"{_x(at, last):.1f} {y.y(value / MIB):.1f}" for at, value in readings]
    return "M" + "L".join(points)
