"""The laws that hold for every schedule: the right tokens, every request ends, nothing is held.

A law is a function that yields one sentence for each violation. ``judge.py`` applies all laws to a
run. ``Clients`` and ``Touched`` observe the run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from ..core import FinishReason, Lease, Output, Request, Result, ScheduleBatch
from ..core.batch import Outputs
from ..core.form import wrong_form
from ..core.sampling import shown
from ..devices.sim import SimDevice, SimMemory
from ..engine.engine import Engine
from ..engine.frontend import AbortReq, Message
from ..engine.metrics import RequestMetrics
from ..loops.vllm_pp import PipelineWorker
from ..record import Value, to_text
from ..scheduler import SchedulerConfig
from ..scheduler.pd import PrefillScheduler
from ..trace import Trace
from ..trace.cells import spans_of
from ..trace.events import is_host
from ..trace.recorder import named
from .case import Workload
from .history import Words, many
from .oracle import Alone, alone, tokens_alone

# -- All laws: the sentence of each, and the part of a trace that it needs -------------------------
#
# A law also holds in a run without events, but such a run must not get a green tick.


def marks(trace: Trace, *names: str) -> list[dict[str, Value]]:
    """Return the attributes of the marks with these names."""
    return [mark.attrs for mark in trace.marks if mark.name in names]


def has_tokens(trace: Trace) -> bool:
    """Return whether a client received any token."""
    told = marks(trace, "tokens")
    return any(attrs.get("side") != "prefill" and attrs.get("rids") for attrs in told)


def has_company(trace: Trace) -> bool:
    """Return whether two requests wait or run at the same time: order and progress need two."""
    now: dict[str, int] = {}
    for counter in trace.counters:
        if counter.name.endswith(("waiting", "running")):
            now[counter.name] = counter.value
            if sum(now.values()) > 1:
                return True
    return False


def has_memory(trace: Trace) -> bool:
    """Return whether the trace records allocations of memory."""
    return bool(marks(trace, "row alloc", "page alloc"))


def has_shared_memory(trace: Trace) -> bool:
    """Return whether two lanes access one resource, and one of the accesses is not a read."""
    touches = {(act.resource, act.lane) for act in trace.program if act.resource}
    lanes = Counter(resource for resource, _ in touches)
    changed = {act.resource for act in trace.program if act.kind != "read"}
    return any(count > 1 and name in changed for name, count in lanes.items())


class Law(NamedTuple):
    """A law: its sentence (``says``), a test of the trace that it needs, and what is missing.

    A law with ``is_of_the_end`` is skipped if the run stopped with an error. A law with ``on_sim``
    is judged on the simulated device alone: no other device shows the accesses of an op.
    """

    says: str
    looks_at: Callable[[Trace], bool] = lambda it: bool(it.slices)
    lacks: str = "nothing ran"
    is_of_the_end: bool = False
    on_sim: bool = False


MEMORY, COMPANY = "no memory is recorded", "no request had to wait, or to share a step"
LAWS = {
    "ownership": Law("no page or row is handed out while it is in use", has_memory, MEMORY),
    "positions": Law("each position is computed once, in order; the cache gets all written pages",
        has_memory, MEMORY),
    "crash": Law("no error stops a loop or a step; what can't work is refused"),
    "race": Law("accesses of lanes that conflict are ordered, and freed memory is not touched",
        has_shared_memory, "no accesses are recorded that could race"),
    "touches": Law("an op touches the memory that it declares, and no other (on sim)",
        lambda it: it.device == "sim" and has_memory(it),
        "only sim shows the memory that an op touches", on_sim=True),
    "leak": Law("nothing is held, lost or freed twice", has_memory, MEMORY),
    "deadlock": Law("every wait ends"),
    "order": Law("requests run, and lose memory, in the order of the policy",
        has_company, COMPANY),
    "progress": Law("a request that can run is in the next step, and each wait has a reason",
        has_company, COMPANY),
    "livelock": Law("turns bring every request to its end"),
    "budget": Law("no step has more tokens or rows than its budget"),
    "waste": Law("a request wastes at most the steps ahead, and at its length its loop's overrun",
        lambda it: bool(marks(it, "finish", "retraction")), "no request left its memory"),
    "time": Law("nothing precedes its cause, and no time of a request is negative"),
    "abort": Law("an aborted request ends in that turn, and its client gets no more tokens",
        lambda it: any(attrs.get("reason") == "abort" for attrs in marks(it, "finish")),
        "no request was aborted", is_of_the_end=True),
    "ends": Law("each request ends once, and its client is notified", is_of_the_end=True),
    "client": Law("a client gets each token in its turn, then the reason of the end, and the usage",
        lambda it: bool(marks(it, "finish", "refused")), "no request ended", is_of_the_end=True),
    "identity": Law("each request gets the tokens that it would get alone",
        has_tokens, "no token was delivered", is_of_the_end=True),
    "logprobs": Law("a client gets the log-probabilities that its request would get alone",
        lambda it: any(item.name == "logprobs" for item in it.slices),
        "no client got log-probabilities", is_of_the_end=True),
    "record": Law("each label, edge and mark of the trace fits its step (on sim)",
        lambda it: it.device == "sim" and bool(it.slices),
        "only sim runs at exact times", is_of_the_end=True, on_sim=True),
}  # fmt: skip
"""Each law by its name; causes first, because any of them can cause wrong tokens.
A missing page or position and a crash come before a race: a step that they disturb often reads
cells that its request has never written, and that is a race, too.
``lifetime`` precedes them all: only tests judge it, because only they watch memory."""


def cause_rank(law: str) -> int:
    """Return a law's place in ``LAWS``, causes first; -1 for an unknown law."""
    return list(LAWS).index(law) if law in LAWS else -1


