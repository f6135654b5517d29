"""Compare the facts that a recorded file contains twice.

A run writes many facts in two places: the number of locks and their changes, the requests of a
slice and those of its step, the cells of a table and the KV that they list. A file in which they
differ was changed, or written by a faulty recorder. ``answers.py`` judges this for files alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice

from ..relay.placeholder_fill import PLACEHOLDER_TOKEN
from ..trace import Act, Slice, Trace
from ..trace.cells import spans_of
from ..trace.events import is_forward, is_host
from ..trace.sides import one_side, sides
from .history import Offence, moments
from .laws import marks
from .leaks import ROOT, TABLE, is_kv
from .overlap import is_profiled

OF_A_STEP = ("sample", "copy", "process")
"""Slices with the requests of their step's forward pass."""


def find_misfits(trace: Trace) -> Iterator[Offence]:
    """Yield the facts of a file that contradict another fact of it."""
    if marks(trace, "stopped") or is_profiled(trace):  # a profiler's step has any number of copies
        return
    for side in sides(trace):
        part = one_side(trace, side)
        yield from _wrong_locks(part)
        yield from _wrong_hits(part)
        yield from _other_rids(part)
        yield from _wrong_cells(part, side)
    yield from _copied_twice(trace)
    yield from _impossible_counters(trace)


# -- The prefix cache: locks of a node, cached tokens of a prompt ----------------------------------


def _wrong_locks(trace: Trace) -> Iterator[Offence]:
    """Yield the locks of a node with another count than their changes give.

    A lock on a node is one on each node above it, too. The root always has one.
    """
    count, parents = Counter({ROOT: 1}), dict[int, int]()
    for mark in trace.marks if marks(trace, "kv pool") else ():
        of = mark.attrs
        if mark.name == "radix add" and "parent" in of:
            parents[int(of["node"])] = int(of["parent"])
        elif mark.name == "radix split":
            node, child = int(of["node"]), int(of["child"])
            parents[node], parents[child] = parents.get(child, ROOT), node
            count[node] = count[child]
        elif mark.name == "radix lock":
            node = above = int(of["node"])
            for _ in range(len(parents) + 1):
                if above == ROOT:
                    break
                count[above] += int(of["delta"])
                above = parents.get(above, ROOT)
            if of.get("lock_ref", count[node]) != count[node]:
                story = f"node {node} has {of['lock_ref']} locks, but its changes give "
                yield Offence(f"{story}{count[node]}", (mark.during,), "steps", "", mark.time)


def _wrong_hits(trace: Trace) -> Iterator[Offence]:
    """Yield admissions with another cached length than the newest look-up of the request found."""
    found = dict[str, object]()
    for mark in trace.marks:
        rid, hit_len = str(mark.attrs.get("rid", "")), mark.attrs.get("hit_len")
        if mark.name == "match" and hit_len is not None:
            found[rid] = hit_len
        elif mark.name == "admit" and hit_len is not None and found.get(rid, hit_len) != hit_len:
            story = f"{rid} is admitted with {hit_len} cached tokens, but {found[rid]} were found"
            yield Offence(story, (mark.during,), "steps", rid, mark.time)


# -- The requests of a step's slices, and the step of a copy ---------------------------------------


def _other_rids(trace: Trace) -> Iterator[Offence]:
    """Yield slices of a step with other requests than its forward pass."""
    ran = dict[int, Slice]()
    for item in trace.slices:
        if item.name == "forward" and is_forward(item.lane) and item.rids:
            ran.setdefault(item.step, item)
    for item in trace.slices:
        forward = ran.get(item.step)
        if forward and item.name in OF_A_STEP and item.rids and item.rids != forward.rids:
            story = f"{item.label} is of {' '.join(item.rids)}, but {forward.label} of "
            story += " ".join(forward.rids)
            yield Offence(story, (forward.id, item.id), "steps", "", item.start)


def _copied_twice(trace: Trace) -> Iterator[Offence]:
    """Yield the ops of a device that one step has twice on its lane."""
    seen = dict[tuple[str, str, int], Slice]()
    for item in trace.slices:
        if item.step and item.name in ("sample", "copy") and not is_host(item.lane):
            one = seen.setdefault((item.lane, item.name, item.step), item)
            if one is not item:
                story = f"step {item.step} has two slices {item.name!r} on the lane {item.lane}"
                yield Offence(story, (one.id, item.id), "steps", "", item.start)


# -- KV and the page table -------------------------------------------------------------------------


