"""What a long prompt does to those who decode, and who attends to what when both are mixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ...core import Request, ScheduleBatch
from ...devices.cost import SIM_COST
from ...devices.registry import open_device
from ...engine.frontend import Frontend
from ...loops.design import find_loop
from ...loops.run import make_engine
from ...models.hash import HashModel
from ...models.llama import equal_extents
from ...scheduler import SchedulerConfig
from ...trace import Slice, Trace
from ..layout import Box, Lane, View, in_order, make_view
from ..pd_or_mixed import both, pause
from ..recipes import RECIPES, tokens
from ..runs import side_by_side
from ..scene import CellGrid, Data, GridCell, Part, Scene
from ..state import arrivals
from ..units import ms
from ..views import token_pool
from ..views.marks import many, named, word
from ..views.steps import StepWork, requests_in, steps_of

# -- A run from its requests' side: a lane for each, with what every step did for it ---------------


@dataclass(frozen=True)
class Share(Box):
    """What one step did for one request; ``tokens`` of its prompt, or 0 for a decode."""

    tokens: int = 0

    @property
    def label(self) -> str:
        """How many tokens of a prompt; else the step's number."""
        return "waiting" if self.slice.name == "waiting" else str(self.tokens or self.step)


def requests_view(trace: Trace) -> View:
    """A whole run: a lane for each request, and below them the devices and the KV transfers.

    Raises:
        NothingToShow: no step ran.
    """
    whole = make_view(trace)
    steps = works(trace)
    lanes = {rid: Lane(f"request_{_key(rid)}", rid, "request") for rid in requests_in(steps)}
    shares = [share for step in steps for share in _shares(step, lanes)]
    waits = [wait for lane in lanes.values() for wait in _waits(trace, lane, steps)]
    devices = {box.lane for box in whole.boxes if box.slice.name in ("forward", "transfer")}
    below = [box for box in whole.boxes if box.lane in devices]
    return View(
        trace, 0, trace.end, 0, 0,
        (*lanes.values(), *in_order(devices)),
        (*waits, *shares, *below), (), whole.bubbles,
    )  # fmt: skip


def works(trace: Trace) -> list[StepWork]:
    """What every step did for whom, in order of time; where there are two schedulers, of both."""
    steps = [step for part in _sides(trace) for step in steps_of(part)]
    return sorted(steps, key=lambda step: (step.start, step.step))


def _sides(trace: Trace) -> list[Trace]:
    """What each scheduler's side recorded, as a trace of its own."""
    names = sorted({item.lane for item in trace.slices if item.lane.endswith(" host")})
    sides = [name.removesuffix(" host") for name in names]
    return [
        replace(
            trace,
            slices=tuple(item for item in trace.slices if item.lane.startswith(f"{side} ")),
            marks=tuple(mark for mark in trace.marks if mark.attrs.get("side") == side),
        )
        for side in sides
    ] or [trace]


def longest_pause(trace: Trace) -> int:
    """The longest time between two tokens of one request, in nanoseconds."""
    ends: dict[str, int] = {}
    longest = 0
    for step in works(trace):
        for part in step.parts:
            if part.kind == "decode":
                longest = max(longest, step.end - ends.get(part.rid, step.end))
            ends[part.rid] = step.end
    return longest


def _key(rid: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in rid)


def _shares(step: StepWork, lanes: dict[str, Lane]) -> Iterator[Share]:
    for part in step.parts:
        tokens = part.tokens if part.kind in ("prompt", "again") else 0
        item = Slice(step.step, part.rid, part.kind, step.start, step.end, step.step)
        yield Share(item, lanes[part.rid], step.step, tokens=tokens)


def _waits(trace: Trace, lane: Lane, steps: list[StepWork]) -> Iterator[Share]:
    """From its arrival, and from each retraction, to the next step that computes something."""
    rid = lane.name
    busy = [step for step in steps if any(part.rid == rid for part in step.parts)]
    back = [mark.time for mark in named(trace, "retraction") if word(mark, "rid") == rid]
    for moment in [*arrivals(trace).get(rid, []), *back]:
        begin = max([moment, *(step.end for step in busy if step.start <= moment < step.end)])
        nexts = [step.start for step in busy if step.start >= begin]
        if nexts and nexts[0] > begin:
            yield Share(Slice(0, rid, "waiting", begin, nexts[0]), lane, 0)


@cache
def prompt_run(chunk: int, mixed: bool) -> Trace:
    """The workload of ``mixed_chunk`` with chunks of so many tokens (0: prompts stay whole)."""
    recipe = RECIPES["mixed_chunk"]
    config = replace(recipe.config, chunked_prefill_size=chunk or 1024, enable_mixed_chunk=mixed)
    return replace(recipe, config=config).run()


