"""The laws that hold for every schedule: the right tokens, every request ends, nothing is held.

Each is a function that yields a sentence for everything that breaks it; ``judge.py`` holds them all
against a run. ``Clients`` and ``Touched`` look on while it runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from ..core import FinishReason, Output, Request, ScheduleBatch
from ..core.sampling import shown
from ..devices.sim import SimDevice, SimMemory
from ..engine.engine import Engine
from ..engine.frontend import AbortReq, Message
from ..engine.metrics import RequestMetrics
from ..loops.vllm_pp import PipelineWorker
from ..scheduler import SchedulerConfig
from ..scheduler.pd import PrefillScheduler
from ..trace import Trace
from ..trace.cells import spans_of
from ..trace.events import Value, is_host
from ..trace.recorder import named, to_text
from .case import Workload
from .history import Words, many
from .oracle import Alone, alone, tokens_alone

# -- All of them: what each says, and what it looks at ---------------------------------------------
#
# A law holds of a run in which nothing happened, too; but that is no reason for a green tick.


def marks(trace: Trace, *names: str) -> list[dict[str, Value]]:
    """What the marks of some names say."""
    return [mark.attrs for mark in trace.marks if mark.name in names]


def has_tokens(trace: Trace) -> bool:
    """Whether a client was given any."""
    told = marks(trace, "tokens")
    return any(attrs.get("side") != "prefill" and attrs.get("rids") for attrs in told)


def has_company(trace: Trace) -> bool:
    """One is left out, or goes before another, only where there are two."""
    now: dict[str, int] = {}
    for counter in trace.counters:
        if counter.name.endswith(("waiting", "running")):
            now[counter.name] = counter.value
            if sum(now.values()) > 1:
                return True
    return False


def has_memory(trace: Trace) -> bool:
    """Whether anybody is known to have held some."""
    return bool(marks(trace, "row alloc", "page alloc"))


def has_shared_memory(trace: Trace) -> bool:
    """A race takes a resource that two lanes touch, one of them not only reading."""
    touches = {(act.resource, act.lane) for act in trace.program if act.resource}
    lanes = Counter(resource for resource, _ in touches)
    changed = {act.resource for act in trace.program if act.kind != "read"}
    return any(count > 1 and name in changed for name, count in lanes.items())


class Law(NamedTuple):
    """A law: what it ``says``, and what of a trace it looks at; without that it ``lacks`` it.

    What ``is_of_the_end`` is not looked at in a run that stopped. One that is ``on_sim`` is
    judged nowhere else: only there can it be watched what an op does.
    """

    says: str
    looks_at: Callable[[Trace], bool] = lambda it: bool(it.slices)
    lacks: str = "nothing ran"
    is_of_the_end: bool = False
    on_sim: bool = False


MEMORY, COMPANY = "no memory is recorded", "nobody had to wait, or to share a step"
LAWS = {
    "race": Law("what lanes do to memory is ordered, and what is freed is left alone",
        has_shared_memory, "no accesses are recorded that could race"),
    "touches": Law("an op touches what it says that it does, and nothing else (on sim)",
        lambda it: it.device == "sim" and has_memory(it),
        "what an op touches can be watched on sim alone", on_sim=True),
    "ownership": Law("no page or row is handed out while somebody has it", has_memory, MEMORY),
    "leak": Law("nothing is held, lost or freed twice", has_memory, MEMORY),
    "deadlock": Law("nobody waits for what never comes"),
    "crash": Law("no error stops a loop"),
    "order": Law("nobody goes before their turn, or loses memory before others",
        has_company, COMPANY),
    "progress": Law("who may run is in the next step, or there is a reason", has_company, COMPANY),
    "livelock": Law("turns bring every request to its end"),
    "budget": Law("no step has more tokens or rows than its budget"),
    "time": Law("nothing ends before it starts"),
    "abort": Law("who is given up ends in that turn, and hears no more tokens",
        lambda it: any(attrs.get("reason") == "abort" for attrs in marks(it, "finish")),
        "nobody was given up", is_of_the_end=True),
    "ends": Law("each request ends once, and its client heard it", is_of_the_end=True),
    "client": Law("it hears why it ended, its usage, and each token at once",
        lambda it: bool(marks(it, "finish", "refused")), "no request ended", is_of_the_end=True),
    "identity": Law("each request gets the tokens that it would get alone",
        has_tokens, "no token was delivered", is_of_the_end=True),
    "logprobs": Law("it hears the log-probabilities that it would hear alone",
        lambda it: any(item.name == "logprobs" for item in it.slices),
        "nobody was given log-probabilities", is_of_the_end=True),
}  # fmt: skip
"""Each law by its name; causes first, as wrong tokens follow from anything.
Before all comes ``lifetime``: it is judged where somebody watches memory, which is in tests."""


def cause_rank(law: str) -> int:
    """A law's place among the others, causes first."""
    return list(LAWS).index(law) if law in LAWS else -1


