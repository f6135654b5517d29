"""Beam search: each request keeps its ``beam_width`` most likely outputs, and gets the best one.

In every step each beam is extended by each token. The most likely extensions are the next beams
(``select``). Several may come from one beam: its row *forks*, and another beam ends there. The
scheduler does not know any of this. It sees one row for each request, with the token of the best
beam. The worker adds a row for each other beam to the forward pass (SGLang ``beam_search/``,
#31626, where they are *member rows* of a *leader*)::

    forward   the rows of all beams; a page table row for each
    select    the next beams: their tokens, scores and parents; each beam gets its parent's KV
    sample    the best beam's token goes to the relay, as the token of the request

*Overlap.* ``select`` runs on the device before the next step reads its inputs, so the host waits
for nothing. Tokens of the other beams stay on the device. The host learns tokens and parents a step
later, and follows them to the outputs. No step is wasted: a search ends by length, as a stop token
ends only one beam. (In SGLang one that has fewer beams than its width ends, too.)

*Memory.* The prompt's pages are shared by all beams. Behind the prompt each page of a request has a
copy for each other beam, at the same place in a part of KV memory of its own (``BeamWorker.slots``;
TensorRT-LLM has a fixed width in this way, ``max_beam_width``). So a page is freed once, for all
beams. A fork copies KV. SGLang changes the row's list of slots instead, and frees slots in no list
a step later.

A request that is retracted begins its search again. (SGLang aborts it.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any, NamedTuple

from ..core import (
    FinishReason,
    Lease,
    Output,
    Outputs,
    Request,
    Result,
    SamplingParams,
    ScheduleBatch,
)
from ..core.feature import Feature
from ..core.part import RequestPart
from ..devices.base import Array, Op
from ..devices.sim import Vector
from ..models.base import ForwardBatch, slots_of
from ..models.hash import HashModel
from ..scheduler import Scheduler, SchedulerConfig
from ..trace import Touch
from ..worker import Step, Worker
from ..worker.recording import KV, PAGE_TABLE, Touches

# -- The search: which extensions are the next beams -----------------------------------------------


class Chosen(NamedTuple):
    """The next beams of one request, the most likely first, and the outputs that ended."""

    tokens: list[int]  # [width]
    parents: list[int]  # [width] the beam that each one extends
    scores: list[float]  # [width] sums of log-probabilities
    ended: list[tuple[float, int, int]]  # score, parent and stop token


def select(
    logits: Sequence[Sequence[float]], scores: Sequence[float], width: int, stops: Iterable[int]
) -> Chosen:
    """Extend beams by one token (SGLang ``joint_select.py``).

    The extensions are taken by score. A stop token ends an output. The others are the next beams.
    No extension counts after the last of them. ``logits`` are [num_beams, vocab]. If one of them is
    not a number, no score is.
    """
    if any(math.isnan(sum(row)) for row in logits):
        return Chosen([0] * width, [0] * width, [math.nan] * width, [])
    found, stops = list[tuple[float, int, int]](), frozenset(stops)
    for parent, (row, score) in enumerate(zip(logits, scores, strict=True)):
        highest = max(row)
        norm = highest + math.log(sum(math.exp(logit - highest) for logit in row))
        found += ((norm - logit - score, parent, token) for token, logit in enumerate(row))
    chosen, most = Chosen([], [], [], []), width + len(logits) * len(stops)
    for cost, parent, token in nsmallest(most, found):
        if token in stops:
            chosen.ended.append((-cost, parent, token))
            continue
        chosen.tokens.append(token)
        chosen.parents.append(parent)
        chosen.scores.append(-cost)
        if len(chosen.tokens) == width:
            break
    return chosen


@dataclass(eq=False)
class Beams(RequestPart):
    """The beams of one request, as far as the host knows them."""

    req: Request
    beams: list[list[int]] = field(default_factory=lambda: [[]])
    scores: Sequence[float] = ()
    ended: list[tuple[float, list[int]]] = field(default_factory=list)  # score by token, output
    arrived: deque[Chosen] = field(default_factory=deque)  # of steps whose tokens are not processed
    newest: Chosen | None = None  # that of the step whose tokens are processed now

    def follow(self, chosen: Chosen) -> None:
        """Learn the next beams of a step."""
        for score, parent, token in chosen.ended:
            output = [*self.beams[parent], token]
            self.ended.append((score / len(output), output))
        beams = zip(chosen.parents, chosen.tokens, strict=True)
        self.beams = [[*self.beams[parent], token] for parent, token in beams]
        self.scores, self.newest = chosen.scores, chosen

    def on_token(self, token: int) -> FinishReason | None:
        """Make the output that of the best beam; after the last token, the best output of all."""
        self.follow(self.arrived.popleft())
        if self.req.known_len < self.req.max_device_len:
            self.req.output_ids[:] = self.beams[0]
            return None
        lengths = map(len, self.beams)
        live = [score / length for score, length in zip(self.scores, lengths, strict=True)]
        outputs = [*self.ended, *zip(live, self.beams, strict=True)]
        _, best = max(outputs, key=lambda output: output[0])
        self.req.output_ids[:] = best
        stopped = best[-1] in self.req.stop_ids
        return FinishReason.STOP if stopped else FinishReason.LENGTH

    def on_retract(self) -> None:
        """Begin the search again."""
        self.beams, self.scores, self.ended = [[]], (), []
        self.arrived.clear()
        self.req.output_ids.clear()
        self.req.known_len = self.req.device_len = len(self.req.prompt)


class BeamSearch(Feature):
    """Keeps the beams of each request, and delivers the best output at its end."""

    def attach(self, scheduler: Scheduler) -> None:
        """Share prompts only: the KV behind a prompt is that of a beam, and not of the output."""
        self.config, self.recorder = scheduler.config, scheduler.recorder
        share = scheduler.prefix_cache.cache_unfinished_req

        def share_prompt(req: Request, lease: Lease, length: int | None = None) -> None:
            share(req, lease, min(lease.settled_len if length is None else length, len(req.prompt)))

        scheduler.prefix_cache.cache_unfinished_req = share_prompt  # type: ignore[method-assign]

    def part_of(self, req: Request) -> Beams:
        """Return the beams of a request.

        Raises:
            ValueError: it has an option that changes one row of logits, or its output.
        """
        params = req.params
        if wish := refused_wish(params):
            raise ValueError(f"beam search takes no {wish}; leave it out, or set beam_width 1.")
        stops = params.stop_token_ids | (frozenset() if params.ignore_eos else self.config.eos_ids)
        if self.config.vocab_size - len(stops) < self.config.beam_width:
            raise ValueError(
                f"beam_width is {self.config.beam_width}, but the vocabulary has only "
                f"{self.config.vocab_size} tokens, {len(stops)} of which end an output; take fewer "
                "beams."
            )
        return Beams(req)

    def on_result(self, batch: ScheduleBatch, result: Result, outputs: Outputs) -> None:
        """Deliver nothing of a search before its end, and then all tokens of the best output."""
        self.record(batch)
        reqs, before = {req.rid: req for req in batch.reqs}, list(outputs)
        outputs.rids, outputs.tokens, outputs.more = [], [], {}
        for item in before:
            req = reqs.get(item.rid)
            if item.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) and req is not None:
                for token in req.output_ids[:-1]:
                    outputs.add(Output(item.rid, token))
                item.token = req.output_ids[-1]
            elif req is not None and item.finish_reason is None:
                continue
            outputs.add(item)

    def record(self, batch: ScheduleBatch) -> None:
        """Mark the next beams of each request of a step, with the rows of the page table."""
        for req, lease in zip(batch.reqs, batch.leases, strict=True):
            part = req.part(Beams)
            if part is None or part.newest is None:
                continue
            chosen, part.newest = part.newest, None
            if self.recorder.is_on:
                rows = rows_of(lease.row, self.config.beam_width, self.config.max_running_requests)
                self.recorder.mark(
                    "beams", step=batch.step, rid=req.rid, length=len(part.beams[0]),
                    rows=tuple(rows), parents=tuple(chosen.parents), tokens=tuple(chosen.tokens),
                )  # fmt: skip


def refused_wish(params: SamplingParams) -> str:
    """Return the first wish of a request that a search can't combine with; '' if it has none."""
    for name, is_wanted in (
        ("temperature above 0", not params.is_greedy),
        ("penalties", params.has_penalties),
        ("logit_bias", bool(params.logit_bias)),
        ("grammar", params.has_grammar),
        ("stop strings", bool(params.stop)),
        ("log-probabilities", params.return_logprob),
    ):
        if is_wanted:
            return name
    return ""


