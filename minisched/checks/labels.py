"""The labels, edges and marks of a run, compared with the steps that its engine committed.

A reader believes the trace: the requests of a slice, the source of a token, the numbers of a mark.
``Labels`` keeps the steps of one scheduler at their commit. After the run, each event that names a
step is compared with that step:

- a slice has the step's mode and requests;
- an edge begins at the launch of its op, or at the op with the data that it uses;
- the edge of a token begins at the step that sampled the newest token of a request;
- a mark has the requests, rows and places of the step that it names;
- each commit, each delivered token and each end has its mark;
- a mark of the memory, made once, has the sizes of the engine.

``admission.py`` compares the marks of a pass through the queue, ``marked.py`` those of the memory
and the prefix cache. No law compares what a grammar allows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ..core import Lease, Output, Request, ScheduleBatch
from ..devices.sim import SimMemory
from ..engine.engine import Engine
from ..trace import Mark, Slice, Trace
from ..trace.events import ALL_TO_ALL, is_copy, is_host
from ..trace.sides import own_attrs
from .history import Offence, many, plural, side_of
from .laws import tokens_in

BETWEEN_STEPS = ("receive", "schedule", "output", "send")
"""Slices that may belong to no step."""
SENT = ("send", "transfer")
"""Slices of one request of a step (``pd``)."""
DRAFT_MODE = "draft extend"
RELAY_MARKS = {
    "pool": "future slots", "ring": "future slots", "prev_sampled": "prev sampled",
    "token_pool": "token pool", "request_state": "request state", "chain": "lazy tokens",
    "fill_device": "placeholder fill", "fill_host": "placeholder fill",
}  # fmt: skip
"""The mark of each step that is laid out, by relay."""
LOOP_MARKS = {
    "mindie_plugin": ("context",), "mindie_dual": ("context", "ledger"),
    "mindie_placeholder": ("ledger",), "mindie_single": ("ledger",),
}  # fmt: skip
"""The marks of each step, by loop; two of a ledger: after the plan and after the result."""


@dataclass(frozen=True)
class Committed:
    """The facts of a step at its commit, row by row."""

    mode: str
    rids: tuple[str, ...]
    rows: tuple[int, ...]  # of the request table
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    num_tokens: int
    unknown: Mapping[int, str]  # tokens that only the device knows: places in the flat ids, by id
    sources: Mapping[str, int]  # by request: the newest step that sampled a token of its lease
    taken: set[str]  # requests with an edge for their newest token
    chunked: int | None  # the row of a prompt in chunks
    grammars: set[str]  # requests with a grammar
    uploads: tuple[int, ...]  # first positions that a token pool gets from the host; -1: none
    sent: tuple[int, ...]  # tokens that a request state gets from the host


class Labels:
    """The steps of one scheduler as they were committed, and the mark that its relay makes."""

    def __init__(self, engine: Engine) -> None:
        self.side = getattr(engine.device.recorder, "side", "")
        self.relay_mark = RELAY_MARKS.get(engine.worker.relay.name, "")
        config = engine.scheduler.config
        # Drafts are known before the layout, and the tokens of beams at the end.
        self.has_drafts, self.has_beams = bool(config.num_draft_tokens), config.beam_width > 1
        self.steps: dict[int, Committed] = {}
        self.sampled: dict[Lease, int] = {}
        self.begun = set[Lease]()  # with a step of their prompt
        self.takes_from_host = not engine.worker.relay.gives_every_input
        self.graph_limit, self.num_beams = config.cuda_graph_max_bs, config.beam_width
        self.num_rows = config.max_running_requests
        worker, relay = engine.worker, engine.worker.relay
        buffer = worker.outputs[0]
        num_outputs = len(buffer.values) if isinstance(buffer, SimMemory) else 0
        sizes: dict[str, Any] = {"page table": worker.max_len, "token pool": worker.max_len}
        self.set_up = {  # the marks of the memory, each made once
            "kv pool": {"pages": config.num_pages, "page_size": config.page_size,
                        "rows": self.num_rows},
            "row length": sizes,
            "host buffers": {"count": worker.depth, "size": num_outputs},
        }  # fmt: skip
        if relay.name == "ring":
            self.set_up["future map"] = {"limit": 3 * self.num_rows, "size": 5 * self.num_rows}

    def is_eager(self, of: Committed) -> bool:
        """Return whether a step is a decode with more rows than a graph has."""
        limit = self.graph_limit
        return limit is not None and of.mode == "decode" and len(of.rids) > limit

    def look(self, batch: ScheduleBatch) -> None:
        """Keep the facts of a step."""
        chunked = None if batch.chunked_req is None else batch.reqs.index(batch.chunked_req)
        ends, unknown, sources, taken = [], dict[int, str](), dict[str, int](), set[str]()
        at, has_edges = 0, not (self.has_drafts or self.has_beams)
        uploads, sent = list[int](), list[int]()
        for row, (req, lease) in enumerate(zip(batch.reqs, batch.leases, strict=True)):
            ids, rid = batch.ids[row], req.rid
            ends.append(batch.starts[row] + len(ids))
            is_unknown = None in ids
            if is_unknown:
                unknown |= {at + place: rid for place, it in enumerate(ids) if it is None}
            if (source := self.sampled.get(lease)) is not None:
                sources[rid] = source
            sent.append(len(ids) if source is None else 0)
            begins = batch.starts[row] if lease in self.begun else 0
            uploads.append(begins if row < batch.num_extend_reqs else -1)
            if row < batch.num_extend_reqs:
                self.begun.add(lease)
            if has_edges and (is_unknown or (self.takes_from_host and source is not None)):
                taken.add(rid)
            if row != chunked:
                self.sampled[lease] = batch.step
            at += len(ids)
        mode = batch.mode.value  # of decodes alone: with or without drafts
        if batch.num_extend_reqs:
            mode = "mixed" if batch.num_extend_reqs < len(batch.reqs) else "extend"
        self.steps[batch.step] = Committed(
            mode, tuple(req.rid for req in batch.reqs),
            tuple(lease.row for lease in batch.leases), tuple(batch.starts), tuple(ends),
            at, unknown, sources, taken, chunked,
            {req.rid for req in batch.reqs if req.params.has_grammar}, (*uploads,), (*sent,),
        )  # fmt: skip


Steps = Mapping[tuple[str, int], Committed]
"""The committed steps by side of ``pd`` and number."""


def step_of(item: Slice, steps: Steps) -> Committed | None:
    """Return the committed step of a slice; a transfer belongs to the prefill side."""
    side = side_of(item.lane)[0] if item.lane != "kv transfer" else "prefill"
    return steps.get((side, item.step))


def words(rids: Sequence[str]) -> str:
    """Return ids in words."""
    return " ".join(rids) or "no request"


# -- The labels of slices --------------------------------------------------------------------------


def find_wrong_labels(trace: Trace, steps: Steps) -> Iterator[Offence]:
    """Yield the slices with another step, mode or requests than those of their step."""
    for item in trace.slices:
        of, wrong = step_of(item, steps), ""
        if not item.step and item.name in BETWEEN_STEPS:
            continue
        if of is None:
            wrong = f"belongs to step {item.step}, which was never committed"
        elif item.name in SENT:
            if len(item.rids) != 1 or item.rids[0] not in of.rids:
                wrong = f"is of {words(item.rids)}, but must be of one of {words(of.rids)}"
        elif item.rids != of.rids:
            wrong = f"is of {words(item.rids)}, but its step of {words(of.rids)}"
        elif item.mode != (DRAFT_MODE if item.name == "draft" else of.mode):
            wrong = f"has the mode {item.mode!r}, but its step {of.mode!r}"
        if wrong:
            story = f"{item.label} on the lane {item.lane} {wrong}"
            yield Offence(story, (item.id,), "label", "", item.start)


# -- Edges -----------------------------------------------------------------------------------------


class Flow:
    """The memory that each op reads and writes, and the slice that launched it."""

    def __init__(self, trace: Trace) -> None:
        self.launched: dict[int, int] = {}
        self.values = defaultdict[int, list[int]](list)  # ops with a value that it uses
        self.reads = defaultdict[int, set[str]](set)
        self.writes = defaultdict[int, set[str]](set)
        for act in trace.program:
            if act.kind == "launch":
                self.launched[act.op] = act.during
            elif act.kind == "write":
                self.writes[act.op].add(act.resource)
            elif act.kind == "read" and act.resource == "value":
                self.values[act.op].append(int(act.at))
            elif act.kind == "read":
                self.reads[act.op].add(act.resource)

    def uses(self, op: int, source: int) -> bool:
        """Return whether an op uses the value of another one, or memory that it writes."""
        return source in self.values[op] or not self.reads[op].isdisjoint(self.writes[source])

    def source_of(self, op: int, before: Sequence[Slice]) -> list[int]:
        """Return the newest op before that gives an op its input."""
        used = [item.id for item in before if item.id < op and self.uses(op, item.id)]
        return used[-1:]


def find_wrong_edges(trace: Trace, steps: Steps) -> Iterator[Offence]:
    """Yield the slices with other edges than those of their launch and their data."""
    flow, found = Flow(trace), defaultdict[tuple[str, int], list[int]](list)
    slices = {item.id: item for item in trace.slices}
    for edge in trace.edges:
        found[edge.kind, edge.dst].append(edge.src)
    ops = defaultdict[tuple[str, int], list[Slice]](list)  # of each step, in order of their launch
    for item in sorted(trace.slices, key=lambda item: item.id):
        if item.step and not is_host(item.lane):
            ops[side_of(item.lane)[0], item.step].append(item)
    for item in trace.slices:
        side, lane = side_of(item.lane)
        own = ops.get((side, item.step), [])
        uploads = [it.id for it in own if it.name == "upload"]
        is_first = bool(own) and item is own[len(uploads)]
        wanted: dict[str, list[int]] = {}
        if is_copy(lane):
            wanted["copy"] = flow.source_of(item.id, own)
        elif item.name == "recv" or lane == ALL_TO_ALL:
            wanted["recv"] = flow.source_of(item.id, own)
        elif item.name == "process":
            wanted["result"] = [it.id for it in own if it.name == "copy"]
        elif item.name == "transfer" or is_first:
            wanted["launch"] = [flow.launched.get(item.id, 0)]
        if uploads and is_first:
            wanted["upload"] = uploads
        for kind, sources in wanted.items():
            if (got := found.pop((kind, item.id), [])) != sources:
                yield other_edge(slices, kind, item, got, sources)
    for (kind, dst), got in found.items():
        if kind != "token":
            yield other_edge(slices, kind, slices[dst], got, [])
    yield from find_wrong_sources(trace, steps, flow)


def other_edge(
    slices: Mapping[int, Slice], kind: str, item: Slice, got: list[int], wanted: list[int]
) -> Offence:
    """Return the offence of a slice with other edges of one kind than it should have."""
    begins, should = (
        " and ".join(slices[it].label for it in ids if it in slices) or "no slice"
        for ids in (got, wanted)
    )
    story = f"the edge {kind!r} to {item.label} begins at {begins}, but must begin at {should}"
    ids = [it for it in (*got, *wanted, item.id) if it in slices]
    return Offence(story, tuple(dict.fromkeys(ids)), "label", "", item.start)


def find_wrong_sources(trace: Trace, steps: Steps, flow: Flow) -> Iterator[Offence]:
    """Yield edges of tokens that begin at another step or op, and slices without their edge.

    A token goes from the op that stores it to the forward pass that uses it. Over the host it goes
    from ``process`` to ``prepare``, or from a copy to a pass with inputs that the host fills.
    """
    slices = {item.id: item for item in trace.slices}
    came = defaultdict[tuple[str, int], set[int]](set)  # source steps, by side and step
    filled = {item.step for item in trace.slices if item.name == "fill"}
    delivered = defaultdict[str, list[tuple[int, int]]](list)  # slice and step, by request
    for mark in trace.marks:
        for rid in mark.attrs["rids"] if mark.name == "tokens" else ():
            delivered[rid].append((mark.during, mark.attrs["step"]))
        if mark.name == "wrong token":  # the run has the right ones, so this mark is wrong
            rid, step = mark.attrs["rid"], mark.attrs["step"]
            story = f"a mark has a wrong token for {rid} in step {step}, but its tokens are right"
            yield Offence(story, (mark.attrs["reader"],), "label", rid, mark.time)
    for edge in trace.edges:
        if edge.kind != "token" or slices[edge.src].name == "transfer":
            continue
        src, dst = slices[edge.src], slices[edge.dst]
        of = step_of(dst, steps)
        if of is None:
            continue
        came[side_of(dst.lane)[0], dst.step].add(src.step)
        wrong, newest = "", {*of.sources.values()}
        if by_host := src.name == "process" and dst.name == "prepare":
            told = (delivered[rid] for rid in of.rids)
            newest = {it[bisect_left(it, (dst.id, 0)) - 1][1] for it in told if it}
        by_fill = src.name == "copy" and dst.step in filled
        if src.step not in newest:
            wrong = f"the newest tokens of its requests are of {plural('step', newest)}"
        elif not (by_host or by_fill or flow.uses(dst.id, src.id)):
            wrong = "it uses nothing that this op writes"
        if wrong:
            story = f"the edge of a token leads from {src.label} to {dst.label}, but {wrong}"
            yield Offence(story, (src.id, dst.id), "label", "", dst.start)
    for item in trace.slices:
        of = step_of(item, steps)
        if of is None or item.name != "forward":
            continue
        for rid in of.taken:
            step = of.sources.get(rid, 0)
            if step not in came[side_of(item.lane)[0], item.step]:
                story = f"step {item.step} has no edge from step {step}, which sampled for {rid}"
                yield Offence(story, (item.id,), "label", rid, item.start)


# -- Marks -----------------------------------------------------------------------------------------


def find_wrong_marks(trace: Trace, steps: Steps, every: Sequence[Labels]) -> Iterator[Offence]:
    """Yield marks with another step, requests, rows or places than the steps have; and none."""
    seen = Counter[tuple[str, str, int]]()  # marks by side, name and step
    waits = set[tuple[str, int, str, str]]()  # by side, step, op and reason
    by_side = {labels.side: labels for labels in every}
    ran = defaultdict[str, set[int]](set)  # by side: the steps with a forward pass
    for item in trace.slices:
        if item.name == "forward":
            ran[side_of(item.lane)[0]].add(item.step)
    for mark in trace.marks:
        attrs = mark.attrs
        side, step = attrs.get("side", ""), attrs.get("step", 0)
        if not step:
            continue
        seen[side, mark.name, step] += 1
        is_second = False
        if mark.name == "wait":
            wait = side, step, attrs["op"], attrs["reason"]
            is_second = wait in waits
            waits.add(wait)
        if (of := steps.get((side, step))) is None:
            wrong = "which was never committed"
        elif is_second:
            wrong = "which has another one already"
        elif (rid := attrs.get("rid", of.rids[0])) not in of.rids:
            wrong = f"which has no row of {rid}"
        else:
            before = steps.get((side, attrs.get("source", step - 1)))
            figures = figures_of(mark, of, before, by_side[side], ran[side])
            for name, (got, wanted) in figures.items():
                if got != wanted:
                    wrong = f"with {name} {got} instead of {wanted}"
                    break
            else:
                continue
        story = f"the mark {mark.name!r} is of step {step}, {wrong}"
        yield Offence(story, (mark.during,), "label", "", mark.time)
    for labels in every:
        for step, of in labels.steps.items():
            wanted = {"commit": 1}
            if step in ran[labels.side]:
                wanted["eager launch"] = int(labels.is_eager(of))
            if labels.relay_mark and step in ran[labels.side]:
                wanted[labels.relay_mark] = 1
            for name in LOOP_MARKS.get(trace.loop, ()):
                wanted[name] = 2 if name == "ledger" else 1
            for name, most in wanted.items():
                if (count := seen[labels.side, name, step]) != most:
                    yield Offence(f"step {step} has {count} marks {name!r}", (), "label")


def find_wrong_set_up(trace: Trace, every: Sequence[Labels]) -> Iterator[str]:
    """Yield marks of the memory with other sizes than those of an engine."""
    for labels in every:
        for name, expected in labels.set_up.items():
            got = [
                own_attrs(mark)
                for mark in trace.marks
                if mark.name == name and mark.attrs.get("side", "") == labels.side
            ]
            if got != [expected]:
                yield f"the marks {name!r} have {got}, but the engine has {expected}"


def figures_of(
    mark: Mark, of: Committed, before: Committed | None, labels: Labels, ran: Set[int]
) -> dict[str, tuple[Any, Any]]:
    """Return attributes of a step's mark, each with its value and the expected one.

    ``before`` is the step with tokens that it may take, and ``ran`` are the steps that ran.
    """
    it, own = mark.attrs, tuple(of.unknown.values())
    earlier = before.rids if before is not None else ()

    def named(places: Sequence[int]) -> tuple[str, ...]:
        """Return the requests at places in the step before."""
        return tuple(earlier[at] if at < len(earlier) else "" for at in places)

    match mark.name:
        case "commit":
            chunks = () if of.chunked is None else (of.rows[of.chunked],)
            return {"rows": (it["rows"], of.rows), "chunks": (it.get("chunks", ()), chunks)}
        case "tokens":
            return {"rids": (tuple(rid for rid in it["rids"] if rid not in of.rids), ())}
        case "eager launch":
            return {"rows": (it["rows"], len(of.rids))}
        case "future slots":
            reads_all = len(it["reads"]) >= len(own) or not of.taken
            return {"slots": (len(it["slots"]), len(of.rids)), "all reads": (reads_all, True)}
        case "prev sampled":
            is_slice = it["targets"] == it["sources"] == tuple(range(len(own)))
            path = "full" if not own else "slice" if is_slice else "scatter"
            return {
                "path": (it["path"], path),
                "targets": (it["targets"], tuple(of.unknown)),
                "sources": (named(it["sources"]), own),
                "new": (it["new"], of.num_tokens - len(own)),
            }
        case "lazy tokens":
            sources = {of.sources[rid] for rid in own} or {it["source"]}
            return {
                "source": ({it["source"]}, sources),
                "places": (named([at - 1 for at in it["places"]]), own),
            }
        case "beams":
            width, num_rows = labels.num_beams, labels.num_rows + 1
            row = of.rows[of.rids.index(it["rid"])]
            return {"rows": (it["rows"], tuple(row + at * num_rows for at in range(width)))}
        case "placeholder fill":
            filled = [(rid, at) for rid, at in zip(of.rids, it["rows"], strict=True) if at >= 0]
            return {
                "rows": (tuple(rid for rid, _ in filled), own),
                "sources": (named([at for _, at in filled]), own),
            }
        case "token pool":
            writes = tuple(-1 if at == of.chunked else end for at, end in enumerate(of.ends))
            # A lease whose first step was lost at its layout begins again.
            uploads = of.uploads if labels.steps.keys() <= ran else it["uploads"]
            return {
                "rows": (it["rows"], of.rows), "starts": (it["starts"], of.starts),
                "ends": (it["ends"], of.ends), "writes": (it["writes"], writes),
                "uploads": (it["uploads"], uploads),
            }  # fmt: skip
        case "request state":
            return {
                "slots": (it["slots"], of.rows), "starts": (it["starts"], of.starts),
                "sent": (it["sent"], of.sent),
            }  # fmt: skip
        case "wait":
            return {"op": (it["op"] in ("forward", "sample"), True)}
        case "ledger":
            return {
                "after": (it["after"] in ("schedule", "response"), True),
                "tokens": (len(it["tokens"]), sum(it["lengths"])),
            }
        case "context":
            return {
                "lengths": (len(it["seq_lens"]), len(it["rids"])),
                "finished": ({*it["finished"]} <= {*it["rids"]}, True),
            }
        case "verified":
            at = of.rids.index(it["rid"])
            drafts = of.ends[at] - of.starts[at] - 1
            return {
                "drafts": (it["drafts"], drafts),
                "accepted": (0 <= it["accepted"] <= it["drafts"], True),
            }
    return {}


def find_wrong_results(trace: Trace, steps: Steps) -> Iterator[Offence]:
    """Yield marks of drafts and grammars with other tokens than their step delivers, and none."""
    told = defaultdict[tuple[str, int], dict[str, list[int]]](dict)  # by side and step
    by_result = defaultdict[tuple[str, str, int], dict[str, list[Mark]]](dict)
    failed = {mark.attrs["rid"] for mark in trace.marks
              if mark.name == "finish" and mark.attrs["reason"] == "error"}  # fmt: skip
    for mark in trace.marks:
        side, step = mark.attrs.get("side", ""), mark.attrs.get("step", 0)
        if mark.name == "tokens":
            for rid, token in zip(mark.attrs["rids"], mark.attrs["tokens"], strict=True):
                told[side, step].setdefault(rid, []).append(token)
        elif mark.name in ("verified", "grammar accept"):
            marks = by_result[side, mark.name, step].setdefault(mark.attrs["rid"], [])
            marks.append(mark)
    for (side, step), of in steps.items():
        drafts = by_result[side, "verified", step]
        accepted = by_result[side, "grammar accept", step]
        for rid, tokens in told[side, step].items():
            at = of.rids.index(rid) if rid in of.rids else 0
            num_drafts = of.ends[at] - of.starts[at] - 1
            if of.mode == "target verify" and num_drafts and rid in of.rids:
                got = [mark.attrs["accepted"] for mark in drafts.get(rid, [])]
                if got != [len(tokens) - 1]:
                    story = f"step {step} delivers {many(len(tokens), 'token')} to {rid}, but is "
                    yield Offence(f"{story}marked with {got} accepted drafts", (), "label", rid)
            if rid in of.grammars and rid not in failed:
                taken = [mark.attrs["tokens"] for mark in accepted.get(rid, [])]
                if taken != [(*tokens,)]:
                    story = f"step {step} delivers the tokens {tokens} to {rid}, but is marked "
                    yield Offence(f"{story}with {taken} of its grammar", (), "label", rid)


def find_untold(trace: Trace, heard: Mapping[Request, Sequence[Output]]) -> Iterator[str]:
    """Yield the requests with other tokens or ends in the trace than their client received.

    A request that is sent again is refused, and its first client does not receive that output.
    """
    told, ends = defaultdict[str, list[int]](list), Counter[tuple[str, str, int]]()
    for req, outputs in heard.items():
        tokens = tokens_in(outputs)
        told[req.name] += tokens
        reasons = [it.finish_reason for it in outputs if it.finish_reason and not it.namesake]
        ends.update((req.name, reason.value, len(tokens)) for reason in reasons)
    delivered = defaultdict[str, list[int]](list)
    for mark in trace.marks:
        of = mark.attrs
        if of.get("side") == "prefill":
            continue
        if mark.name == "finish":
            ends[of["rid"], of["reason"], of["outputs"]] -= 1
        elif mark.name == "tokens":
            for rid, token in zip(of["rids"], of["tokens"], strict=True):
                delivered[rid].append(token)
    for rid, tokens in told.items():
        if (got := delivered[rid]) != tokens:
            yield f"the marks deliver {got} to {rid}, but its client received {tokens}"
    for (rid, reason, count), left in ends.items():
        if left > 0 or (left < 0 and reason != "error"):
            has = "lacks a mark" if left > 0 else "has a mark too many"
            yield f"the trace {has}: {rid} ends ({reason}) with {many(count, 'token')}"