def laws_on(device: str) -> list[str]:
    """Return the laws that can judge a run on a device."""
    return [name for name, law in LAWS.items() if device == "sim" or not law.on_sim]


def lacking(law: str, trace: Trace) -> str:
    """Return what a trace lacks for a law (``no token was delivered``); '' if it lacks nothing."""
    found = LAWS.get(law, Law(law))  # a museum bug may define its own law
    return "" if found.looks_at(trace) else found.lacks


# -- Messages and outputs of clients: each request gets its own tokens, one end and its reason -----


TOO_LONG = "together more than"  # part of the sentence that refuses a request for its length


class GivenUp(NamedTuple):
    """An abort that a loop received while the request with its id was alive."""

    turn: int
    num_outputs: int  # tokens of the request at that moment
    error: str  # the reason; '' if the client asked for the abort


class SentAgain(NamedTuple):
    """A request object that was sent once more, and the refusal that its client must receive."""

    name: str
    namesake: bool  # a request with its id was alive, maybe itself
    error: str  # part of the sentence

    def is_answered(self, output: Output) -> bool:
        """Return whether an output is its refusal."""
        said = output.rid, output.token, output.finish_reason, output.namesake
        wanted = self.name, None, FinishReason.ERROR, self.namesake
        return said == wanted and self.error in output.error


