"""The copy path: each step's inputs on their way to the device, and its tokens on theirs back."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from ...trace import Trace
from ..state import Stay
from ..units import ms
from .copy_lanes import draw_buffers, draw_paths
from .copy_paths import CopyPath, paths_of
from .copy_sequence import to_copy_sequence
from .marks import NothingToShow
from .page import Page, about_run
from .steps import forwards_of
from .text_page import TextPage
from .wording import many

MOST_STEPS, MOST_PUML_STEPS = 16, 5
TITLE = "generation_batch_result: the copy path"
NAMES = {
    "prepare": "prepare: inputs laid out and sent to the device",
    "upload": "upload: prompts to the device",
    "forward": "forward",
    "sample": "sample",
    "verify": "verify",
    "draft": "draft",
    "copy": "copy to a pinned host buffer",
    "read": "copy_done, the event",
    "evictable": "the tokens lie ready: the host is busy",
    "wait": "the host waits for copy_done",
    "process": "process: the host takes them",
}
IN_TEXT = ("prepare", "upload", "forward", "sample", "copy", "ready", "wait", "process")


def view(trace: Trace) -> str:
    """Two strips a step, device and host, and a lane for each host buffer.

    Raises:
        NothingToShow: no step ran.
    """
    paths, end, shown = opening_paths(trace)
    page = Page(TITLE, about_run(trace, shown))
    page.heading("From step to host", "upper strip: the device; lower strip: the host")
    draw_paths(page, paths, end)
    if all(one.buffer >= 0 for one in paths):
        page.heading("Pinned host buffers", f"numbers: whose tokens; {buffer_words(paths)}")
        draw_buffers(page, paths, end)
    page.legend(NAMES)
    page.notes(summary(paths))
    return page.finish()


def text(trace: Trace) -> str:
    """The strips for a terminal, and a table of how long tokens lay ready and hosts waited.

    Raises:
        NothingToShow: as ``view``.
    """
    paths, end, shown = opening_paths(trace)
    page = TextPage(TITLE, about_run(trace, shown))
    page.heading("From step to host", "D: the device, H: the host")
    rows = [row for one in paths for row in rows_of(one)]
    page.lanes(rows, end)
    kinds = {stay.kind for _, stays in rows for stay in stays}
    names = {**NAMES, "ready": NAMES["evictable"]}
    page.legend({kind: names[kind] for kind in IN_TEXT if kind in kinds})
    page.heading("Step by step", "in ms")
    heads = ("step", "mode", "buffer", "uploaded", "sampled", "copy_done", "ready for",
             "host waited", "taken")  # fmt: skip
    page.table(heads, [table_row(one) for one in paths])
    page.write("", summary(paths))
    return page.finish()


def puml(trace: Trace) -> str:
    """The first steps as a PlantUML sequence diagram.

    Raises:
        NothingToShow: as ``view``.
    """
    paths, _, _ = opening_paths(trace)
    return to_copy_sequence(TITLE, paths[:MOST_PUML_STEPS])


def opening_paths(trace: Trace) -> tuple[list[CopyPath], int, str]:
    """The first steps' paths, whole; when the last of them ends; and how many of how many it is.

    Raises:
        NothingToShow: no step ran, or nothing was copied to the host.
    """
    forwards_of(trace)
    paths = paths_of(trace)
    if not any(one.copy for one in paths):
        raise NothingToShow("the trace has no copy slice, so no token went to the host.")
    shown = paths[:MOST_STEPS]
    cut = f"the first {len(shown)} of " if shown != paths else ""
    return shown, max(one.end for one in shown), f"{cut}{len(paths)} steps"


def summary(paths: list[CopyPath]) -> str:
    """Who waited for whom; the same in every form."""
    waited = [one.waited for one in paths if one.waited]
    ready = [one.ready for one in paths if one.ready]
    uploads = sum(one.upload is not None for one in paths)
    return (
        f"the host waited for {many(len(waited), 'step')}, {ms(sum(waited))} ms; tokens of "
        f"{many(len(ready), 'step')} lay ready, {ms(sum(ready))} ms; {many(uploads, 'upload')}"
    )


def buffer_words(paths: list[CopyPath]) -> str:
    """How steps share the host's buffers, and who writes what is not read yet: from their times."""
    lanes: dict[tuple[str, int], list[CopyPath]] = defaultdict(list)
    sides: dict[str, list[int]] = defaultdict(list)
    for one in paths:
        if one.copy:
            lanes[one.side, one.buffer].append(one)
            sides[one.side].append(one.buffer)
    early = sum(
        later.copy.start < (one.process.start if one.process else later.copy.start + 1)
        for mine in lanes.values() for one, later in pairwise(mine) if later.copy
    )  # fmt: skip
    takes_turns = all(a != b for buffers in sides.values() for a, b in pairwise(buffers))
    words = "steps take turns" if takes_turns else "some steps write where the last one did"
    if len(lanes) == len(sides):
        words = "one for all steps"
    if early:
        return f"{words}; {many(early, 'step')} wrote what was not read yet"
    return f"{words}, and none writes what is not read yet"


def rows_of(one: CopyPath) -> list[tuple[str, list[Stay]]]:
    """A step's two strips."""
    device = [Stay("", known(item.name), item.start, item.end) for item in one.ops]
    if one.copy:
        if one.ready:
            device.append(Stay("", "ready", one.copy.end, one.copy.end + one.ready))
        device.append(Stay("", "copy", one.copy.start, one.copy.end))
    phases = [item for item in (one.prepare, *one.waits, one.process) if item]
    host = [Stay("", item.name, item.start, item.end) for item in phases]
    return [(f"{one.name} D", device), ("H", host)]


def known(op: str) -> str:
    """An op under a name that has a sign of its own."""
    return op if op in IN_TEXT else "sample"


def table_row(one: CopyPath) -> tuple[object, ...]:
    """A line about one step."""
    ends = (item and ms(item.end) for item in (one.upload, one.sampled, one.copy))
    buffer = str(one.buffer) if one.buffer >= 0 else "-"
    taken = ms(one.process.start) if one.process else "-"
    return (one.name, one.mode, buffer, *(end or "-" for end in ends), ms(one.ready),
            ms(one.waited), taken)  # fmt: skip
