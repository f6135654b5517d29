"""Did every schedule give the same tokens? If not: where first, and how close was the call?

A single run is checked too: each request gets its own tokens, up to its end. The story of a wrong
token leads back to the first violation: the reads of the step that sampled it, the writers of
those cells, their reads, and so on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import NamedTuple

from ..core import Request, SamplingParams
from ..devices.registry import open_device
from ..features.logprobs import logprobs_of
from ..loops.run import Run, run_loop
from ..models.base import Model
from ..scheduler import SchedulerConfig
from ..trace import Slice, Trace
from ..trace.cells import cells_of, is_in, spans_of
from ..trace.events import is_host
from .history import Done, MarkMoment, Offence, Words, heard, order_of
from .leaks import ledgers

# -- Are two recorded runs of the same workload? ---------------------------------------------------


def another_workload(baseline: Trace, run: Trace) -> str:
    """Return a sentence on why two runs can't be compared, or ''.

    A run that has ended all of its requests and lacks one was not asked for that one. No trace
    contains the limit of a request's tokens.
    """
    for one, other in ((baseline, run), (run, baseline)):
        absent = sorted(requests_of(one) - requests_of(other))
        if absent and requests_of(other) <= ended(other):
            return f"Another workload: only one of the two runs has the request {absent[0]}."
    theirs = prompt_lens(baseline)
    for rid, size in prompt_lens(run).items():
        if theirs.get(rid, size) != size:
            return (
                f"Another workload: the prompt of {rid} has {size} tokens, and {theirs[rid]} in "
                "the baseline."
            )
    return ""


def requests_of(trace: Trace) -> set[str]:
    """Return all requests that a trace contains."""
    named = {str(mark.attrs["rid"]) for mark in trace.marks if mark.attrs.get("rid")}
    says_tokens = any(mark.name == "tokens" for mark in trace.marks)
    return named | set(tokens_heard(trace) if says_tokens else ())


def ended(trace: Trace) -> set[str]:
    """Return the requests that end in a trace."""
    return {str(mark.attrs["rid"]) for mark in trace.marks if mark.name == "finish"}


def prompt_lens(trace: Trace) -> dict[str, int]:
    """Return the tokens of each request's prompt, from its first cache lookup."""
    sizes: dict[str, int] = {}
    for mark in trace.marks:
        if mark.name == "match" and "prompt_len" in mark.attrs:
            sizes.setdefault(str(mark.attrs["rid"]), int(mark.attrs["prompt_len"]))
    return sizes


# -- How close the call was where two runs differ: the two largest logits at that place ------------


class Choice(NamedTuple):
    """A choice of a token, and the distance of the two largest logits there."""

    margin: float
    rid: str
    position: int  # index into the request's output


def choices_after(
    device: str, model: Model, config: SchedulerConfig, prompts: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
) -> list[Choice]:  # fmt: skip
    """Return the choices after each prompt and each token of its output, computed again.

    Each text is a prompt with log-probabilities, so the logits are those before penalties and
    masks.
    """
    again = list[Request]()
    for rid, output in outputs.items():
        wish = SamplingParams(
            max_new_tokens=1, return_logprob=True, top_logprobs_num=2,
            logprob_start_len=len(prompts[rid]) - 1,
        )  # fmt: skip
        again.append(Request(rid, [*prompts[rid], *output], wish))
    run_loop("serial", open_device(device), model, again, config)
    found = list[Choice]()
    for req in again:
        places = [item for item in chain(*logprobs_of(req)) if len(item.top_logprobs) == 2]
        for position, item in enumerate(places):
            (first, _), (second, _) = item.top_logprobs
            found.append(Choice(first - second, req.rid, position))
    return found


def with_margin(
    found: Difference, device: str, model: Model, config: SchedulerConfig,
    requests: Sequence[Request], serial: Run,
) -> Difference:  # fmt: skip
    """Return the difference with the top-2 logit margin there."""
    prompts = {req.rid: req.prompt for req in requests}
    agreed = {found.rid: serial.outputs[found.rid][: found.position]}
    choices = choices_after(device, model, config, prompts, agreed)
    return replace(found, margin=choices[-1].margin) if choices else found