class Clients:
    """All messages of clients in a run, each with the turn that received it, and all outputs.

    The state of the requests decides which of them are alive when a loop receives messages. A loop
    may receive a message later than its arrival, and not in every turn.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.turn = 0
        self.truth: dict[Request, Alone] = {}  # of the received requests, in order
        self.early = ""  # the first request that was received before an earlier one
        self.in_use: set[Request] = set()  # requests that came while their id was in use
        self.heard: defaultdict[Request, list[Output]] = defaultdict(list)
        self.sent_again: list[SentAgain] = []  # and not refused yet
        self.strangers: list[str] = []  # ids in outputs that no client has sent
        self.given_up: dict[Request, GivenUp] = {}
        self.cached: dict[Request, int] = {}  # start of a prompt's first step, in tokens
        self.late = ""  # the first turn that delivered fewer or more tokens than it processed
        self.dropped = ""  # the first stale output that was dropped although it counts
        self.blamed = ""  # the first failed result that ended the wrong requests
        self.is_interrupted = False
        self.deaf = ""  # the first turn that received an abort and did not end the request

    def watch(self, engine: Engine) -> None:
        """Attach to an engine before it starts; of the two of ``pd``, to the one with clients."""
        if isinstance(engine.scheduler, PrefillScheduler):
            return
        self.engine, config = engine, engine.scheduler.config
        self.config = config
        self._refusal, self._fitting = config.refusal, config.new_tokens_of
        requests = zip(self.workload.arrivals, self.workload.requests, strict=True)
        self.sent = [req for _, req in sorted(requests, key=itemgetter(0))]
        frontend, scheduler = engine.frontend, engine.scheduler
        take, on_output, on_commit = frontend.take, frontend.on_output, scheduler.on_commit
        assert on_output and on_commit

        def taken(now: int) -> list[Message]:
            """Take messages as the frontend does, and record them."""
            messages = take(now)
            for message in messages:
                self._take(message)
            is_first, self.is_interrupted = not self.is_interrupted, frontend.interrupted
            if self.is_interrupted and is_first and frontend.next_arrival is not None:
                self.deaf = f"the interrupt in turn {self.turn} left a request that comes later"
            for req in self._living(None) if frontend.interrupted else ():
                self.given_up[req] = GivenUp(self.turn, len(req.output_ids), "")
            return messages

        def heard(output: Output) -> None:
            """Record an output, and deliver it."""
            self._hear(output)
            on_output(output)

        def committed(batch: ScheduleBatch) -> None:
            """Record the cached length of each prompt at its first step."""
            for at, req in enumerate(batch.reqs):
                self.cached.setdefault(req, batch.starts[at] if at < batch.num_extend_reqs else 0)
            on_commit(batch)

        late, process = scheduler.output_processor.late, scheduler.process

        def processed(batch: ScheduleBatch, result: Result) -> Outputs:
            """Check that a failed step, or a row with NaN, ends the requests that still need it."""
            fails = bool(result.error or result.nan_samples)
            needs = [*needed_by(batch, result)] if fails else []
            hit = [*hit_by(batch, result)] if fails else []
            lives = [req for req in scheduler.live.values() if fails]
            outputs = process(batch, result)
            for req in lives if not self.blamed else ():
                if req in hit and req in needs and not req.finished:
                    self.blamed = f"step {batch.step} failed, and {req.name} did not end with it"
                elif req.finish_reason is FinishReason.ERROR and req not in needs:
                    self.blamed = (
                        f"step {batch.step} failed, and {req.name} ended, although it did not need "
                        "the result"
                    )
            return outputs

        def came_late(batch: ScheduleBatch, req: Request, lease: Lease, token: int | None) -> None:
            """Check that a token of a lost lease is delivered, where the rules keep such tokens."""
            keeps = any(part.keeps_late for part in req.parts) and not req.finished
            num_tokens = len(req.output_ids)
            late(batch, req, lease, token)
            counts = keeps and token is not None and not lease.is_spoiled
            if counts and len(req.output_ids) == num_tokens and not self.dropped:
                self.dropped = (
                    f"step {batch.step} computed a token for {req.name}, which was dropped and is "
                    "computed again, although the rules keep stale outputs"
                )

        scheduler.output_processor.late = came_late  # type: ignore[method-assign]
        scheduler.process = processed  # type: ignore[method-assign]
        frontend.take = taken  # type: ignore[method-assign]
        frontend.on_output, scheduler.on_commit = heard, committed

    def refusal(self, req: Request) -> str | None:
        """Return the text that a refusal must contain: its sentence or the id in use; or None."""
        if problem := self._refusal(req):
            return problem
        return f"request id {shown(req.rid)}" if req in self.in_use else None

    def _take(self, message: Message) -> None:
        """Record a message that a loop receives; the turn's end shows its effect."""
        if isinstance(message, Request) and message not in self.truth:
            first = self.sent[len(self.truth)]
            if message is not first and not self.early:
                self.early = f"{message.name} was taken in, and {first.name} was sent before it"
            if self._living(message.name):
                self.in_use.add(message)
            self.truth[message] = self._clipped(message)
        elif isinstance(message, Request):
            is_live = bool(self._living(message.name))
            usual = "is already in use" if is_live else "has run already"
            error = self._refusal(message) or usual
            self.sent_again.append(SentAgain(message.name, is_live, error))
        elif isinstance(message, AbortReq):
            if missed := self.missed_by(message):
                self.early = (
                    self.early or f"an abort of {missed} precedes it, but was sent after it"
                )
            for req in self._living(None if message.abort_all else message.rid):
                self.given_up[req] = GivenUp(self.turn, len(req.output_ids), message.error)

    def missed_by(self, abort: AbortReq) -> str:
        """Return the name of a request that every abort of its id should find; '' if it does.

        An abort that comes before those of the workload is a client's own, and is not judged.
        """
        workload = self.workload
        turns = [turn for turn, rid in workload.aborts.items() if rid == abort.rid]
        if not turns or self.turn < min(turns):
            return ""
        sent = zip(workload.arrivals, workload.requests, strict=True)
        before = [req for turn, req in sent if req.name == abort.rid and turn <= min(turns)]
        return "" if all(req in self.truth for req in before) else abort.rid

    def _clipped(self, req: Request) -> Alone:
        """Return the result of a request alone, with as many of its tokens as the pool can hold."""
        if problem := self.refusal(req):
            return Alone([], FinishReason.ERROR, problem)
        params = replace(req.params, max_new_tokens=self._fitting(req))
        return alone(self.workload, replace(req, params=params))

    def _living(self, name: str | None) -> list[Request]:
        """Return the requests that came and have not ended, with this name or any (None)."""
        return [
            req
            for req, truth in self.truth.items()
            if name in (None, req.name)
            and not (req.finished or req in self.given_up or truth.error)
        ]

    def _hear(self, output: Output) -> None:
        """Assign an output to the first request of its name without a delivered end.

        A refusal of a duplicate id goes to the duplicate, or answers a request that was sent again.
        An output after the last end counts for the last request.
        """
        if again := next((it for it in self.sent_again if it.is_answered(output)), None):
            self.sent_again.remove(again)
            return
        named = [req for req in self.truth if req.name == output.rid]
        untold = [req for req in named if not ends_in(self.heard[req])]
        fitting = [req for req in untold if (req in self.in_use) == output.namesake]
        if whose := [*fitting, *untold, *named[-1:]]:
            self.heard[whose[0]].append(output)
        else:
            self.strangers.append(output.rid)

    def look(self, engine: Engine) -> None:
        """Check after each turn: its results were delivered, and its aborts ended requests."""
        if engine is not self.engine:
            return
        when = f"by the end of turn {self.turn} clients had received"
        for req in self.truth if not self.late else ():
            told, known = len(tokens_in(self.heard[req])), len(self.delivered(req))
            if told != known:
                self.late = (
                    f"{when} {many(told, 'token')} of {req.name}, but {known} had been processed"
                )
            elif (ends := ends_in(self.heard[req])) != req.finished:
                self.late = f"{when} of {ends} ends of {req.name}, and there were {req.finished:d}"
        for req, given_up in self.given_up.items():
            if given_up.turn == self.turn and not (self.deaf or req.finished):
                self.deaf = (
                    f"{req.name} was aborted in turn {self.turn}, and at the end of that turn it "
                    "had not ended"
                )
        self.turn += 1

    # -- after the run -----------------------------------------------------------------------------

    def delivered(self, req: Request) -> list[int]:
        """Return the tokens that a client must have: with beams, none before the search ends."""
        is_whole = req.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        return req.output_ids if is_whole or self.workload.config.beam_width == 1 else []

    def find(self, usages: Sequence[RequestMetrics]) -> Iterator[tuple[str, str]]:
        """Yield each violation that clients saw: law and sentence; ``usages`` as counted."""
        for name in self.strangers:
            yield "ends", f"clients received an output of {name}, which no client has sent"
        for again in self.sent_again:
            yield "ends", f"{again.name} was sent again, and its client received no refusal"
        for law, said in (
            ("client", self.late or self.dropped),
            ("ends", self.blamed),
            ("abort", self.deaf),
            ("order", self.early),
        ):
            if said:
                yield law, said
        for req in self.workload.requests:
            for law, found in (
                ("identity", self.wrong_tokens(req)),
                ("ends", bad_end(req, self.heard[req], self.delivered(req))),
                ("client", self.wrong_end(req)),
                ("client", self.wrong_refusal(req)),
                ("abort", self.ignored(req)),
            ):
                yield from ((law, sentence) for sentence in found)
        yield from (("client", sentence) for sentence in self.miscounted(usages))

    def wrong_tokens(self, req: Request) -> Iterator[str]:
        """Yield a sentence if a request's tokens differ from those that it gets alone.

        A request that was aborted, or was in a step with an injected fault, got a prefix of them.
        A request that must be refused got none: see ``refusal``, or no output follows its grammar.
        """
        whole = self.truth.get(req) or alone(self.workload, req, self.refusal)
        truth = tokens_alone(self.workload, req, whole)
        if req.output_ids != truth:
            reason = f" ({req.error.rstrip('.')})" if req.error else ""
            yield f"{req.name} gave {req.output_ids}, alone it gives {truth}{reason}"

    def wrong_end(self, req: Request) -> Iterator[str]:
        """Yield a sentence if a client received another end than its request had, or has alone.

        If the tokens already differ from those alone, the reason is not checked: it follows.
        """
        said = next((output for output in self.heard[req] if output.finish_reason), None)
        truth = self.truth.get(req)
        if said is None or truth is None:
            return
        if (said.finish_reason, said.error) != (req.finish_reason, req.error):
            yield f"{req.name} {ended(req)}, but its client was notified that it {ended(said)}"
        elif said.namesake != (req in self.in_use):
            whether = "another request" if req in self.in_use else "no other request"
            yield f"{req.name} {ended(req)}, when {whether} had its id"
        elif self.workload.has_failed(req) or req in self.given_up:
            return  # a step with an injected fault, or an abort, ended it
        elif req.output_ids == truth.tokens:
            is_about = truth.error in req.error if truth.error else not req.error
            if req.finish_reason is not truth.finish_reason or not is_about:
                yield f"{req.name} {ended(req)}, alone it {ended(truth)}"

    def wrong_refusal(self, req: Request) -> Iterator[str]:
        """Yield a sentence if a request is refused for its length and would fit, or the reverse."""
        config, problem = self.config, self._refusal(req) or ""
        if wrong_form(req) or (problem and TOO_LONG not in problem):
            return
        length = len(req.prompt) + config.new_tokens_of(req)
        room = min(config.context_len, config.num_pages * config.page_size - config.draft_slack)
        if (length > room) != bool(problem):
            verb = "is refused" if problem else "is not refused"
            yield f"{req.name} {verb}: it has {many(length, 'position')}, and {room} is the limit"

    def ignored(self, req: Request) -> Iterator[str]:
        """Yield a sentence if an abort did not end a request in its turn, or none was sent."""
        given_up = self.given_up.get(req)
        if given_up is None:
            if req.finish_reason is FinishReason.ABORT:
                yield f"{req.name} {ended(req)}, but it was not aborted while it was alive"
            return
        who = f"{req.name} was aborted in turn {given_up.turn}"
        if req.finish_reason is not FinishReason.ABORT:
            yield f"{who} and {ended(req)}"
        elif req.error != given_up.error:
            yield f"{who} ({given_up.error or 'by its client'}), but {ended(req)}"
        elif (late := len(req.output_ids) - given_up.num_outputs) > 0:
            yield f"{who} and got {many(late, 'token')} after that"

    def miscounted(self, usages: Sequence[RequestMetrics]) -> Iterator[str]:
        """Yield the requests with a wrong usage: tokens of prompt, cache and output.

        The cached tokens of a prompt are those before the first token that a step computed. An id
        that a request of a wrong form has, too, is not judged: that one's prompt may be no list.
        """
        odd = {req.name for req in self.workload.requests if wrong_form(req)}
        found, had = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
        for item in usages:
            found[item.rid].append((item.prompt_tokens, item.cached_tokens, item.output_tokens))
        for req in self.workload.requests:
            if req.name not in odd:
                usage = len(req.prompt), self.cached.get(req, 0), len(tokens_in(self.heard[req]))
                had[req.name].append(usage)
        for name in had:
            if sorted(found[name]) != sorted(had[name]):
                words = "tokens of prompt, cache and output"
                yield f"{name} is counted as {found[name]} {words}, but had {had[name]}"


