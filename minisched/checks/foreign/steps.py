"""Steps in a trace of a real engine, which has no numbers for them.

A step ends where its tokens are brought to the host: the first copy to the host after a kernel. So
whatever was launched after one such copy, up to the next one, is a step. Where nothing is copied
to the host, a step is what one launch of a CUDA graph starts, and what follows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

from ...trace import Edge, Slice
from ...trace.lanes import is_host


def with_steps(slices: list[Slice], edges: set[Edge]) -> tuple[list[Slice], set[Edge]]:
    """The slices with the numbers of their steps, and an edge to what each blocked call held up."""
    by_op = {edge.dst: edge.src for edge in edges}
    index = {item.id: item for item in slices}
    launches = sorted(
        (index[src].end, index[src].start, op) for op, src in by_op.items()
    )  # in the order in which the host launched them
    graphs = not any(_is_result(index[op]) for _, _, op in launches)
    steps: dict[int, int] = {}
    step, has_kernel, opened = 1, False, 0
    for _, _, op in launches:
        item = index[op]
        by_graph = graphs and "GraphLaunch" in str(index[by_op[op]].attrs.get("call"))
        if by_graph and has_kernel and by_op[op] != opened:
            step, has_kernel = step + 1, False
        if by_graph:
            opened = by_op[op]
        steps[op] = steps[by_op[op]] = step
        has_kernel = has_kernel or (item.lane == "forward" and not _is_result(item))
        if _is_result(item) and has_kernel:
            step, has_kernel = step + 1, False
    numbered = [replace(item, step=steps.get(item.id, 0)) for item in slices]
    return numbered, edges | set(_results(numbered))


def _is_result(item: Slice) -> bool:
    return item.name == "copy"


def _results(slices: list[Slice]) -> list[Edge]:
    """From the last op that ended while a thread was blocked, to what that thread did next."""
    done = sorted((item.end, item.id) for item in slices if not is_host(item.lane))
    ends = [end for end, _ in done]
    lanes: defaultdict[str, list[Slice]] = defaultdict(list)
    for item in slices:
        if is_host(item.lane):
            lanes[item.lane].append(item)
    edges = []
    for items in lanes.values():
        for wait, after in pairwise(items):
            at = bisect_left(ends, wait.end + 1) - 1
            if wait.name == "wait" and at >= 0 and ends[at] > wait.start:
                edges.append(Edge(done[at][1], after.id, "result"))
    return edges