def check_beams(loop: str, config: SchedulerConfig, is_on_sim: bool) -> None:
    """Check that a loop can search for beams.

    Raises:
        ValueError: it can't; the message has the reason.
    """
    width, reason = config.beam_width, ""
    if "beam search" in config.refuses:
        reason = f"loop {loop!r} takes no beam search: {config.refuses['beam search']}"
    elif config.speculative_algorithm:
        reason = f"speculative_algorithm is {config.speculative_algorithm!r}, and a beam has no"
        reason += " drafts; leave one of them out"
    elif not is_on_sim:
        reason = "it forks the KV of the hash model on sim only; take --device sim --model hash"
    if reason:
        raise ValueError(f"beam_width is {width}, but {reason}.")


# -- One step: a row for each beam -----------------------------------------------------------------


def rows_of(row: int, width: int, max_running_requests: int) -> range:
    """Return the rows of the page table for a request's beams, the first of which is its own."""
    num_rows = max_running_requests + 1
    return range(row, width * num_rows, num_rows)


class Searched(NamedTuple):
    """A row of a step that samples, with the rows of its other beams."""

    at: int  # its place in the step
    row: int  # of the request table
    prompt_len: int
    end: int  # of the positions computed
    first_logits: int  # place of the logits of its second beam; 0: it has one beam, the prompt
    is_last: bool  # no step follows
    stops: frozenset[int]