def needed_by(batch: ScheduleBatch, result: Result) -> Iterator[Request]:
    """Yield the requests that need the result of a step, before it is processed.

    They hold the lease of their row, or have lost it and their late tokens count. A row with NaN
    does not count if it has read pages of a failed step: it is computed again.
    """
    for req, lease in zip(batch.reqs, batch.leases, strict=True):
        is_late = not req.finished and any(part.keeps_late for part in req.parts)
        if (req.lease is lease or is_late) and (result.error or not lease.is_spoiled):
            yield req


def hit_by(batch: ScheduleBatch, result: Result) -> Iterator[Request]:
    """Yield the requests of a failed step, or those of the rows with NaN in their first sample."""
    firsts = accumulate(batch.sample_lens, initial=0)
    for req, first in zip(batch.reqs, firsts, strict=False):
        if result.error or first in result.nan_samples:
            yield req


def bad_end(
    req: Request, heard: Sequence[Output], delivered: list[int] | None = None
) -> Iterator[str]:
    """Yield a sentence if a request did not end once, or its client got other tokens.

    ``delivered`` are the tokens that it must have; by default all that the request produced.
    An id may be used again only after its request's end. An end with an error has a reason.
    """
    tokens, ends = tokens_in(heard), ends_in(heard)
    delivered = req.output_ids if delivered is None else delivered
    if req.finish_reason is FinishReason.ERROR and not req.error:
        yield f"{req.name} ended with an error that has no text"
    if ends != 1 or req.finish_reason is None:
        yield f"{req.name} ended {ends} times"
    elif tokens != delivered:
        yield f"the client of {req.name} received {tokens}, but it produced {delivered}"
    elif heard[-1].finish_reason is None:
        yield f"the client of {req.name} received an output after its end"


