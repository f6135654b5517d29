"""The ops of a run, a part of the laws *lifetime*, *leak* and *time*, from its trace alone.

- Each op runs on the lane of its kind.
- The inputs of a step stay pinned for as many steps as the loop pins, and no longer.
- A row is released with each cell that a step has written for it.
- The host processes a step only after the thread has launched the next one, which it has put.
- A transfer sends no position of a request that was sent before (``pd``).
- The halves of a pass (``loops/two_batch.py``) have the tokens and the costs of their rule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import accumulate

from ..loops.design import find_loop
from ..loops.two_batch import NAMES as HALVES
from ..trace import Act, Slice, Trace
from ..trace.cells import cells_of
from ..trace.events import ALL_TO_ALL, is_host
from .case import Case
from .history import Offence, many, milliseconds

LANES = {
    "copy": {"copy"},
    "upload": {"scheduler", "forward"},
    "transfer": {"kv transfer"},
    **{name: {"forward", ALL_TO_ALL} for name in HALVES},
}
"""The lanes of ops by their names, or the first words of those; other ops run with the passes."""
LEAST_HALF = 0.48  # of a step's prompt tokens
PARTS = 6  # of a pass, equally long: one of the whole batch, and five of each half


def find_misplaced(trace: Trace) -> Iterator[Offence]:
    """Yield ops that run on the lane of another kind."""
    passes = {f"stage {number}" for number in range(8)} | {"forward"}
    for item in trace.slices:
        lane = item.lane.removeprefix("prefill ").removeprefix("decode ")
        lanes = LANES.get(item.name) or LANES.get(item.name.split()[0]) or passes
        if not is_host(lane) and lane not in lanes:
            yield Offence(f"{item.label} runs on the lane {lane!r}", (item.id,), "lane")


def find_unpinned(trace: Trace, case: Case) -> Iterator[str]:
    """Yield a sentence if a loop keeps the inputs of more or fewer steps than it pins.

    Inputs that no op reads are those of a lost step, which may have found no memory for them.
    """
    design = find_loop(case.loop, {} if case.loop == "pd" else case.options)
    pins = max(2, design.pins) if case.workload.config.speculative_algorithm else design.pins
    steps = {kind: set[tuple[str, str]]() for kind in ("write", "read", "free")}
    for act in trace.program:
        if act.kind in steps and act.resource.endswith("inputs"):
            steps[act.kind].add((act.resource, act.at))
    count, freed = len(steps["write"]), len(steps["free"])
    num_lost = len(steps["write"] - steps["read"] - steps["free"])
    most = max(0, count - max(pins, design.in_flight)) if pins else 0
    if not max(0, most - num_lost) <= freed <= most:
        yield (
            f"the inputs of {many(freed, 'step')} of {count} were released, but the loop pins "
            f"those of {max(pins, design.in_flight) if pins else 'no'} steps"
        )


OF_ROWS = {
    "page table", "token pool", "new seq lens", "all token ids", "num computed tokens",
    "prefill end", "last sampled",
}  # fmt: skip
"""Memory that is released with its row, and perhaps that of a stage of a pipeline."""


def find_unreleased(trace: Trace) -> Iterator[str]:
    """Yield the memory of rows that a step has written, and that was not released after it.

    A release names the newest step. With stream order to protect it, that step may write later. KV
    is released by page, and the prefix cache keeps some of it.
    """
    step_of = {item.id: item.step for item in trace.slices}
    written, released = dict[tuple[str, int], int](), dict[tuple[str, int], int]()  # newest steps
    for act in trace.program:
        if act.kind == "release" and not act.resource.endswith("kv"):
            released.update(dict.fromkeys(cells_in(act), act.step))
        elif act.kind == "write" and not act.resource.endswith("kv"):
            written.update(dict.fromkeys(cells_in(act), step_of.get(act.op, 0)))
    of_rows = {resource for resource, _ in released}
    of_rows |= {f"{side}{name}" for side in ("", "prefill ", "decode ") for name in OF_ROWS}
    for (resource, cell), step in written.items():
        if resource in of_rows and step > released.get((resource, cell), 0):
            yield f"step {step} wrote {resource} {cell}, which was not released with its row"


def find_unreleased_copies(trace: Trace, width: int, num_slots: int) -> Iterator[str]:
    """Yield the KV slots of a search that are released without their copies.

    Each of the ``width`` beams has a copy of the ``num_slots`` slots, one after the other.
    """
    released = Counter[int]()
    for act in trace.program:
        if act.kind == "release" and act.resource == "kv":
            released.update(cells_of(act.at))
    for slot, count in [*released.items()]:
        for copy in range(slot % num_slots, width * num_slots, num_slots):
            if released[copy] != count:
                yield (
                    f"slot {slot} of the KV is released {many(count, 'time')}, but its copy "
                    f"{copy} {many(released[copy], 'time')}"
                )


def find_needless_copies(
    trace: Trace, row_len: int, last_rows: Mapping[int, Set[int]]
) -> Iterator[Offence]:
    """Yield the selections of beams that copy KV after the last token of a search.

    ``last_rows`` has, by step, the table's rows of requests that end with it by their length.
    """
    selects = {item.id: item for item in trace.slices if item.name == "select"}
    for act in trace.program:
        item = selects.get(act.op)
        if item is None or act.resource != "page table":
            continue
        for row in {cell // row_len for cell in cells_of(act.at)} & last_rows[item.step]:
            story = f"{item.label} copies the KV of row {row}, and no step reads the copies"
            yield Offence(story, (item.id,), "copies")


def cells_in(act: Act) -> list[tuple[str, int]]:
    """Return the cells that an act touches, with their resource."""
    return [(act.resource, cell) for cell in cells_of(act.at)]


THREADS = {"worker thread": "process", "forward thread": "postprocess"}
"""Threads that launch steps, and the phase of the host that waits for the launch of the next."""


def find_unawaited(trace: Trace) -> Iterator[Offence]:
    """Yield phases of the host that run while its thread launches the next step, both decodes."""
    slices = {(item.lane, item.name, item.step): item for item in trace.slices}
    for (lane, name, step), launch in slices.items():
        if name != "launch" or lane not in THREADS:
            continue
        before = slices.get(("host", THREADS[lane], step - 1))
        put = slices.get(("host", "prepare", step))
        if before is None or put is None or put.start > before.start:
            continue
        if launch.mode == before.mode == "decode" and before.start < launch.end:
            story = f"{before.label} begins before the thread has launched step {step}"
            yield Offence(story, (launch.id, before.id), "time", "", before.start)


def find_sent_twice(trace: Trace) -> Iterator[str]:
    """Yield the requests with KV that was sent more than once."""
    sent = set[tuple[str, int]]()
    for act in trace.program if trace.loop == "pd" else ():
        if act.kind == "write" and act.lane == "kv transfer":
            for cell in [(act.rid, cell) for _, cell in cells_in(act)]:
                if cell in sent:
                    yield f"the KV of {cell[0]} in slot {cell[1]} was sent twice"
                sent.add(cell)


Shape = tuple[Sequence[int], int]
"""The tokens of each row of a step, and the number of prompts, which come first."""


def half_of(lens: Sequence[int], num_prompts: int) -> int:
    """Return the tokens of the first half: as many decodes as in the other, or of prompts half.

    Prompts are cut where their sums come nearest to half of the tokens, or within a prompt if a
    half would have less than ``LEAST_HALF`` of them.
    """
    sums = [0, *accumulate(lens)]
    if not num_prompts:
        return sum(lens[: len(lens) // 2])
    off = min(abs(sums[-1] - 2 * end) for end in sums)
    nearest = max(end for end in sums if abs(sums[-1] - 2 * end) == off)
    is_even = min(nearest, sums[-1] - nearest) >= LEAST_HALF * sums[-1]
    return nearest if is_even else sums[-1] // 2


def find_wrong_halves(trace: Trace, case: Case, shapes: Mapping[int, Shape]) -> Iterator[Offence]:
    """Yield steps with halves of another duration than they cost, or without halves.

    ``shapes`` are those of the steps. Of prompts that read each other's pages, no step is split.
    """
    ops = defaultdict[tuple[int, str], list[Slice]](list)  # by step and name
    for item in trace.slices:
        if item.name in (*HALVES, "forward"):
            ops[item.step, item.name].append(item)
    for step, (lens, num_prompts) in shapes.items():
        half, ran = half_of(lens, num_prompts), ops[step, "forward"]
        reads_later = num_prompts and case.workload.config.rules.find("prompt_pages=scheduled") > 0
        is_small = sum(lens) < case.options.get("min_tokens", 0)
        if not ran or (reads_later and not ops[step, HALVES[0]]):
            continue
        parts = [("forward", sum(lens), 0)]
        if half and not is_small:
            for number in range(1, PARTS):
                parts += (HALVES[0], half, number), (HALVES[1], sum(lens) - half, number)
        for name in ("forward", *HALVES):
            costs = [(case.cost.forward(tokens), at) for its, tokens, at in parts if its == name]
            wanted = [cost * (at + 1) // PARTS - cost * at // PARTS for cost, at in costs]
            if len(parts) == 1 and name == "forward":
                wanted = [case.cost.forward(sum(lens))]
            took = [item.duration for item in sorted(ops[step, name], key=lambda it: it.start)]
            if sorted(took) != sorted(wanted):
                story = f"{name} of step {step} takes " + " + ".join(map(milliseconds, took))
                story += ", but costs " + " + ".join(map(milliseconds, wanted))
                yield Offence(story, tuple(item.id for item in ops[step, name]), "time")