@dataclass(eq=False, repr=False)
class BeamStep(Step):
    """A step with the beams of its rows."""

    searched: Sequence[Searched] = ()
    select_touches: Sequence[Touch] = ()  # declared at layout, as it may be launched later
    selected: Op | None = None  # its value: Chosen by place in the step
    beams_copied: Op | None = None

    def read(self) -> Result:
        """Return the tokens of the best beams; keep all beams for the requests that are there."""
        result = super().read()
        if self.beams_copied is not None:
            for at, chosen in self.beams_copied.synchronize().items():
                req, part = self.batch.reqs[at], self.batch.reqs[at].part(Beams)
                if part is not None and req.lease is self.batch.leases[at]:
                    part.arrived.append(chosen)
        return result


class BeamTouches(Touches):
    """Declares the release of all copies of a page."""

    copies: Sequence[int] = ()  # the place of each in KV memory

    def free_pages(self, pages: Sequence[int], lease: Lease | None) -> None:
        """Host: record that pages are released, with the copies of the other beams."""
        super().free_pages(pages, lease)
        slots, rid = slots_of(pages, self.page_size), lease.rid if lease else ""
        for copy in self.copies:
            own = [slot + copy for slot in slots]
            self.recorder.touch("release", KV, own, rid, self.committed())