def tokens_in(heard: Sequence[Output]) -> list[int]:
    """Return the tokens that a client has received."""
    return [output.token for output in heard if output.token is not None]


def ends_in(heard: Sequence[Output]) -> int:
    """Return the number of ends that a client has received."""
    return sum(output.finish_reason is not None for output in heard)


def ended(end: Request | Output | Alone) -> str:
    """Return an end in words."""
    reason = end.finish_reason.value if end.finish_reason else "nothing"
    return f"ended with '{reason}'" + (f" ({end.error})" if end.error else "")


# -- No step computes more tokens than its policy's budget, or has more rows -----------------------


def over_budget(config: SchedulerConfig, batch: ScheduleBatch) -> Iterator[str]:
    """Yield by how much a step exceeds its budget of tokens or rows.

    If prompts and decodes share one budget (``unified``), all tokens of a step count, drafts too.
    Otherwise a step with prompts has ``chunked_prefill_size``, and its decodes take a part of it.
    If no prompt is cut, several prompts have ``max_prefill_tokens``; a single one may be longer.
    As in SGLang, a request that ignores EOS without a prefix cache is not charged: it ends the
    batch. Where prompts are cut, the last prompt starts only if the others leave a token of it.
    """
    tokens, prompts, chunk = batch.num_tokens, batch.num_extend_reqs, config.chunked_prefill_size
    limits = [("rows", len(batch.reqs), "max_running_requests", config.max_running_requests)]
    if config.in_force.run_first == "unified":
        limits.append(("tokens", tokens, "the budget of a step", config.prefill_budget))
    if prompts and chunk != -1:
        limits.append(("tokens", tokens, "chunked_prefill_size", chunk))
    is_timed = config.disable_radix_cache and batch.reqs[max(0, prompts - 1)].params.ignore_eos
    if prompts > 1 and chunk == -1 and not is_timed:
        limits.append(("tokens", tokens, "max_prefill_tokens", config.max_prefill_tokens))
    if prompts > 1 and chunk != -1:
        before = tokens - len(batch.ids[prompts - 1])
        name, most = "max_prefill_tokens less one", config.max_prefill_tokens - 1
        limits.append(("tokens besides its last prompt", before, name, most))
    for what, count, name, most in limits:
        if count > most:
            step = f"step {batch.step} ({batch.mode.value})"
            yield f"{step} has {count} {what}, but {name} is {most}"