def closest_choice(
    device: str, model: Model, config: SchedulerConfig, requests: Sequence[Request], serial: Run
) -> Choice | None:
    """Return the closest greedy choice of the serial run; None if it has no such choice."""
    prompts = {req.rid: req.prompt for req in requests if req.params.is_greedy and req.prompt}
    told = {rid: serial.outputs.get(rid, []) for rid in prompts}
    outputs = {rid: tokens[:-1] for rid, tokens in told.items() if tokens}
    return min(choices_after(device, model, config, prompts, outputs), default=None)


@dataclass(frozen=True)
class Difference:
    """The first place where a run departs from the baseline.

    A token is None if that run had already ended. ``margin`` is the distance between the two
    largest logits there, if it was measured: a tiny one indicates rounding, a large one a
    scheduling bug. If one run had ended, ``total`` is the number of tokens of the other.
    """

    loop: str
    rid: str
    position: int  # index into the request's output
    expected: int | None
    got: int | None
    margin: float | None = None
    total: int | None = None

    def __str__(self) -> str:
        who, at = f"{self.loop}: request {self.rid}", self.position
        if self.got is None:
            return f"{who} ended earlier: after {at} tokens, the baseline after {self.total}"
        if self.expected is None:
            return f"{who} ended later: after {self.total} tokens, the baseline after {at}"
        text = f"{who} differs first at output {at}: expected {self.expected}, got {self.got}"
        return text if self.margin is None else f"{text} (top-2 logit margin {self.margin:.3g})"


def first_difference(
    loop: str, baseline: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]
) -> Difference | None:
    """Return the earliest difference of all requests, by position and then by request."""
    every = (differs(loop, rid, one, outputs.get(rid, ())) for rid, one in baseline.items())
    return min(filter(None, every), key=lambda item: item.position, default=None)


def differs(
    loop: str, rid: str, baseline: Sequence[int], output: Sequence[int]
) -> Difference | None:
    """Return the first difference of one request."""
    total = max(len(baseline), len(output))
    for at, (expected, got) in enumerate(zip_longest(baseline, output)):
        if expected != got:
            is_end = None in (expected, got)
            return Difference(loop, rid, at, expected, got, total=total if is_end else None)
    return None


# -- The tokens that clients received, from a trace alone; and where two runs differ ---------------


class HeardToken(NamedTuple):
    """A token that a client received, its step (0: another scheduler's), and the time."""

    token: int
    step: int
    time: int  # nanoseconds


def tokens_heard(trace: Trace) -> dict[str, list[HeardToken]]:
    """Return the tokens that the client of each request received, from the marks ``tokens``.

    Raises:
        ValueError: the trace has no mark of delivered tokens.
    """
    marks = [mark for mark in trace.marks if mark.name == "tokens"]
    if not marks and any(item.step for item in trace.slices):
        raise ValueError(
            f"The trace of {trace.loop} has no mark 'tokens', so the delivered tokens are not "
            "known."
        )
    told: dict[str, list[HeardToken]] = {}
    for mark in marks:
        if mark.attrs.get("side") == "prefill":
            continue  # no client receives that token
        for rid, token in zip(mark.attrs["rids"], mark.attrs["tokens"], strict=True):
            told.setdefault(rid, []).append(HeardToken(token, mark.attrs["step"], mark.time))
    return told


def differences(baseline: Trace, trace: Trace) -> list[Difference]:
    """Return the first difference of each request of two runs of one workload, by position.

    If a request was aborted in either run, only the tokens that both received are compared.

    Raises:
        ValueError: a trace has no mark of delivered tokens.
    """
    expected, got = tokens_heard(baseline), tokens_heard(trace)
    cut, found = {*gave_up(baseline), *gave_up(trace)}, list[Difference | None]()
    for rid in dict.fromkeys([*expected, *got]):
        one, other = ([item.token for item in side.get(rid, [])] for side in (expected, got))
        size = min(len(one), len(other)) if rid in cut else None
        found.append(differs(trace.loop, rid, one[:size], other[:size]))
    return sorted(filter(None, found), key=lambda item: item.position)


