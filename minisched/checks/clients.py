"""What clients say and hear: why each request ended, what was told of it, when, and to whom.

``Clients`` listens to a run from where clients are; the laws are the functions behind it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from ..core import FinishReason, Output, Request, ScheduleBatch
from ..core.sampling import shown
from ..engine.engine import Engine
from ..engine.frontend import AbortReq, Message
from ..engine.metrics import RequestMetrics
from ..scheduler.pd import PrefillScheduler
from .tokens.oracle import Alone, alone
from .workload import Workload


class GivenUp(NamedTuple):
    """An abort that was taken in while the request lived that had its id."""

    turn: int
    num_outputs: int  # tokens that the request had by then
    error: str  # why, where it is not the client who asked for it


class Clients:
    """Everything that clients said in a run, with the turn that took it in, and how they fared.

    Who lives is what the requests themselves say at the moment when a loop takes messages in, which
    may be later than they came, and not in each of its turns.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.turn = 0
        self.truth: dict[Request, Alone] = {}  # of those who came, in order
        self.in_use: set[Request] = set()  # who came while another one had their id
        self.given_up: dict[Request, GivenUp] = {}
        self.cached: dict[Request, int] = {}  # where the first step of a prompt begins
        self.late = ""  # the first turn that told clients less, or more, than it processed
        self.deaf = ""  # the first turn that took an abort in, and did not end the request
        self._tokens: Counter[str] = Counter()  # told so far, by name
        self._ends: Counter[str] = Counter()

    def watch(self, engine: Engine) -> None:
        """Before an engine starts; of the two of ``pd`` it listens to the one that clients hear."""
        if isinstance(engine.scheduler, PrefillScheduler):
            return
        self.engine, self._refusal = engine, engine.scheduler.config.refusal
        frontend, scheduler = engine.frontend, engine.scheduler
        take, on_output, on_commit = frontend.take, frontend.on_output, scheduler.on_commit

        def taken(now: int) -> list[Message]:
            messages = take(now)
            for message in messages:
                self._take(message)
            return messages

        def heard(output: Output) -> None:
            self._tokens[output.rid] += output.token is not None
            self._ends[output.rid] += output.finish_reason is not None
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

    def look(self, engine: Engine) -> None:
        """After each turn: what it has processed is told, and whom it was to end has ended."""
        if engine is not self.engine:
            return
        tokens, ends = Counter[str](), Counter[str]()
        for req in self.truth:
            tokens[req.name] += len(req.output_ids)
            ends[req.name] += req.finished
        for name in tokens if not self.late else ():
            told, known = self._tokens[name], tokens[name]
            if told != known:
                self.late = (
                    f"by the end of turn {self.turn} clients had heard {told} tokens of {name}, "
                    f"and {known} were processed"
                )
            elif self._ends[name] != ends[name]:
                self.late = (
                    f"by the end of turn {self.turn} clients had heard of {self._ends[name]} ends "
                    f"of {name}, and there were {ends[name]}"
                )
        for req, given_up in self.given_up.items():
            if given_up.turn == self.turn and not (self.deaf or req.finished):
                self.deaf = (
                    f"{req.name} was given up in turn {self.turn}, and at the end of that turn it "
                    "had not ended"
                )
        self.turn += 1


# -- whose each output is --------------------------------------------------------------------------


class Told(NamedTuple):
    """A request, and everything that was heard of it."""

    req: Request
    outputs: list[Output]


def told_each(workload: Workload, outputs: Sequence[Output]) -> list[Told]:
    """What was heard of each request, in order of arrival by name.

    An id may come back: up to an end all is the first one's who lives by that name, and so on. What
    comes behind the last end is the last one's, too. Who came in between and was refused as a
    namesake heard that and nothing else.
    """
    by_name: defaultdict[str, list[Request]] = defaultdict(list)
    for at in sorted(range(len(workload.requests)), key=lambda at: workload.arrivals[at]):
        by_name[workload.requests[at].name].append(workload.requests[at])
    heard: defaultdict[str, list[Output]] = defaultdict(list)
    for output in outputs:
        heard[output.rid].append(output)
    return [told for name, reqs in by_name.items() for told in told_of_name(reqs, heard[name])]