# -- On ``sim``: the declared accesses of an op are its real ones ----------------------------------
#
# Races are found from declared accesses. An undeclared access hides a race, and a declared access
# that never happens reports a false one.

NO_MEMORY = ("value", "inputs", "pinned", "uva buffer")  # of ops, or of the host
# cell 0: read and discarded for every token from elsewhere, and the target of other samples
IN_VAIN = ("future map", "last tokens", "all token ids", "last sampled")
DUMP = ("token pool", "last sampled")
STAND_IN = "page table"  # the op that replaces a lost step: it touches less than the step
SENT, LANDED = "prefill kv", "decode kv"  # both ends of a ``pd`` transfer


@dataclass
class Cells:
    """Cells of one op and one resource: all reads, reads before its own write, and writes."""

    read: set[int] = field(default_factory=set)
    found: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


Ops = defaultdict[tuple[int, str], Cells]  # by op (0: the host) and name of the memory


class Touched:
    """Records the memory accesses of one run's engines, from before they start."""

    def __init__(self) -> None:
        self.accesses: list[tuple[int, SimMemory, Any, bool]] = []  # op, memory, cells, is a write
        self.engines: list[Engine] = []  # on simulated devices

    def watch(self, engine: Engine) -> None:
        """Record the accesses of an engine, if its device is a simulated one."""
        if isinstance(engine.device, SimDevice):
            engine.device.on_access = self._note
            self.engines.append(engine)

    def _note(self, memory: SimMemory, cells: Any, is_write: bool) -> None:
        """Record an access of an op, of a call on a host thread, or of the host."""
        if (op := memory.device.running) is not None:
            who = op.slice_id
        else:
            lane, call = memory.device.recorder.here()
            who = 0 if lane == "host" else call
        self.accesses.append((who, memory, cells, is_write))

    def check(self, trace: Trace, finished: bool = True) -> Iterator[str]:
        """Yield a sentence for each undeclared access, and for each declared one without effect.

        An op may read without declaration the cells that it wrote itself. The ops of a failed step
        may do less than they declared. With drafts only the device knows where a row begins, so
        ops declare all cells that they may touch. After a failed step, a row with a discarded
        result reads the cells that the failed step should have written.
        """
        if not self.engines:
            return
        real, said, words = self.touched(), declared(trace), Words(trace)
        landing = list(check_landed(real, said))
        yield from landing if finished else ()  # a stopped run has transfers on their way
        steps = {item.id: item.step for item in trace.slices}  # of ops that ended
        stand_ins = {item.id for item in trace.slices if item.name == STAND_IN}
        failed = {steps.get(op, 0) for op in self.failed_ops} | {steps[op] for op in stand_ins}
        drafts = any(engine.scheduler.config.num_draft_tokens for engine in self.engines)
        lanes = {act.op: act.lane for act in trace.program if act.kind == "begin"}
        for op, name in sorted(real.keys() | said.keys()):
            cells, claimed = real[op, name], said[op, name]
            if cells.read == claimed.read and cells.written == claimed.written:
                continue
            told = claimed.read | claimed.written if drafts else claimed.read
            unread = cells.found - told - ({0} if name.endswith(IN_VAIN) else set())
            if op in stand_ins or (drafts and failed):
                unread = set()
            unwritten = cells.written - claimed.written - ({0} if name.endswith(DUMP) else set())
            is_exact = op in steps and steps[op] not in failed and not drafts
            for verb, unsaid, in_vain in (
                ("read", unread, claimed.read - cells.read),
                ("write", unwritten, claimed.written - cells.written),
            ):
                who = words.op(op, lanes.get(op, "")) if unsaid or in_vain else ""
                if unsaid:
                    what = words.cells(name, to_text(unsaid))
                    yield f"{who} {verb}s {what}, but does not declare it"
                if is_exact and in_vain:
                    what = words.cells(name, to_text(in_vain))
                    yield f"{who} declares that it {verb}s {what}, but does not"

    @property
    def failed_ops(self) -> set[int]:
        """Return the ops that raised an error."""
        devices = [item.device for item in self.engines if isinstance(item.device, SimDevice)]
        return set[int]().union(*(device.failed for device in devices))

    def touched(self) -> Ops:
        """Return the real accesses, by op and memory."""
        ops: Ops = defaultdict(Cells)
        names = {id(memory): name for engine in self.engines for memory, name in kv_of(engine)}
        sides = {
            id(engine.device): getattr(engine.device.recorder, "side", "")
            for engine in self.engines
        }
        for op, memory, index, is_write in self.accesses:
            side, name = sides[id(memory.device)], names.get(id(memory), memory.name)
            cells = ops[op, named(side, name) if side else name]
            found = {index} if isinstance(index, int) else set(memory.indices(index))
            if is_write:
                cells.written |= found
            else:
                cells.read |= found
                cells.found |= found - cells.written
        return ops


