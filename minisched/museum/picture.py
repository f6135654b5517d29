"""An exhibit as a picture: the run with the bug, its cause in red, and below it the healthy run.

Both runs have the same requests and one time axis. The contested memory is a lane of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..checks.history import Offence
from ..checks.judge import Verdict
from ..export.contested import Contested, cell_row
from ..export.layout import View, make_view
from ..export.offence import LEGEND, in_red, missing_of, missing_words, quieted, told
from ..export.runs import lanes_of, wrong_tokens
from ..export.scene import LaneItem, LaneRow, Lanes, Part, Scene
from ..export.scene_svg import to_svg
from ..export.svg_style import PHONE
from ..export.units import MILLISECOND, ms
from ..trace import Trace
from ..trace.cells import spans_of
from .blame import exhibit_offence
from .exhibit import Exhibit, exhibits

OF_THE_README = "pinned_buffer_rewritten"
LONGEST = 64 * MILLISECOND  # the longest run that is readable at this width
ORDERS = re.compile(r"^step (\d+) runs (.*) on rank 0, and (.*) on rank 1$")
AFTER = 1.12  # of the time shown: the end of the axis, with room for the state after a run


def exhibit_scene(exhibit: Exhibit) -> Scene:
    """Return the run with the bug, and below it the same memory in the healthy run.

    Without a contested cell it is the whole healthy run. Long runs are cut a little after the last
    red slice. The picture has no bubbles, because it is not about idle time.

    Raises:
        ValueError: the bug is not caught, so there is nothing to show in red.
    """
    bug, healthy = exhibit.with_bug(), exhibit.healthy()
    offence = exhibit_offence(exhibit, bug)
    ends = [item.end for item in bug.trace.slices if item.id in offence.slices]
    last = min(bug.trace.end, max(ends, default=0) + LONGEST // 8)
    if offence.cell.startswith("answer"):  # up to the healthy run's last token
        last = max(last, healthy.trace.end + LONGEST // 8)
    start = max(0, last - LONGEST)
    end = start + LONGEST
    if bug.trace.end > end:
        end = min(end, max(last, healthy.trace.end))
    view, other = stretch(bug, start, end), stretch(healthy, start, end)
    is_cut = max(bug.trace.end, healthy.trace.end) > end
    longest = round(
        (1 if is_cut or not offence.cell else AFTER) * max(view.duration, other.duration)
    )
    lanes, orders = in_red(view, offence, longest), ORDERS.search(offence_sentence(exhibit, bug))
    if orders:
        lanes = replace(lanes, rows=[*ranks_of(view, *orders.groups()), *lanes.rows])
    if bug.trace.end < min(end, healthy.trace.end):
        lanes = replace(lanes, rows=[replace(lanes.rows[0], tail="the run ends"), *lanes.rows[1:]])
    parts = [Part("with the bug", what_ran(exhibit, view), [lanes])]
    notes, why = [*told(view, offence), *wrong_tokens(view)], offence.sentence
    if offence.deeds and (missing := missing_of(view, offence)):
        why = missing_words(missing, offence)  # the phrases below the cell contain the rest
        if [deed.partition(" ")[0] for deed in offence.deeds] == ["reads", "writes"]:
            read, written = (item.label for item in missing)
            why += f", so a late {read} reads the data of {written}"
        notes = [*wrong_tokens(view)]
    same = "without it, same requests: every law holds"
    if offence.cell:
        names = same_cells(offence, bug.trace, healthy.trace)
        rows = [cell_row(other, name, lanes.end) for name in names]
        parts.append(Part(same, "", [Lanes(rows, lanes.end, lanes.start)]))
    else:
        right = lanes_of(other, longest)
        rows = [replace(row, spans=quieted(row.spans, set())) for row in right.rows]
        if orders:
            step, first, _ = orders.groups()
            rows = [*ranks_of(other, step, first, first), *rows]
        parts.append(Part(same, what_ran(exhibit, other), [replace(right, rows=rows, links=())]))
    about = f'It breaks the law "{exhibit.law}": {why}'
    legend = {kind: LEGEND[kind] for kind in LEGEND if kind not in ("outline", "other")}
    return Scene(exhibit.title, about, parts, legend, notes)


def offence_sentence(exhibit: Exhibit, bug: Verdict) -> str:
    """Return the sentence of the law that a bug breaks; empty if it breaks none."""
    finding = bug.broke(exhibit.law)
    return finding.sentence if finding else ""


def ranks_of(view: View, step: str, *orders: str) -> list[LaneRow]:
    """Return a lane for each rank of a step, with the order of its requests."""
    (ran,) = (item for item in view.slices if (item.name, item.step) == ("forward", int(step)))
    ends = view.clip(ran.start, ran.end)
    kinds = [f"owner {[*orders].index(order)}" for order in orders]
    return [
        LaneRow(f"Step {step}, rank {rank}", [LaneItem(kind, *ends, order)])
        for rank, (kind, order) in enumerate(zip(kinds, orders, strict=True))
    ]


def stretch(verdict: Verdict, start: int, latest: int) -> View:
    """Return a part of a run, at most to its end, in the run's own time."""
    end = max(start + 1, min(verdict.trace.end, latest))
    return replace(make_view(verdict.trace, start, end), bubbles=(), zero=0)


def same_cells(offence: Offence, bug: Trace, healthy: Trace) -> list[str]:
    """Return the contested cell in the healthy run, or what the same slices touch there instead."""
    resource = offence.cell.rpartition(" ")[0]
    cell = Contested(healthy, offence.cell)
    if cell.owned() or any(True for _ in cell.accesses()):
        return [offence.cell]
    labels = {item.label for item in bug.slices if item.id in offence.slices}
    by_id = {item.id: item for item in healthy.slices}
    found = [
        f"{resource} {spans_of(act.at)[0][0]}"
        for act in healthy.program
        if act.resource == resource and act.op in by_id and by_id[act.op].label in labels
    ]
    return [*dict.fromkeys(found)] or [offence.cell]


def what_ran(exhibit: Exhibit, view: View) -> str:
    """Return the loop, model and device, and the end of a cut run, in words."""
    loop = exhibit.case.loop + (f" with relay {exhibit.case.relay}" if exhibit.case.relay else "")
    about = f"{loop}, {view.trace.model} model on {view.trace.device}"
    return about + f", goes on to {ms(view.trace.end)} ms" * (view.end < view.trace.end)


# -- Among the files that the repository keeps of its own output -----------------------------------


def path_of(exhibit: Exhibit) -> str:
    """Return the path of a bug's picture in the repository."""
    return f"traces/museum/{exhibit.name}.svg"


def museum_makers() -> dict[str, Callable[[], dict[str, str]]]:
    """Return the maker of each bug's picture, by name; each returns a text by path."""
    return {f"museum/{item.name}": partial(picture_file, item) for item in exhibits()}


def picture_file(exhibit: Exhibit) -> dict[str, str]:
    """Return one picture by path, and its form for phones if the README has it."""
    scene, path = exhibit_scene(exhibit), path_of(exhibit)
    phone = {path.replace(".svg", "_phone.svg"): to_svg(scene, PHONE)}
    return {path: to_svg(scene)} | (phone if exhibit.name == OF_THE_README else {})
