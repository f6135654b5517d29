"""What the colours, hatchings, arrows and flags of the page's lanes mean."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..checks.causes import num_waits
from ..trace import Trace
from .html_flags import FLAGS
from .palette import ARROWS, PAINTS


def legend(traces: Sequence[Trace]) -> str:
    """One line of what occurs in these runs."""
    seen = {item.name for trace in traces for item in trace.slices if item.duration}
    items = [_phase(name) for name in PAINTS if name in seen]
    items.append('<span><i class="bubble"></i>bubble: the device idles</span>')
    if reasons := dict.fromkeys(reason for trace in traces for reason in num_waits(trace)):
        waits = f"the device waits for {escape(', '.join(reasons))}"
        items.append(f'<span><i class="waited"></i>{waits}</span>')
    kinds = {edge.kind for trace in traces for edge in trace.edges}
    kinds |= {"wrong" for trace in traces for mark in trace.marks if mark.name == "wrong token"}
    items += [
        f'<span><i class="arrow" style="background:var(--{kind})"></i>{text}</span>'
        for kind, text in ARROWS.items()
        if kind in kinds
    ]
    flags = {mark.name for trace in traces for mark in trace.marks}
    for colour in dict.fromkeys(FLAGS.values()):
        if found := [name for name in FLAGS if name in flags and FLAGS[name] == colour]:
            flag = f'<b style="color:var(--{colour})">▼</b>'
            items.append(f'<span class="mark">{flag} {", ".join(found)}</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def _phase(name: str) -> str:
    style = "" if name == "wait" else f' style="background:{PAINTS[name].fill}"'
    return f'<span><i class="{name}"{style}></i>{name}</span>'