def kv_of(engine: Engine) -> Iterator[tuple[SimMemory, str]]:
    """Yield the layers of a model's KV, each with its name in a program."""
    worker: Any = engine.worker
    yield from ((memory, "kv") for memory in worker.model.kv)
    for stage in worker.stages if isinstance(worker, PipelineWorker) else ():
        layers = stage.layers(worker.model)
        yield from ((worker.model.kv[layer], f"{stage.place}kv") for layer in layers)
    draft_model = getattr(getattr(worker.touches, "drafter", None), "model", None)
    yield from ((memory, "draft kv") for memory in (draft_model.kv if draft_model else ()))


def declared(trace: Trace) -> Ops:
    """Return the declared accesses of a program's ops, without those of the host."""
    ops: Ops = defaultdict(Cells)
    for act in trace.program:
        if act.resource and not act.resource.endswith(NO_MEMORY) and not is_host(act.lane):
            ours = ops[act.op, act.resource]
            cells = ours.read if act.kind == "read" else ours.written
            for first, last in spans_of(act.at):
                cells.update(range(first, last + 1))
    return ops


def check_landed(real: Ops, said: Ops) -> Iterator[str]:
    """Check that all KV that was sent lands on the decode side, in no op of that side.

    It lands once the clock of that side reaches the time of arrival. Apart from that, the host
    touches no memory of a device.
    """
    landed = real.pop((0, LANDED), Cells()).written
    sent = [key for key in said if key[1] == LANDED and (key[0], SENT) in said]
    cells = set[int]().union(*(said.pop(key).written for key in sent))
    if landed != cells:
        yield f"{to_text(cells)} of {LANDED} are sent, and {to_text(landed)} land"
    for _, name in [key for key in real if key[0] == 0]:
        yield f"the host touches {name} of the device itself"
        del real[0, name]


# -- Time goes forward -----------------------------------------------------------------------------


MOMENTS = ("arrival", "scheduled", "first_token", "last_token", "end")  # of a request, in order


def find_negative(usages: Sequence[RequestMetrics]) -> Iterator[str]:
    """Yield the requests with a negative time: in the queue, to a token, or between two tokens."""
    for usage in usages:
        times = [(name, time) for name in MOMENTS if (time := getattr(usage, name)) is not None]
        for (name, time), (next_name, next_time) in pairwise(times):
            if next_time < time:
                yield (
                    f"{usage.rid}: its {next_name.replace('_', ' ')} is at {next_time} ns, but its "
                    f"{name.replace('_', ' ')} is at {time} ns"
                )
        if usage.itls and min(usage.itls) < 0:
            yield f"{usage.rid}: {min(usage.itls)} ns lie between two of its tokens"