def _wrong_cells(trace: Trace, side: str) -> Iterator[Offence]:
    """Yield reads of another request's KV, and table reads unlike the KV that they list."""
    steps = {item.id: item.step for item in trace.slices if item.name == "forward"}
    ops = defaultdict[int, list[Act]](list)
    for act in trace.program:
        if steps.get(act.op) and act.kind in ("read", "write"):
            ops[steps[act.op]].append(act)
    yield from _read_of_others(trace, ops, side)
    row_len = next((int(of.get(TABLE, 0)) for of in marks(trace, "row length")), 0)
    if not row_len or marks(trace, "verified"):  # with drafts an op declares all that it may use
        return
    page_size = next((int(of.get("page_size", 1)) for of in marks(trace, "kv pool")), 1)
    for step, acts in ops.items():
        kv, table = defaultdict[tuple[int, str], int](int), dict[tuple[int, str], int]()
        for act in acts:
            size = sum(last + 1 - first for first, last in spans_of(act.at))
            if act.resource.endswith("kv") and act.rid:
                kv[act.op, act.rid] += size
            elif act.resource.endswith(TABLE) and act.kind == "read":
                table[act.op, act.rid] = size
        for (op, rid), size in table.items():
            if kv.get((op, rid), size) != size:
                story = f"step {step} reads {size} cells of the page table for {rid}, but touches "
                story += f"{kv[op, rid]} KV slots"
                yield Offence(story, (op,), "used", rid)
        yield from _listed_in_vain(step, acts, row_len, page_size)


def _listed_in_vain(step: int, acts: list[Act], row_len: int, page_size: int) -> Iterator[Offence]:
    """Yield cells of the table that a step lists beyond the pages of what it reads there."""
    most = Counter[tuple[int, int]]()  # cells in whole pages, by op and row
    for act in acts:
        for first, last in spans_of(act.at) if act.resource.endswith(TABLE) else ():
            if act.kind == "read":
                key, end = (act.op, first // row_len), last % row_len + 1
                most[key] = max(most[key], -(-end // page_size) * page_size)
    for act in acts:
        is_write = act.kind == "write" and act.resource.endswith(TABLE)
        for first, last in spans_of(act.at) if is_write else ():
            row, end = first // row_len, last % row_len + 1
            if most[act.op, row] and end > most[act.op, row]:
                story = f"step {step} lists position {end - 1} of row {row} in the page table, but "
                yield Offence(f"{story}reads {most[act.op, row]} cells of it", (act.op,), "used")


def _read_of_others(trace: Trace, ops: defaultdict[int, list[Act]], side: str) -> Iterator[Offence]:
    """Yield reads of pages that another request holds when the step is committed."""
    holder, page_size = dict[int, str](), 1
    for mark, now in moments(trace):
        of, pages = mark.attrs, mark.attrs.get("pages", ())
        if mark.name == "kv pool":
            page_size = int(of.get("page_size", 1))
        elif mark.name == "page alloc":
            holder |= dict.fromkeys(pages, str(of["rid"]))
        elif mark.name in ("page disown", "page free"):
            for page in pages:
                holder.pop(page, None)
        for act in ops.get(int(of["step"]), ()) if mark.name == "commit" else ():
            if act.kind != "read" or not (act.rid and is_kv(act.resource, side)):
                continue
            for first, last in spans_of(act.at):
                for page in range(first // page_size, last // page_size + 1):
                    if holder.get(page, act.rid) != act.rid:
                        story = f"step {of['step']} reads page {page} for {act.rid}, but "
                        story += f"{holder[page]} holds it"
                        yield Offence(story, (act.op,), "used", act.rid, now.time)
                        return


# -- MindIE's ledger of tokens ---------------------------------------------------------------------


def find_wrong_ledgers(trace: Trace) -> Iterator[Offence]:
    """Yield ledgers with other tokens than their requests have received when a step is scheduled.

    An ended request is in no ledger. Placeholders of tokens in flight do not count.
    """
    received, ended = defaultdict[str, list[int]](list), set[str]()  # since the newest commit
    for mark in trace.marks:
        of = mark.attrs
        if mark.name == "commit":
            ended.clear()
        elif mark.name == "tokens":
            for rid, token in zip(of["rids"], of["tokens"], strict=True):
                if rid not in ended:  # the mark of an end comes before that of its token
                    received[rid].append(token)
        elif mark.name == "finish":
            ended.add(str(of["rid"]))
            received.pop(str(of["rid"]), None)
        elif mark.name == "ledger" and of["after"] == "schedule":
            tokens = iter(of["tokens"])
            for rid, length in zip(of["rids"], of["lengths"], strict=True):
                own = [token for token in islice(tokens, length) if token != PLACEHOLDER_TOKEN]
                if own != received[rid]:
                    story = f"after step {of['step']} the ledger has the tokens {own} of {rid}, "
                    story += f"which has received {received[rid]}"
                    yield Offence(story, (mark.during,), "steps", rid, mark.time)


# -- Counters --------------------------------------------------------------------------------------


def _impossible_counters(trace: Trace) -> Iterator[Offence]:
    """Yield the first counter above the requests of the file, or above the slots of the pool."""
    pools = marks(trace, "kv pool")
    slots = sum(int(of.get("pages", 0)) * int(of.get("page_size", 1)) for of in pools)
    rids = {rid for item in trace.slices for rid in item.rids}
    rids |= {str(mark.attrs["rid"]) for mark in trace.marks if "rid" in mark.attrs}
    for counter in trace.counters:
        is_of_requests = counter.name.endswith(("waiting", "running"))
        most = len(rids) if is_of_requests else slots if "kv " in counter.name else 0
        if most and counter.value > most:
            what = f"{most} {'requests' if is_of_requests else 'slots of the pool'}"
            story = f"the counter {counter.name!r} is {counter.value}, but the file has {what}"
            yield Offence(story, (), "steps", "", counter.time)
            return
