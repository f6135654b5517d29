"""Host and device cost on two sliders: who wins, and a few settled steps, with no kernel behind.

Every pair of costs on a grid is run beforehand, serially and overlapped; the page only looks up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from ..export.layout import steady_views
from ..export.palette import PAINTS
from ..export.svg import variables
from ..export.units import MILLISECOND
from ..loops.run import Run
from .simulate import TIE, makespan_ms, settled_step_ms, simulate

HOSTS = tuple(range(0, 21, 2))  # ms a step
DEVICES = tuple(range(2, 21, 2))
LOOPS = ("serial", "overlap")
SHOWN = ("schedule", "process", "wait", "forward", "copy")
LENGTHS = (3, 12)  # new tokens of the request: an answer that is hardly begun, and a settled one
STEPS, HEIGHT = 3, 660  # settled steps drawn; pixels of the frame


@dataclass(frozen=True)
class Slider:
    """A page in a frame of its own, so that neither its styles nor its names get out."""

    page: str

    def _repr_html_(self) -> str:
        page = escape(self.page, quote=True).encode("ascii", "xmlcharrefreplace").decode()
        return (
            f'<iframe title="serial against overlap: move host and device cost" '
            'sandbox="allow-scripts" '
            f'style="width:100%;max-width:900px;height:{HEIGHT}px;border:0" '
            f'srcdoc="{page}"></iframe>'
        )

    def __repr__(self) -> str:
        return "<two sliders, host and device cost: serial against overlap>"


def cost_slider(
    hosts: Sequence[int] = HOSTS,
    devices: Sequence[int] = DEVICES,
    lengths: Sequence[int] = LENGTHS,
    copy_ms: float = 1,
) -> Slider:
    """Run one request with every pair of costs, in ms a step, through both loops.

    ``lengths`` are after how many new tokens its stop token comes, which nobody knows before.
    Where there are too few for settled steps, whole runs are drawn.
    """
    grids = [
        [[_pair(host, device, copy_ms, length) for device in devices] for host in hosts]
        for length in lengths
    ]
    data = {
        "hosts": list(hosts),
        "devices": list(devices),
        "copy": copy_ms,
        "lengths": list(lengths),
        "loops": LOOPS,
        "tie": TIE,
        "grids": grids,
        "paints": {name: [PAINTS[name].fill, PAINTS[name].text] for name in SHOWN},
    }
    return Slider(_page(data))


def _pair(host: float, device: float, copy: float, tokens: int) -> list[dict[str, Any]]:
    runs = [
        simulate(
            loop,
            host_ms=host,
            device_ms=device,
            copy_ms=copy,
            requests=1,
            new_tokens=tokens,
            stop=True,
        )
        for loop in LOOPS
    ]
    return [_run_data(run, view) for run, view in zip(runs, _windows(runs), strict=True)]


def _windows(runs: list[Run]) -> list[tuple[float, list[list[Any]]]]:
    """A few steps of each run: how long they take, then [lane, name, step, start, end, wasted].

    Times are in ms; in a wasted step everything is wasted, because there is one request.
    """
    found = []
    for view in steady_views([run.trace for run in runs], STEPS):
        wasted = {m.attrs["step"] for m in view.trace.marks if m.name == "wasted row"}
        boxes: list[list[Any]] = []
        for box in view.boxes:
            start, end = view.clip(box.slice.start, box.slice.end)
            if end > start:
                lane = 1 if box.lane.side == "device" else 0
                lane += box.slice.name == "copy"
                lost = int(box.step in wasted and box.lane.side == "device")
                boxes.append([lane, box.slice.name, box.step, _ms(start), _ms(end), lost])
        found.append((_ms(view.duration), boxes))
    return found


def _run_data(run: Run, window: tuple[float, list[list[Any]]]) -> dict[str, Any]:
    return {
        "makespan": round(makespan_ms(run), 3),
        "step": settled_step_ms(run),
        "window": window[0],
        "boxes": window[1],
    }


def _ms(time: int) -> float:
    return round(time / MILLISECOND, 3)


def _page(data: dict[str, Any]) -> str:
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
            f"<style>\n{variables()}\n{_part('slider.css')}</style>",
            _part("slider.html"),
            f'<script id="data" type="application/json">{text}</script>',
            f"<script>\n{_part('slider.js')}</script>\n</html>",
        ]
    )


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