def gave_up(trace: Trace) -> Iterator[str]:
    """Yield the aborted requests, and those of an id that was refused.

    Their end depends on time, and so does the refusal.
    """
    for mark in trace.marks:
        is_abort = mark.name == "finish" and mark.attrs.get("reason") == "abort"
        if is_abort or mark.name == "refused":
            yield str(mark.attrs.get("rid", ""))


# -- From a trace alone: requests that end twice, tokens after an end, and wrong reads -------------


def find_bad_ends(trace: Trace) -> list[Offence]:
    """Return requests that ended twice, and tokens that came after an end, in order of time.

    A request that comes again under the same name starts a new life.
    """
    found = list[Offence]()
    for side, marks in heard(trace).items():
        came: defaultdict[str, list[int]] = defaultdict(list)
        for item in trace.slices:
            is_mine = is_host(item.lane) and item.lane.startswith(f"{side} " if side else "")
            for rid in item.rids if is_mine and item.name == "receive" else ():
                came[rid].append(item.end if trace.clock == "virtual" else item.start)
        ends: defaultdict[str, list[tuple[str, MarkMoment]]] = defaultdict(list)
        fresh = set[str]()  # ended since the last result, which may carry their last token
        refused = Counter[str]()  # requests that came while their name was in use
        for mark, now in marks:
            rids = [str(mark.attrs.get("rid", ""))]
            if mark.name == "refused":
                refused[rids[0]] += 1
            elif mark.name == "tokens":
                rids = list(dict.fromkeys(mark.attrs["rids"]))
            for rid in rids if mark.name in ("finish", "tokens") else ():
                lives = bisect_right(came[rid], now.time) - refused[rid]
                is_over = len(ends[rid]) >= max(1, lives)
                reason, before = ends[rid][-1] if is_over else ("", now)
                slices = tuple(dict.fromkeys([*before.slices, *now.slices]))
                story = ""
                if mark.name == "finish":
                    why = str(mark.attrs["reason"])
                    ends[rid].append((why, now))
                    fresh |= set() if is_over or why == "abort" else {rid}
                    if is_over:
                        story = f"{rid} ended twice: ({reason}) {before}, and again ({why}) {now}"
                elif is_over and rid not in fresh:
                    story = f"{rid} received a token of step {mark.attrs['step']} {now}, but it "
                    story += f"had ended ({reason}) {before}"
                found += [Offence(story, slices, "ends", rid, now.time)] if story else []
            if mark.name == "tokens":
                fresh.clear()
    return sorted(found, key=lambda item: item.time)


def find_misreads(trace: Trace) -> list[Offence]:
    """Return steps that read another request's future slot, in order of time."""
    found = [item for ledger in ledgers(trace).values() for _, item in ledger.misread]
    return sorted(found, key=lambda item: item.time)


# -- The story of a wrong token --------------------------------------------------------------------


@dataclass(frozen=True)
class WrongTokenStory:
    """The reason of a wrong token: the culprit, and the chain from the token back to it.

    ``is_known`` is False if the trace contains no violation: then the cause is inside an op.
    """

    culprit: Offence
    chain: tuple[Offence, ...]
    is_known: bool = True

    def __str__(self) -> str:
        return "\n".join([self.culprit.sentence, *(f"  {link}" for link in self.chain)])