def laws_on(device: str) -> list[str]:
    """The laws that a run on a device can be judged by."""
    return [name for name, law in LAWS.items() if device == "sim" or not law.on_sim]


def lacking(law: str, trace: Trace) -> str:
    """What a trace lacks to be judged by a law, as ``no token was delivered``; else nothing."""
    found = LAWS.get(law, Law(law))  # a bug of the museum may have a law of its own
    return "" if found.looks_at(trace) else found.lacks


# -- What clients say and hear: that each request gets its own tokens, and ends once, and why ------


class GivenUp(NamedTuple):
    """An abort that was taken in while the request lived that had its id."""

    turn: int
    num_outputs: int  # tokens that the request had by then
    error: str  # why, where it is not the client who asked for it


class Clients:
    """Everything that clients said in a run, with the turn that took it in, and what they heard.

    Who lives is what the requests themselves say at the moment when a loop takes messages in, which
    may be later than they came, and not in each of its turns.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.turn = 0
        self.truth: dict[Request, Alone] = {}  # of those who came, in order
        self.early = ""  # the first who was taken in before another one, who was sent earlier
        self.in_use: set[Request] = set()  # who came while another one had their id
        self.heard: defaultdict[Request, list[Output]] = defaultdict(list)
        self.strangers: list[str] = []  # whom clients heard of, and nobody has sent
        self.given_up: dict[Request, GivenUp] = {}
        self.cached: dict[Request, int] = {}  # where the first step of a prompt begins
        self.late = ""  # the first turn that told clients less, or more, than it processed
        self.deaf = ""  # the first turn that took an abort in, and did not end the request

    def watch(self, engine: Engine) -> None:
        """Before an engine starts; of the two of ``pd`` it listens to the one that clients hear."""
        if isinstance(engine.scheduler, PrefillScheduler):
            return
        self.engine, self._refusal = engine, engine.scheduler.config.refusal
        requests = zip(self.workload.arrivals, self.workload.requests, strict=True)
        self.sent = [req for _, req in sorted(requests, key=itemgetter(0))]
        frontend, scheduler = engine.frontend, engine.scheduler
        take, on_output, on_commit = frontend.take, frontend.on_output, scheduler.on_commit
        assert on_output and on_commit

        def taken(now: int) -> list[Message]:
            messages = take(now)
            for message in messages:
                self._take(message)
            return messages

        def heard(output: Output) -> None:
            self._hear(output)
            on_output(output)

        def committed(batch: ScheduleBatch) -> None:
            for at, req in enumerate(batch.reqs):
                self.cached.setdefault(req, batch.starts[at] if at < batch.num_extend_reqs else 0)
            on_commit(batch)

        frontend.take = taken  # type: ignore[method-assign]
        frontend.on_output, scheduler.on_commit = heard, committed

    def refusal(self, req: Request) -> str | None:
        """What the refusal of a request has to say: its sentence, or which id is in use."""
        if problem := self._refusal(req):
            return problem
        return f"request id {shown(req.rid)}" if req in self.in_use else None

    def _take(self, message: Message) -> None:
        """A loop takes a message in; what it makes of it shows at the end of the turn."""
        if isinstance(message, Request) and message not in self.truth:
            first = self.sent[len(self.truth)]
            if message is not first and not self.early:
                self.early = f"{message.name} was taken in, and {first.name} was sent before it"
            if self._living(message.name):
                self.in_use.add(message)
            self.truth[message] = alone(self.workload, message, self.refusal)
        elif isinstance(message, AbortReq):
            for req in self._living(None if message.abort_all else message.rid):
                self.given_up[req] = GivenUp(self.turn, len(req.output_ids), message.error)

    def _living(self, name: str | None) -> list[Request]:
        """Who has come and not ended, of that name or of any."""
        return [
            req
            for req, truth in self.truth.items()
            if name in (None, req.name)
            and not (req.finished or req in self.given_up or truth.error)
        ]

    def _hear(self, output: Output) -> None:
        """Of several that had the name, it is the first one's whose end is not told yet.

        A refused namesake hears of that alone; what comes behind the last end is the last one's.
        """
        named = [req for req in self.truth if req.name == output.rid]
        untold = [req for req in named if not ends_in(self.heard[req])]
        fitting = [req for req in untold if (req in self.in_use) == output.namesake]
        if whose := [*fitting, *untold, *named[-1:]]:
            self.heard[whose[0]].append(output)
        else:
            self.strangers.append(output.rid)

    def look(self, engine: Engine) -> None:
        """After each turn: what it has processed is told, and whom it was to end has ended."""
        if engine is not self.engine:
            return
        when = f"by the end of turn {self.turn} clients had heard"
        for req in self.truth if not self.late else ():
            told, known = len(tokens_in(self.heard[req])), len(req.output_ids)
            if told != known:
                self.late = (
                    f"{when} {many(told, 'token')} of {req.name}, where {known} had been processed"
                )
            elif (ends := ends_in(self.heard[req])) != req.finished:
                self.late = f"{when} of {ends} ends of {req.name}, and there were {req.finished:d}"
        for req, given_up in self.given_up.items():
            if given_up.turn == self.turn and not (self.deaf or req.finished):
                self.deaf = (
                    f"{req.name} was given up in turn {self.turn}, and at the end of that turn it "
                    "had not ended"
                )
        self.turn += 1

    # -- afterwards --------------------------------------------------------------------------------

    def find(self, usages: Sequence[RequestMetrics]) -> Iterator[tuple[str, str]]:
        """Every law that clients saw broken, by its name, in sentences; ``usages`` as counted."""
        for name in self.strangers:
            yield "ends", f"clients heard of {name}, whom nobody has sent"
        for law, said in (("client", self.late), ("abort", self.deaf), ("order", self.early)):
            if said:
                yield law, said
        for req in self.workload.requests:
            for law, found in (
                ("identity", self.wrong_tokens(req)),
                ("ends", bad_end(req, self.heard[req])),
                ("client", self.wrong_end(req)),
                ("abort", self.ignored(req)),
            ):
                yield from ((law, sentence) for sentence in found)
        yield from (("client", sentence) for sentence in self.miscounted(usages))

    def wrong_tokens(self, req: Request) -> Iterator[str]:
        """Whether its tokens are not those that it would get alone.

        Whoever gave up, or was in a step that was to fail, got the first of them. Whoever has to be
        refused, as ``refusal`` says or because no output can follow its grammar, got none.
        """
        whole = self.truth.get(req) or alone(self.workload, req, self.refusal)
        truth = tokens_alone(self.workload, req, whole)
        if req.output_ids != truth:
            reason = f" ({req.error.rstrip('.')})" if req.error else ""
            yield f"{req.name} gave {req.output_ids}, alone it gives {truth}{reason}"

    def wrong_end(self, req: Request) -> Iterator[str]:
        """Whether its client heard of another end than it had, or has alone.

        Where it got other tokens than alone, why it ended is not looked at: it follows.
        """
        said = next((output for output in self.heard[req] if output.finish_reason), None)
        truth = self.truth.get(req)
        if said is None or truth is None:
            return
        if (said.finish_reason, said.error) != (req.finish_reason, req.error):
            yield f"{req.name} {ended(req)}, but its client heard that it {ended(said)}"
        elif said.namesake != (req in self.in_use):
            whether = "another one" if req in self.in_use else "nobody"
            yield f"{req.name} {ended(req)}, when {whether} had its id"
        elif self.workload.has_failed(req) or req in self.given_up:
            return  # it was in a step that was to fail, or had another reason to end
        elif req.output_ids == truth.tokens:
            is_about = truth.error in req.error if truth.error else not req.error
            if req.finish_reason is not truth.finish_reason or not is_about:
                yield f"{req.name} {ended(req)}, alone it {ended(truth)}"

    def ignored(self, req: Request) -> Iterator[str]:
        """Whether it was given up and did not end by that, in that turn, or ended so without it."""
        given_up = self.given_up.get(req)
        if given_up is None:
            if req.finish_reason is FinishReason.ABORT:
                yield f"{req.name} {ended(req)}, and nobody had given it up while it lived"
            return
        who = f"{req.name} was given up in turn {given_up.turn}"
        if req.finish_reason is not FinishReason.ABORT:
            yield f"{who} and {ended(req)}"
        elif req.error != given_up.error:
            yield f"{who} ({given_up.error or 'by its client'}), but {ended(req)}"
        elif (late := len(req.output_ids) - given_up.num_outputs) > 0:
            yield f"{who} and got {many(late, 'token')} after that"

    def miscounted(self, usages: Sequence[RequestMetrics]) -> Iterator[str]:
        """Of whom other numbers of tokens are counted than those of its prompt, cache and output.

        A prompt's cached tokens are those before the first one that a step computed for it.
        """
        found, had = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
        for item in usages:
            found[item.rid].append((item.prompt_tokens, item.cached_tokens, item.output_tokens))
        for req in self.workload.requests:
            if not req.problem():
                usage = len(req.prompt), self.cached.get(req, 0), len(tokens_in(self.heard[req]))
                had[req.name].append(usage)
        for name in had:
            if sorted(found[name]) != sorted(had[name]):
                words = "tokens of prompt, cache and output"
                yield f"{name} is counted as {found[name]} {words}, but had {had[name]}"


def bad_end(req: Request, heard: Sequence[Output]) -> Iterator[str]:
    """Whether it did not end once, or its client heard other tokens than its own.

    An id may come back after its request's end, and only then; who ends with an error hears why.
    """
    tokens, ends = tokens_in(heard), ends_in(heard)
    if req.finish_reason is FinishReason.ERROR and not req.error:
        yield f"{req.name} ended with an error, and nobody knows which"
    if ends != 1 or req.finish_reason is None:
        yield f"{req.name} ended {ends} times"
    elif tokens != req.output_ids:
        yield f"{req.name} heard {tokens}, produced {req.output_ids}"
    elif heard[-1].finish_reason is None:
        yield f"{req.name} heard something behind its end"


def tokens_in(heard: Sequence[Output]) -> list[int]:
    """The tokens that a client has heard."""
    return [output.token for output in heard if output.token is not None]


def ends_in(heard: Sequence[Output]) -> int:
    """How often it has heard of an end."""
    return sum(output.finish_reason is not None for output in heard)


def ended(end: Request | Output | Alone) -> str:
    """How somebody ended, in words."""
    reason = end.finish_reason.value if end.finish_reason else "nothing"
    return f"ended with '{reason}'" + (f" ({end.error})" if end.error else "")


# -- No step computes more tokens than its policy's budget, or has more rows -----------------------


def over_budget(config: SchedulerConfig, batch: ScheduleBatch) -> Iterator[str]:
    """By how much a step goes over its budget, or has too many rows.

    Where prompts and decodes share one budget (``unified``), all of a step counts, drafts too. Else
    a step with prompts has ``chunked_prefill_size``, of which those who decode beside them take
    their part; where no prompt is cut, several have ``max_prefill_tokens``: one may be longer.
    Who ignores EOS where nothing is cached is not asked for it, as in SGLang, and ends the batch.
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
    for what, count, name, most in limits:
        if count > most:
            step = f"step {batch.step} ({batch.mode.value})"
            yield f"{step} has {count} {what}, but {name} is {most}"