def told_of_name(reqs: Sequence[Request], outputs: Sequence[Output]) -> list[Told]:
    """The same for all requests of one name, in order of arrival."""
    spans, namesakes = [list[Output]()], deque[tuple[int, Output]]()
    for output in outputs:
        if output.namesake:
            namesakes.append((len(spans) - 1, output))  # it was refused when so many had ended
            continue
        spans[-1].append(output)
        if output.finish_reason:
            spans.append([])
    found, lives = list[Told](), list[Request]()
    for req in reqs:
        if namesakes and namesakes[0][0] < len(lives) and req.error == namesakes[0][1].error:
            found.append(Told(req, [namesakes.popleft()[1]]))  # one of them lived when it came
        else:
            lives.append(req)
    rest = iter(spans)
    found += [Told(req, next(rest, [])) for req in lives]
    found[-1].outputs.extend(chain(*rest, (output for _, output in namesakes)))
    return found


# -- the laws --------------------------------------------------------------------------------------


def find_ends(told: Sequence[Told], outputs: Sequence[Output]) -> Iterator[str]:
    """Who did not end once, or whose client heard other tokens than its own.

    An id may come back after its request's end, and only then; who ends with an error hears why.
    """
    for name in {output.rid: 0 for output in outputs}.keys() - {req.name for req, _ in told}:
        yield f"clients heard of {name}, whom nobody has sent"
    for req, heard in told:
        ends = sum(output.finish_reason is not None for output in heard)
        tokens = [output.token for output in heard if output.token is not None]
        if req.finish_reason is FinishReason.ERROR and not req.error:
            yield f"{req.name} ended with an error, and nobody knows which"
        if ends != 1 or req.finish_reason is None:
            yield f"{req.name} ended {ends} times"
        elif tokens != req.output_ids:
            yield f"{req.name} heard {tokens}, produced {req.output_ids}"
        elif heard[-1].finish_reason is None:
            yield f"{req.name} heard something behind its end"


def find_untold(clients: Clients, told: Sequence[Told]) -> Iterator[str]:
    """Whose client heard of another end than the request had, or than it has alone, or too late.

    Where a request got other tokens than alone, why it ended is not looked at: it follows.
    """
    if clients.late:
        yield clients.late
    for req, heard in told:
        said = next((output for output in heard if output.finish_reason), None)
        truth = clients.truth.get(req)
        if said is None or truth is None:
            continue
        if (said.finish_reason, said.error) != (req.finish_reason, req.error):
            yield f"{req.name} {ended(req)}, but its client heard that it {ended(said)}"
        elif said.namesake != (req in clients.in_use):
            whether = "another one" if req in clients.in_use else "nobody"
            yield f"{req.name} {ended(req)}, when {whether} had its id"
        elif clients.workload.has_failed(req):
            continue  # it was in a step that was to fail
        elif req not in clients.given_up and req.output_ids == truth.tokens:
            is_about = truth.error in req.error if truth.error else not req.error
            if req.finish_reason is not truth.finish_reason or not is_about:
                yield f"{req.name} {ended(req)}, alone it {ended(truth)}"


def ended(end: Request | Output | Alone) -> str:
    """How somebody ended, in words."""
    reason = end.finish_reason.value if end.finish_reason else "nothing"
    return f"ended with '{reason}'" + (f" ({end.error})" if end.error else "")


def find_miscounts(
    clients: Clients, told: Sequence[Told], counted: Sequence[RequestMetrics]
) -> Iterator[str]:
    """Of whom other numbers of tokens are told than those of its prompt, cache and output.

    A prompt's cached tokens are those before the first one that a step computed for it.
    """
    usages: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    truths: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for item in counted:
        usages[item.rid].append((item.prompt_tokens, item.cached_tokens, item.output_tokens))
    for req, heard in told:
        num_outputs = sum(output.token is not None for output in heard)
        if not req.problem():
            usage = len(req.prompt), clients.cached.get(req, 0), num_outputs
            truths[req.name].append(usage)
    for name, truth in truths.items():
        usage_in_order, truth = sorted(usages[name]), sorted(truth)
        if usage_in_order != truth:
            words = "tokens of prompt, cache and output"
            yield f"{name} is counted as {usage_in_order} {words}, but had {truth}"


def find_ignored(clients: Clients, told: Sequence[Told]) -> Iterator[str]:
    """Who was given up and did not end by that, in that turn; and who ended so without it."""
    if clients.deaf:
        yield clients.deaf
    for req, _ in told:
        given_up = clients.given_up.get(req)
        if given_up is None:
            if req.finish_reason is FinishReason.ABORT:
                yield f"{req.name} {ended(req)}, and nobody had given it up while it lived"
            continue
        who = f"{req.name} was given up in turn {given_up.turn}"
        if req.finish_reason is not FinishReason.ABORT:
            yield f"{who} and {ended(req)}"
        elif req.error != given_up.error:
            yield f"{who} ({given_up.error or 'by its client'}), but {ended(req)}"
        elif (late := len(req.output_ids) - given_up.num_outputs) > 0:
            yield f"{who} and got {late} tokens after that"