def explain(
    difference: Difference,
    trace: Trace,
    prompts: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> WrongTokenStory:
    """Return the chain of events that produced a wrong token, the culprit first.

    ``prompts`` maps requests to prompts, which no trace contains. They are needed to find KV that
    was computed from another prompt.

    Raises:
        ValueError: the trace has no mark of delivered tokens, or no program of its lanes.
    """
    if not trace.program:
        raise ValueError(
            f"The trace of {trace.loop} has no program, so the writer of a value is not known."
        )
    rid, at, wanted = difference.rid, difference.position, difference.expected
    told = tokens_heard(trace).get(rid, [])
    is_heard = at < len(told)
    step = told[at].step if is_heard else told[-1].step if told else 0
    side = "decode" if any("side" in mark.attrs for mark in trace.marks) else ""
    past = Past(trace, side, prompts)
    if is_heard:
        instead = "nothing" if wanted is None else wanted
        said = f"{rid}'s output {at} is {difference.got} instead of {instead}; "
        said += f"step {step} sampled it"
    else:
        said = f"{rid} received {f'its last token from step {step}' if told else 'nothing'}, but "
        said += f"{wanted} should have followed"
    begin = Offence(said, past.ids(step, "sample"))
    for given, item in ledgers(trace)[past.side].misdelivered:
        if item.rid == rid and (given <= step or not is_heard):
            return WrongTokenStory(replace(item, slices=past.ids(given, "sample")), (begin,))
    if not is_heard:
        ends = (mark for mark in trace.marks if mark.name == "finish" and mark.attrs["rid"] == rid)
        end = next(ends, None)
        fate = f"it ended too early ({end.attrs['reason']})" if end else "the run stopped before it"
        culprit = Offence(f"output {at} of {rid} was never delivered: {fate}", begin.slices)
        return WrongTokenStory(culprit, (begin,), is_known=False)
    seen = {(step, rid)}
    waiting: deque[tuple[int, str, tuple[Offence, ...]]] = deque([(step, rid, (begin,))])
    while waiting:  # breadth first: the cause nearest to the token comes first
        here, whose, links = waiting.popleft()
        if fault := next(past.faults(here, whose, is_last=here == step), None):
            return WrongTokenStory(fault, links)
        for source, writer, what in past.sources(here, whose):
            if source and (source, writer) not in seen:
                seen.add((source, writer))
                said = f"step {here} read {what} for {whose}; step {source} had written it for "
                link = Offence(f"{said}{writer}", past.ids(source, "forward"))
                waiting.append((source, writer, (*links, link)))
    words = (
        f"step {step} read the right values for {rid}, as far as the trace shows, and computed a "
        "wrong one"
    )
    return WrongTokenStory(Offence(words, past.ids(step, "forward")), (begin,), is_known=False)


RELAYS = ("future map", "token pool", "prev sampled", "last sampled", "last tokens")
MEMORY = ("inputs", "page table", "kv")  # read by a step, besides its tokens
OUTPUT = "output"  # buffers of the device and of the host
GIVEN_UP = ("free", "release")  # acts after which cells hold nothing until they are written


class Past:
    """All accesses and changes of a run; ``side``: the scheduler that serves the clients."""

    def __init__(
        self,
        trace: Trace,
        side: str = "",
        prompts: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.side, self.words, self.ledger = side, Words(trace), ledgers(trace)[side]
        outputs = tokens_heard(trace) if prompts else {}
        self.tokens = {
            rid: (*prompt, *(item.token for item in outputs.get(rid, ())))
            for rid, prompt in prompts.items()
        }
        self.page_size, self.places = self._lay_out_pages(trace)
        self.of_op: defaultdict[int, list[Done]] = defaultdict(list)
        self.changes: defaultdict[str, list[Done]] = defaultdict(list)  # by resource
        for done in order_of(trace).done:
            if done.act.at:
                self.of_op[done.act.op].append(done)
            if done.act.kind in ("write", *GIVEN_UP):
                self.changes[done.act.resource].append(done)
        self.of_step: defaultdict[int, list[Slice]] = defaultdict(list)
        for item in trace.slices:
            self.of_step[item.step].append(item)
        self.misread = {(step, item.rid): item.sentence for step, item in self.ledger.misread}
        self.wrong = {(mark.attrs["step"], mark.attrs["rid"]): mark.attrs for mark in trace.marks
                      if mark.name == "wrong token"}  # fmt: skip

    def ops(self, step: int) -> Iterator[Slice]:
        """Yield the device slices of a step."""
        before = f"{self.side} " if self.side else ""
        for item in self.of_step[step]:
            if item.lane.startswith(before) and not is_host(item.lane):
                yield item

    def ids(self, step: int, name: str) -> tuple[int, ...]:
        """Return the ids of a step's slices with this name."""
        return tuple(item.id for item in self.ops(step) if item.name == name)

    def reads(self, step: int, rid: str, *memory: str) -> Iterator[Done]:
        """Yield a step's reads for a request, by its ops and ``process``, from these resources."""
        processes = (it for it in self.of_step[step] if it.name == "process")
        for item in chain(self.ops(step), processes):
            for done in self.of_op[item.id]:
                act = done.act
                is_asked = any(name in act.resource for name in memory)
                if act.kind == "read" and act.rid in ("", rid) and is_asked:
                    yield done

    def sources(self, step: int, rid: str) -> Iterator[tuple[int, str, str]]:
        """Yield the sources of a step's KV: the step, the request, and a slot in words."""
        for read in self.reads(step, rid, "kv"):
            for cell, change in self.newest(read).items():
                if change is not None:
                    what = self.words.cells(change.act.resource, str(cell))
                    yield self.words.step(change.act.op), change.act.rid, what

    def newest(self, read: Done) -> dict[int, Done | None]:
        """Return, by cell, the last write or free before a read, or None.

        A release counts only for reads that are launched after it.
        """
        cells = cells_of(read.act.at)
        changes = [
            it
            for it in self.changes[read.act.resource]
            if it.act.kind != "release" or it.is_before(read)
        ]
        found, wanted = dict[int, Done | None].fromkeys(cells), set(cells)
        for at in range(bisect_left(changes, read.when, key=lambda it: it.when) - 1, -1, -1):
            if not wanted:
                break
            for first, last in spans_of(changes[at].act.at):
                here = {cell for cell in wanted if first <= cell <= last}
                found |= dict.fromkeys(here, changes[at])
                wanted -= here
        return found

    # -- the violations of one step --------------------------------------------------------------

    def faults(self, step: int, rid: str, is_last: bool) -> Iterator[Offence]:
        """Yield the wrong reads of a step; of the last step, its wrong output too.

        The reason of a wrong token is among them, or the token itself is one.
        """
        wrong = self.wrong.get((step, rid))
        memory = (*((OUTPUT,) if is_last else ()), *(RELAYS if wrong else ()))
        for read in self.reads(step, rid, *memory):
            yield from self._faults_of(read, step, rid)
        if said := self.misread.get((step, rid)):
            yield Offence(said, self.ids(step, "forward"))
        elif wrong:
            source = self.words.op(int(wrong["source"]), "")
            took = f"the token of {source}" if wrong["source"] else "a token of no step"
            values = f": {wrong['got']} instead of {wrong['needs']}" if "got" in wrong else ""
            yield Offence(
                f"step {step} computes {rid} from {took}, which is not its newest one{values}",
                tuple(int(wrong[end]) for end in ("source", "reader") if wrong[end]),
            )
        for read in self.reads(step, rid, *MEMORY):
            yield from self._faults_of(read, step, rid)
        yield from self.foreign_kv(step, rid)

    def _lay_out_pages(
        self, trace: Trace
    ) -> tuple[int, Mapping[tuple[str, int], Sequence[tuple[int, int]]]]:
        """Return the page size, and for a request and a page its index by time."""
        size, places = 1, defaultdict[tuple[str, int], list[tuple[int, int]]](list)
        counts, matched = Counter[str](), Counter[str]()
        for mark in trace.marks:
            rid = str(mark.attrs.get("rid", ""))
            if mark.attrs.get("side", "") != self.side:
                continue
            if mark.name == "kv pool":
                size = int(mark.attrs["page_size"])
            elif mark.name == "match":
                matched[rid] = int(mark.attrs["hit_len"]) // size
            elif mark.name == "row alloc":
                counts[rid] = matched[rid]
            elif mark.name == "page alloc" and rid:
                for page in mark.attrs["pages"]:
                    places[rid, page].append((mark.time, counts[rid]))
                    counts[rid] += 1
        return size, places

    def foreign_kv(self, step: int, rid: str) -> Iterator[Offence]:
        """Yield the first KV of a step's reads that was computed from another request's tokens.

        A shared prefix has the same positions in both requests. A read of no request, such as that
        of a beam, does not count.
        """
        own, found = self.tokens.get(rid, ()), list[tuple[int, str, tuple[int, int]]]()
        for read in self.reads(step, rid, "kv"):
            for cell, change in self.newest(read).items() if read.act.rid else ():
                owner = change.act.rid if change else ""
                theirs, (page, at) = self.tokens.get(owner, ()), divmod(cell, self.page_size)
                if change is None or owner == rid or not theirs:
                    continue
                start = self.words.slices[change.act.op].start
                known = [index for since, index in self.places[owner, page] if since <= start]
                end = known[-1] * self.page_size + at + 1 if known else 0
                if not end or end > len(own) or own[:end] == theirs[:end]:
                    continue
                before = "" if own[: end - 1] == theirs[: end - 1] else " after another beginning"
                said = (
                    f"page {page} holds token {theirs[end - 1]} of {owner}{before}, and {rid} "
                    f"reads it as its token {own[end - 1]}"
                )
                found.append((end, said, (change.act.op, read.act.op)))
        for _, said, slices in sorted(found)[:1]:
            yield Offence(said, slices)

    def _faults_of(self, read: Done, step: int, rid: str) -> Iterator[Offence]:
        """Check a read: cells written for it, not freed since, and ordered with the read."""
        name, reader = read.act.resource, read.act.op
        who = self.words.op(reader, read.act.lane)
        for change in self.changes[name]:
            act = change.act
            if act.lane != read.act.lane and act.kind != "release" and read.is_unordered(change):
                at = next((cell for cell in cells_of(read.act.at) if is_in(cell, act.at)), None)
                if at is not None:
                    verb = "frees" if act.kind == "free" else "writes"
                    what, other = self.words.cells(name, str(at)), self.words.op(act.op, act.lane)
                    said = f"{who} reads {what}, which {other} {verb}, and nothing orders the two"
                    yield Offence(said, (act.op, reader), missing=(act.op, reader))
        for cell, newest in self.newest(read).items():
            what = self.words.cells(name, str(cell))
            if newest is None:
                if name.endswith("kv"):
                    said = f"{what}, which {who} reads for {rid}, was never written"
                    yield Offence(said, (reader,))
                continue
            act = newest.act
            if act.kind in GIVEN_UP or self._is_anothers(cell, newest, step, rid):
                did = "was freed" if act.kind in GIVEN_UP else "was written"
                did += f" by {self.words.op(act.op, act.lane)}"
                did += f" for {act.rid}" if act.rid and act.kind == "write" else ""
                yield Offence(f"{what} {did} before {who} reads it for {rid}", (act.op, reader))

    def _is_anothers(self, cell: int, change: Done, step: int, rid: str) -> bool:
        """Return whether a write took a buffer that a step still needs, or KV of a request.

        KV belongs to the request if a step touched the slot before, under the same lease.
        """
        act, commits = change.act, self.ledger.commits
        if OUTPUT in act.resource:
            return self.words.step(act.op) != step
        if not act.resource.endswith("kv") or act.rid == rid:
            return False
        mine = next((it for it in commits.get(step, ()) if it and it.rid == rid), None)
        return mine is not None and any(
            done.act.rid == rid and done.act.resource == act.resource
            and done.when < change.when and is_in(cell, done.act.at)
            for earlier, leases in commits.items() if earlier < step and mine in leases
            for item in self.of_step[earlier]
            for done in self.of_op[item.id]
        )  # fmt: skip