def prefill_stage() -> Scene:
    """One long prompt beside two requests that decode, in three ways."""
    runs = {
        "whole prompts": prompt_run(0, False),
        "chunked prefill": prompt_run(24, False),
        "chunked and mixed with decodes": prompt_run(24, True),
    }
    title = "Prefill whole, chunked, and mixed: what a long prompt does to those who decode"
    pauses = [f"between two tokens {ms(longest_pause(trace))} ms" for trace in runs.values()]
    return requests_of(runs, pauses, title)


def pd_against_mixed() -> Scene:
    """The same requests on two devices with KV sent between them, and mixed on one."""
    names = ("PD separation, two devices", "mixed chunks, one device")
    runs = both(RECIPES["pd"].requests)
    title = "PD separation against mixed chunks: who waits for a long prompt"
    pauses = [f"while a prompt is computed {pause(run)}" for run in runs]
    return requests_of(dict(zip(names, (run.trace for run in runs), strict=True)), pauses, title)


def freed_at_once() -> Scene:
    """The token pool with memory that goes back as soon as a request has ended, not by lease."""
    recipe = RECIPES["token_pool"]
    config = replace(recipe.config, free_rule="at_once")
    scene = token_pool.scene(replace(recipe, config=config).run())
    title = "free_rule at_once: a wasted row's token lands in the next owner's prompt"
    return replace(scene, title=title)


def requests_of(runs: Mapping[str, Trace], pauses: Sequence[str], title: str) -> Scene:
    """The requests of each run, under its name and what it made of their time."""
    names = [
        (name, f"{len(works(trace))} steps, {ms(trace.end)} ms, longest pause {said}")
        for (name, trace), said in zip(runs.items(), pauses, strict=True)
    ]
    scene = side_by_side([requests_view(trace) for trace in runs.values()], title, names)
    return replace(scene, about=f"{scene.about}; a box is a step: its number, or a prompt's tokens")


# -- Who attends to what in a mixed batch: one rule for a chunk of a prompt and for a decode -------

ATTENDED = {
    "admitted": "attended to: its KV lies there from earlier steps",
    "prompt": "attended to: its KV is written in this step, by a chunk",
    "decode": "the same, by a decode",
}


def mixed_batch() -> ScheduleBatch:
    """The second chunk of a prompt beside two requests that decode, as the overlap loop ran it."""
    requests = [
        Request("a", range(4), tokens(9)),
        Request("b", range(20, 26), tokens(9)),
        Request("long", range(50, 66), tokens(2), arrival_time=30_000_000),
    ]
    config = SchedulerConfig(chunked_prefill_size=8, enable_mixed_chunk=True)
    frontend = Frontend(requests)
    engine = make_engine("overlap", open_device("sim"), HashModel(), config, frontend, SIM_COST)
    for batch in find_loop("overlap").start(engine):
        if batch and batch.rids[0] == "long" and batch.starts[0]:
            return batch
    raise AssertionError("the loop never stops")


def attention(batch: ScheduleBatch) -> Scene:
    """The batch's tokens from top to bottom, everybody's KV from left to right."""
    names, first, columns = list[str](), dict[str, int](), list[str]()
    for row in batch.rows:
        first[row.req.rid] = len(columns)
        columns += [f"{row.req.rid if not at else ''}\n{at}" for at in range(row.end)]
    cells = dict[tuple[int, int], GridCell]()
    for number, row in enumerate(batch.rows):
        kind = "prompt" if number < batch.num_extend_reqs else "decode"
        for position in range(row.start, row.end):
            about = f"{row.req.rid} at {position} attends to {position + 1} positions"
            data: Data = {"rid": row.req.rid, "at": position}
            for at in range(position + 1):
                look = "admitted" if at < row.start else kind
                place = len(names), first[row.req.rid] + at
                cells[place] = GridCell(look, about=about, data=data)
            names.append(f"{row.req.rid}, position {position}")
    calls = [
        f"{many(run.rows.stop - run.rows.start, 'request')} of {many(run.extend_len, 'token')}"
        for run in equal_extents([row.extend_len for row in batch.rows])
    ]
    return Scene(
        "mixed batch: each token attends to its own request alone, up to itself",
        f"step {batch.step} of the overlap loop: {len(batch.reqs)} requests, "
        f"{batch.num_tokens} tokens, one forward pass",
        [Part("One row for each token of the batch", "columns: whose KV, by position",
              [CellGrid(names, columns, cells)])],
        ATTENDED,
        [
            "One rule for all: position p of a request attends to its positions 0 to p. A decode "
            "is a chunk of one token.",
            "So extents say where each request begins, not who is a prompt; the calls of "
            f"models/llama.py: {', then '.join(calls)}.",
        ],
    )  # fmt: skip