class BeamWorker(Worker[BeamStep]):
    """A worker with a row of the page table and a part of KV memory for each further beam."""

    step_class = BeamStep
    touches_class = BeamTouches
    model: HashModel

    def __init__(
        self, *parts: Any, width: int, num_slots: int, max_running_requests: int, **sizes: Any
    ) -> None:
        self.width, self.num_slots, self.num_rows = width, num_slots, max_running_requests + 1
        sizes["max_running_requests"] = width * self.num_rows - 1
        super().__init__(*parts, num_slots=width * num_slots, **sizes)
        self.beam_tokens = self.device.memory("beam tokens", width * self.num_rows)
        self.beam_scores = self.device.memory("beam scores", width * self.num_rows)
        if isinstance(self.touches, BeamTouches):
            self.touches.copies = range(num_slots, width * num_slots, num_slots)

    # -- host: the rows, and the memory of their ops

    def rows(self, row: int) -> range:
        """Return the rows of a request's beams, the first of which is its own."""
        return rows_of(row, self.width, self.num_rows - 1)

    def lay_out(self, step: BeamStep, previous: Step | None = None) -> None:
        """Add a row for each beam but the first of every row that decodes."""
        super().lay_out(step, previous)
        flat, searched, rows = step.flat, list[Searched](), list[tuple[int, int, str]]()
        assert flat is not None
        for at, row in enumerate(step.batch.rows):
            if not row.deliver:
                continue
            req, prompt_len = row.req, len(row.req.prompt)
            is_first, first_logits = row.start < prompt_len, len(step.batch.reqs) + len(rows)
            if not is_first:
                rows += ((beam, row.start, req.rid) for beam in self.rows(row.lease.row)[1:])
            searched.append(Searched(
                at, row.lease.row, prompt_len, row.end, 0 if is_first else first_logits,
                row.end >= req.max_device_len - 1, req.stop_ids,
            ))  # fmt: skip
        step.searched = searched
        added, starts = [row for row, _, _ in rows], [start for _, start, _ in rows]
        step.flat = replace(
            flat, rids=(*flat.rids, *(rid for _, _, rid in rows)), rows=flat.rows + added,
            prefix_lens=flat.prefix_lens + starts, ids=flat.ids + [0] * len(rows),
            extend_lens=flat.extend_lens + [1] * len(rows),
            logit_lens=list(flat.logit_lens) + [1] * len(rows),
            samples_at=list(range(len(step.batch.reqs))),
        )  # fmt: skip
        if self.device.recorder.is_on:
            step.touches = step.touches._replace(
                forward=[*step.touches.forward, *self.touches_of_rows(step)]
            )
            step.select_touches = self.touches_of_select(step)

    def slots(self, listed: Sequence[int], prompt_len: int, beam: int) -> list[int]:
        """Return the slots of a beam, of those of the first one: behind the prompt its own."""
        copy = beam * self.num_slots
        return [*listed[:prompt_len], *(slot + copy for slot in listed[prompt_len:])]

    def touches_of_rows(self, step: BeamStep) -> Iterable[Touch]:
        """Yield the memory that the forward pass of the added rows touches."""
        for item in step.searched:
            listed = self.touches.table[item.row][: item.end]
            for beam, row in enumerate(self.rows(item.row)) if item.first_logits else ():
                if not beam:
                    continue
                cell, slots = row * self.max_len, self.slots(listed, item.prompt_len, beam)
                yield Touch("read", "beam tokens", [row])
                yield Touch("write", PAGE_TABLE, range(cell, cell + item.end))
                yield Touch("read", KV, slots[:-1])
                yield Touch("write", KV, slots[-1:])

    def touches_of_select(self, step: BeamStep) -> list[Touch]:
        """Return the memory that the op ``select`` touches."""
        found = [self.touches.inputs(step.batch)]
        for item in step.searched:
            rows, cell = list(self.rows(item.row)), item.row * self.max_len
            if item.first_logits:
                found.append(Touch("read", "beam scores", rows))
            found += (Touch("write", name, rows) for name in ("beam tokens", "beam scores"))
            if not item.first_logits or item.is_last:
                continue
            listed = self.touches.table[item.row][: item.end]
            cells = range(cell + item.prompt_len, cell + item.end)
            found.append(Touch("read", PAGE_TABLE, cells))
            for beam in range(self.width):
                own = self.slots(listed, item.prompt_len, beam)[item.prompt_len :]
                found += (Touch(kind, KV, own) for kind in ("read", "write"))
        return found

    # -- host: the ops

    def launch_forward(self, step: BeamStep) -> None:
        """Queue the forward pass of all beams."""
        step.logits_output = self.queue(
            step, "forward", self.forward_beams, step.inputs, step.previous, step,
            on=self.forward_stream, cost=self.cost.forward_rows(step.inputs.extents),
            touches=step.touches.forward,
        )  # fmt: skip
        if step.edges is not None:
            self.token_edges.launched(step.edges, step.logits_output)

    def launch_sample(self, step: BeamStep) -> None:
        """Queue ``select``, and then the sampling."""
        step.selected = self.queue(
            step, "select", self.select, step.logits_output, step.searched,
            on=self.sample_stream, cost=self.cost.verify, touches=step.select_touches,
        )  # fmt: skip
        step.next_token_ids = self.queue(
            step, "sample", self.sample_best, step.logits_output, step.selected,
            self.sample_inputs(step), step.buffer, on=self.sample_stream,
            cost=self.cost.sample_rows(len(step.batch.reqs)), touches=step.touches.sample,
        )  # fmt: skip
        self.copy_stream.wait(step.next_token_ids)

    def launch_copy(self, step: BeamStep) -> None:
        """Queue the copies of the tokens and of the beams."""
        super().launch_copy(step)
        assert step.selected is not None
        step.beams_copied = self.queue(
            step, "copy beams", self.device.bring_to_host, step.selected, on=self.copy_stream,
            cost=self.cost.copy, after=("copy", step.selected),
        )  # fmt: skip

    # -- device: the ops

    def forward_beams(self, inputs: ForwardBatch, previous: Array, step: BeamStep) -> Array:
        """Return logits [num_logits, vocab]: first those of the step's rows, then of the others."""
        table, size = self.page_table, step.batch.num_tokens
        if len(inputs.table_index):
            table[inputs.table_index] = inputs.table_slots
        ids = self.relay.resolve_future(inputs.ids[:size], previous)
        if step.edges is not None:
            self.token_edges.took(step.edges, ids)
        tokens = list(ids)
        for item in step.searched:
            cell = item.row * self.max_len
            for beam, row in enumerate(self.rows(item.row)) if item.first_logits else ():
                if beam:
                    own = self.slots(table[cell : cell + item.end], item.prompt_len, beam)
                    table[row * self.max_len : row * self.max_len + item.end] = own
                    tokens.append(self.beam_tokens[row])
        return self.model.forward(inputs, Vector(tokens), table)

    def select(self, logits: Array, searched: Sequence[Searched]) -> dict[int, Chosen]:
        """Choose the next beams of each request, and give each beam the KV of its parent."""
        found = dict[int, Chosen]()
        for item in searched:
            rows, own, scores = self.rows(item.row), [logits[item.at]], [0.0]
            if item.first_logits:
                own += logits[item.first_logits : item.first_logits + self.width - 1]
                scores = self.beam_scores[list(rows)]
            stops = item.stops if not item.is_last else ()
            chosen = found[item.at] = select(own, scores, self.width, stops)
            self.beam_tokens[list(rows)] = chosen.tokens
            self.beam_scores[list(rows)] = chosen.scores
            if item.first_logits and not item.is_last:
                self.fork(item, chosen.parents)
        return found

    def fork(self, item: Searched, parents: Sequence[int]) -> None:
        """Give each beam the KV of its parent behind the prompt."""
        cell = item.row * self.max_len
        listed = self.page_table[cell + item.prompt_len : cell + item.end]
        slots = [self.slots(listed, 0, beam) for beam in range(self.width)]
        values = [self.model.read_kv(own) for own in slots]
        for own, parent in zip(slots, parents, strict=True):
            self.model.write_kv(own, values[parent])

    def sample_best(
        self, logits: Array, selected: Mapping[int, Chosen], inputs: ForwardBatch, buffer: int
    ) -> Array:
        """Return the token of each request's best beam, and leave it in relay and buffer."""
        tokens = self.choose(logits, inputs, buffer)
        for at, chosen in selected.items():
            token = tokens[at] = chosen.tokens[0]
            is_marked = math.isnan(chosen.scores[0])  # which ends the request, on the host
            self.outputs[buffer][at] = -1 - token if is_marked else token
        self.relay.store_to_map(inputs.future_slots, tokens)
        return tokens
