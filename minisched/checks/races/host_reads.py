"""In which slice the host reads a step's tokens: in the ``process`` of that step.

A trace notes the read when the host has waited for the copy. ``process`` opens only then, so the
slice that it notes is the one before: the launch of the next step, or its schedule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...trace import Act, Slice
from ...trace.lanes import is_host


def in_their_steps(acts: Iterable[Act], slices: Iterable[Slice]) -> list[Act]:
    """The same acts; each such read has the ``process`` of the step that the host waited for."""
    by_id = {item.id: item for item in slices}
    process = {(item.lane, item.step): item.id for item in by_id.values() if _is_process(item)}
    step: dict[str, int] = {}  # that a lane waited for last
    told: list[Act] = []
    for act in acts:
        if act.kind == "wait" and act.op in by_id:
            step[act.lane] = by_id[act.op].step
        elif act.kind == "read" and is_host(act.lane) and "host output" in act.resource:
            act = replace(act, op=process.get((act.lane, step.get(act.lane, 0)), act.op))
        told.append(act)
    return told


def _is_process(item: Slice) -> bool:
    return item.name == "process" and is_host(item.lane) and item.step > 0