# -- On ``sim``, what ops say that they touch is what they touch -----------------------------------
#
# Races are found from what is said. What is touched and not said hides one, and what is said and
# not touched would be one that nobody has.

NO_MEMORY = ("value", "inputs", "pinned")  # what an op gives or is given, not memory of a device
IN_VAIN = ("future map", "last tokens")  # cell 0: read, and thrown away, for every known token
DUMP = {"token pool": {0}}  # where samples go that mean nothing
STAND_IN = "page table"  # an op in the place of a step that was lost: it does less than that
SENT, LANDED = "prefill kv", "decode kv"  # of a transfer between the two sides of ``pd``


@dataclass
class Cells:
    """Of one op and one resource: read at all, read before the op wrote it itself, written."""

    read: set[int] = field(default_factory=set)
    found: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


Ops = defaultdict[tuple[int, str], Cells]  # by op (0: the host) and by the name of the memory


class Touched:
    """Follows the engines of one run, from before they start."""

    def __init__(self) -> None:
        self.accesses: list[tuple[int, SimMemory, Any, bool]] = []  # op, where, cells, is a write
        self.engines: list[Engine] = []  # on simulated devices

    def watch(self, engine: Engine) -> None:
        """Note what its ops do, if its device is a simulated one."""
        if isinstance(engine.device, SimDevice):
            engine.device.on_access = self._note
            self.engines.append(engine)

    def _note(self, memory: SimMemory, cells: Any, is_write: bool) -> None:
        """An op, a call on a thread of the host, or the host accesses memory."""
        op, program = memory.device.running, memory.device.recorder.program
        who = op.slice_id if op else 0 if program.lane == "host" else program.op
        self.accesses.append((who, memory, cells, is_write))

    def check(self, trace: Trace, finished: bool = True) -> Iterator[str]:
        """A sentence for each thing that was touched and not said, or said and not touched.

        What an op has written itself it may read unsaid. The ops of a step that failed have not
        done all that they said. With drafts, where only the device knows where a row begins, ops
        say all that they may touch; and behind a step that failed, a row that runs in vain reads
        what that one was to leave.
        """
        if not self.engines:
            return
        real, said, words = self.touched(), declared(trace), Words(trace)
        landing = list(check_landed(real, said))
        yield from landing if finished else ()  # else some of it is on its way
        steps = {item.id: item.step for item in trace.slices}  # of what has ended
        stand_ins = {item.id for item in trace.slices if item.name == STAND_IN}
        devices = [item.device for item in self.engines if isinstance(item.device, SimDevice)]
        stopped = set[int]().union(*(device.failed for device in devices))
        failed = {steps.get(op, 0) for op in stopped} | {steps[op] for op in stand_ins}
        drafts = any(engine.scheduler.config.num_draft_tokens for engine in self.engines)
        lanes = {act.op: act.lane for act in trace.program if act.kind == "begin"}
        for op, name in sorted(real.keys() | said.keys()):
            cells, claimed = real[op, name], said[op, name]
            told = claimed.read | claimed.written if drafts else claimed.read
            unread = cells.found - told - ({0} if name.endswith(IN_VAIN) else set())
            if op in stand_ins or (drafts and failed):
                unread = set()
            unwritten = cells.written - claimed.written - DUMP.get(name, set())
            is_exact = op in steps and steps[op] not in failed and not drafts
            for verb, unsaid, in_vain in (
                ("read", unread, claimed.read - cells.read),
                ("write", unwritten, claimed.written - cells.written),
            ):
                who = words.op(op, lanes.get(op, "")) if unsaid or in_vain else ""
                if unsaid:
                    what = words.cells(name, to_text(unsaid))
                    yield f"{who} {verb}s {what}, and has not said so"
                if is_exact and in_vain:
                    what = words.cells(name, to_text(in_vain))
                    yield f"{who} says that it {verb}s {what}, and does not"

    def touched(self) -> Ops:
        """What was touched by whom."""
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
    """The layers of a model's KV, and what they are called in a program."""
    worker: Any = engine.worker
    yield from ((memory, "kv") for memory in worker.model.kv)
    for stage in worker.stages if isinstance(worker, PipelineWorker) else ():
        layers = stage.layers(worker.model)
        yield from ((worker.model.kv[layer], f"{stage.place}kv") for layer in layers)
    draft_model = getattr(getattr(worker.touches, "drafter", None), "model", None)
    yield from ((memory, "draft kv") for memory in (draft_model.kv if draft_model else ()))


def declared(trace: Trace) -> Ops:
    """What the ops of a program say that they touch, the host's own accesses left out."""
    ops: Ops = defaultdict(Cells)
    for act in trace.program:
        if act.resource and not act.resource.endswith(NO_MEMORY) and not is_host(act.lane):
            ours = ops[act.op, act.resource]
            cells = ours.read if act.kind == "read" else ours.written
            for first, last in spans_of(act.at):
                cells.update(range(first, last + 1))
    return ops


def check_landed(real: Ops, said: Ops) -> Iterator[str]:
    """KV lands on the decode side when its clock gets there too, in nobody's op: all that was sent.

    Apart from that the host itself touches no memory of a device.
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


def find_backwards(trace: Trace) -> Iterator[str]:
    """What ends before it starts."""
    for item in trace.slices:
        if item.end < item.start:
            yield (
                f"{item.name} of step {item.step} on the {item.lane} lane starts at "
                f"{item.start} ns and ends at {item.end} ns"
            )
