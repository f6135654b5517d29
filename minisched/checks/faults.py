"""What can go wrong around a scheduler, sixteen kinds of it, and what must hold all the same.

A kind is a name and what it puts into an engine (``FAULTS``, behind the functions that do it). It
goes wrong once, at a chance that can be chosen: in a step on the device, of who asks, of memory, or
of a thread. The first five a drawn workload may have, too (``STEP_FAULTS``). What a fault may cost,
and whom it may not, says ``Aftermath``; ``judge.py:try_fault`` puts one into a case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..core import FinishReason, Output, Request, SamplingParams, ScheduleBatch
from ..devices.base import Device
from ..engine.engine import Engine
from ..engine.frontend import ClientStreams, ReaderStopped
from ..loops.pd import PrefillEngine
from ..models.base import ForwardBatch
from ..trace import Trace
from ..worker import Step
from ..worker.worker import COPY, SAMPLE, StepOp
from .case import Failure, Workload
from .laws import Told, find_ends
from .leaks import find_leaks

# -- A fault: something outside the scheduler that goes wrong once, at a place that can be chosen --

EVERYBODY = frozenset({"*"})  # in the place of request ids: whoever is there


@dataclass(eq=False)
class Fault:
    """What goes wrong, by name, and when: at the ``at``-th chance, from 1 on.

    Of a step that goes wrong, ``computing`` may say instead which one: the first that computes a
    position of a request.

    A run may have no such chance: then it was not ``is_hit``, and counts as not tried. ``touched``
    are the requests that may end because of it; all the others must not notice.
    """

    name: str
    at: int
    pick: int = 0  # a number that decides what else there is to decide
    computing: Failure | None = None
    is_hit: bool = False
    touched: set[str] = field(default_factory=set)
    num_chances: int = 0  # so far; of a fault that draws no moment, none are counted
    num_arrays: int = 0  # of which not each is a chance
    rid: str = ""  # whom it has chosen
    each_turn: Callable[[], None] = lambda: None

    @property
    def kind(self) -> FaultKind:
        """What it does, and what it may cost."""
        return FAULTS[self.name]

    def put_in(self, engine: Engine) -> None:
        """Change an engine before it starts; ``pd`` has two, and the ``client``'s comes last."""
        self.client = engine
        self.kind.put_in(self, engine)

    def may_end(self, rid: str) -> bool:
        """Whether a request may end because of it."""
        return self.is_hit and bool(self.touched & {rid, *EVERYBODY})

    def is_due(self, step: ForwardBatch | ScheduleBatch | None = None) -> bool:
        """Whether this chance is the one; called once at each, with the step if it is in one."""
        if self.computing is not None:
            return not self.is_hit and step is not None and computes(step, self.computing)
        self.num_chances += 1
        return self.num_chances == self.at

    def hit(self, *rids: str) -> None:
        """It has happened, to these requests."""
        self.is_hit = True
        self.touched.update(rids)


class FaultKind(NamedTuple):
    """What a fault changes before a run, and what is known of it.

    Those of whom it ``is_silent`` can't be told that they have ended: their reader is the fault.
    """

    put_in: Callable[[Fault, Engine], None] = lambda fault, engine: None
    says: str = ""  # stands in the reason of whoever ends with an error because of it
    prepare: Callable[[Fault, Workload], None] = lambda fault, workload: None
    open: Callable[[Fault, Device], None] = lambda fault, device: None
    fits: Callable[[str, str], bool] = lambda loop, device: True  # whether it can happen there
    is_silent: bool = False
    keeps_from_starting: bool = False  # then nothing runs, and a sentence says why
    kills: bool = False  # who is dead sees to nothing any more


def computes(step: ForwardBatch | ScheduleBatch, place: Failure) -> bool:
    """Whether a step computes a position of a request."""
    if isinstance(step, ForwardBatch):
        rids, columns = step.label.rids, step.extents
    else:
        rids, columns = step.rids, zip(step.starts, map(len, step.ids), strict=True)
    return any(
        rid == place.rid and start <= place.position < start + length
        for rid, (start, length) in zip(rids, columns, strict=True)
    )


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Put ``around(inner, *args, **options)`` in the place of a method of one object."""
    inner = getattr(owner, name)
    setattr(owner, name, lambda *args, **options: around(inner, *args, **options))


# -- Of one step on the device: its forward pass, its logits, its sampling, its copy ---------------


class BadLuck(RuntimeError):
    """What the device says when one of these faults makes it fail."""


def raise_once(fault: Fault, owner: Any, name: str, error: Exception) -> None:
    """The ``at``-th call of what a model has for a step raises."""

    def around(inner: Any, *args: Any) -> Any:
        batch = next(arg for arg in args if isinstance(arg, ForwardBatch))
        if fault.is_due(batch):
            fault.hit(*batch.label.rids)
            raise error
        return inner(*args)

    wrap(owner, name, around)


def forward_raises(fault: Fault, engine: Engine, error: Exception | None = None) -> None:
    """The ``at``-th forward pass raises, or where its layers run in stages, one of these."""
    is_cut = len(engine.worker.page_tables) > 1
    name = "forward_layer" if is_cut else "forward"
    raise_once(fault, engine.worker.model, name, error or BadLuck(fault.kind.says))


def sampling_raises(fault: Fault, engine: Engine) -> None:
    """The ``at``-th sampling raises."""
    raise_once(fault, engine.worker.model, "sample", BadLuck(fault.kind.says))


def out_of_memory(fault: Fault, engine: Engine) -> None:
    """A forward pass finds no memory; every other time it is an array that is shipped.

    A step ships several, so not each is a chance: it would always be in the first step. Which step
    an array was for, the requests' reasons say.
    """
    error = MemoryError("tried to allocate 2.00 GiB")  # as CUDA says it through torch, or Python
    if fault.pick % 2:
        forward_raises(fault, engine, error)
        return

    def asarray(inner: Any, values: Any) -> Any:
        fault.num_arrays += 1
        if fault.num_arrays % (1 + fault.pick // 2 % 9) == 0 and fault.is_due():
            fault.hit()
            raise error
        return inner(values)

    wrap(engine.device.xp, "asarray", asarray)


def not_numbers(fault: Fault, engine: Engine) -> None:
    """The logits of one row of the ``at``-th forward pass are NaN, and of no other."""

    def spoiled(forward: Any, batch: ForwardBatch, ids: Any, *args: Any) -> Any:
        if isinstance(ids, list) and ids and min(ids) < 0:
            raise BadLuck(f"{min(ids)} is no token")  # but what marks NaN
        logits = forward(batch, ids, *args)
        if fault.is_due(batch):
            row = fault.pick % len(batch.rows)
            if fault.computing is not None:
                row = batch.label.rids.index(fault.computing.rid)
            fault.hit(batch.label.rids[row])
            first = sum(batch.logit_lens[:row])  # those that it samples from are its last ones
            for at in range(first, first + batch.logit_lens[row]):
                nan = float("nan")
                logits[at] = [nan] * len(logits[at]) if isinstance(logits, list) else nan
        return logits

    is_cut = len(engine.worker.page_tables) > 1
    wrap(engine.worker.model, "compute_logits" if is_cut else "forward", spoiled)


def copy_fails(fault: Fault, engine: Engine) -> None:
    """The ``at``-th copy fails: of tokens or log-probabilities to the host, or of KV on ``pd``."""
    failing: tuple[Step | None, str] = (None, "")  # and which of its copies

    def fail(*args: Any) -> Any:
        raise BadLuck("the copy did not arrive")

    def queue(inner: Any, step: Step, op: StepOp) -> Any:
        nonlocal failing
        if op.name == COPY.name and fault.is_due(step.batch):
            fault.hit(*step.batch.rids)
            wants = any(req.params.return_logprob for req in step.batch.reqs)
            failing = step, "logprobs" if wants and fault.pick % 2 else COPY.gives
        return inner(step, replace(op, run=fail) if (step, op.gives) == failing else op)

    def transfer(inner: Any, rid: str, *args: Any) -> None:
        if fault.is_due():
            fault.hit(rid)
            raise BadLuck("the KV did not arrive")
        inner(rid, *args)

    if isinstance(engine, PrefillEngine) and fault.pick % 2:
        wrap(engine, "copy_kv", transfer)
    else:
        wrap(engine.worker, "queue", queue)


# -- Of who asks: giving up at any moment, Ctrl-C, and a reader that is not there any more ---------


def choose(fault: Fault, workload: Workload) -> None:
    """Choose a request."""
    fault.rid = workload.requests[fault.pick % len(workload.requests)].rid


def given_up(fault: Fault, engine: Engine) -> None:
    """A request is given up after the ``at``-th turn, or output: twice, and one that nobody has.

    Every other time it is a client that says so while it is told something.
    """

    def look() -> None:
        if fault.is_due():
            fault.hit(fault.rid)
            for rid in (fault.rid, "nobody", fault.rid):
                fault.client.frontend.abort(rid)

    def on_output(inner: Any, output: Output) -> None:
        inner(output)
        look()

    if fault.pick // 7 % 2:
        wrap(engine.frontend, "on_output", on_output)
    else:
        fault.each_turn = look


def ctrl_c(fault: Fault, engine: Engine) -> None:
    """Ctrl-C after the ``at``-th turn, as the handler of the signal does it."""

    def look() -> None:
        if fault.is_due():
            fault.hit(*EVERYBODY)
            engine.frontend.interrupt()

    fault.each_turn = look


def reader_raises(fault: Fault, engine: Engine) -> None:
    """A client's callback raises from the ``at``-th output on; or it is the pipe of all."""
    is_pipe = fault.name == "pipe closes"  # everybody is written to it

    def on_output(inner: Any, output: Output) -> None:
        if fault.is_due():
            fault.hit(*(EVERYBODY if is_pipe else [output.rid]))
        if fault.may_end(output.rid):
            if is_pipe:
                raise BrokenPipeError(32, "Broken pipe")  # as the operating system says it
            raise ConnectionResetError("the client has gone")
        inner(output)

    wrap(engine.frontend, "on_output", on_output)


def choose_reader(fault: Fault, workload: Workload) -> None:
    """Choose one that will hear more than is kept, and then its end, if there is such a one."""
    requests = workload.requests
    able = [req for req in requests if req.params.max_new_tokens >= fault.at + 2] or requests
    fault.rid = able[fault.pick % len(able)].rid


def reader_stops(fault: Fault, engine: Engine) -> None:
    """A client reads no more: what is for it is kept, up to ``at`` outputs, and then it is over.

    The others read from streams of the same limited length, all at once.
    """
    streams = ClientStreams(limit=fault.at)

    def on_output(inner: Any, output: Output) -> None:
        try:
            streams.hear(output)
        except ReaderStopped:
            fault.hit(output.rid)
            raise
        if output.rid != fault.rid:
            for heard in streams.read_now(output.rid):
                inner(heard)
        else:
            fault.num_chances += 1
            inner(output)

    wrap(engine.frontend, "on_output", on_output)


# -- Of memory: a request for which there never is enough ------------------------------------------

TOO_LARGE = "too large"


def none_at_start(fault: Fault, device: Device) -> None:
    """The device has no memory for what a run needs from its beginning to its end.

    KV, page table, relay or outputs find none, from the ``at``-th time on.
    """

    def memory(inner: Any, name: str, size: int) -> Any:
        if fault.is_due():
            fault.hit()
        if fault.is_hit:
            raise MemoryError(f"tried to allocate {8 * size} bytes")
        return inner(name, size)

    wrap(device, "memory", memory)


def never_fits(fault: Fault, workload: Workload, max_new_tokens: int = 0) -> None:
    """A request comes that needs more than the whole pool, or the context: it is refused."""
    params = SamplingParams(
        max_new_tokens=max_new_tokens or workload.config.num_slots, ignore_eos=True
    )
    workload.requests = [*workload.requests, Request(TOO_LARGE, [1, 2], params)]
    workload.arrivals = [*workload.arrivals, fault.at]
    fault.hit(TOO_LARGE)


def longer_than_the_pool(fault: Fault, workload: Workload) -> None:
    """One request more, as long as the context, and so longer than the pool."""
    config = workload.config
    longest = max(config.context_len, config.num_slots + config.page_size)
    workload.config = replace(config, context_len=longest)
    never_fits(fault, workload, longest - 2)
    fault.is_hit = False


def runs_out(fault: Fault, engine: Engine) -> None:
    """A request that nobody refused runs out of pages on the way, when all others have made room.

    The scheduler's own refusal is switched off for it, and the context made longer than the pool:
    an engine that does not bound outputs has such requests every day. It is hit when the request
    has memory and can't go on.
    """
    scheduler, refusal = engine.scheduler, engine.scheduler.config.refusal

    def of_others(req: Request) -> str | None:
        return None if req.rid == TOO_LARGE else refusal(req)

    def look() -> None:
        req = scheduler.live.get(TOO_LARGE)
        fault.is_hit |= req is not None and req.lease is not None

    object.__setattr__(scheduler.config, "refusal", of_others)
    fault.each_turn = look


# -- Of who works beside the host: a thread of the loop's own that dies, or one of the device's ----

WITH_A_THREAD = ("overlap_thread", "mindie_plugin", "mindie_dual", "pd")  # loops


class Death(RuntimeError):
    """What kills a thread."""


class Poison:
    """Something in a thread's queue that it can't run, nor survive."""

    @property
    def slice_id(self) -> int:
        """Nobody reads it and lives."""
        raise Death("it was killed")

    def drop(self, error: BaseException) -> None:
        """Nobody waits for it."""

    def run(self) -> None:
        """Or runs it."""
        raise Death("it was killed")


def kill(fault: Fault, lane: Any, signals: Sequence[Any] = ()) -> None:
    """Let a lane die at the ``at``-th launch; what is queued before the poison is still run.

    On ``sim`` all fails that it is to run then, as with a thread that is dead, and nobody waits for
    its ``signals`` for ever.
    """

    def fail(*args: Any) -> Any:
        for signal in signals:
            signal.set()
        raise Death("the thread has died: it was killed")

    def poison(launch: Any, *args: Any, **more: Any) -> Any:
        op = launch(*args, **more)
        if fault.is_due():
            fault.hit(*EVERYBODY)
            lane.queue.put(Poison())
        return op

    def launch_dead(launch: Any, fn: Any, *args: Any, **more: Any) -> Any:
        if fault.is_due():
            fault.hit(*EVERYBODY)
        return launch(fail if fault.is_hit else fn, *args, **more)

    wrap(lane, "launch", poison if hasattr(lane, "thread") else launch_dead)


def thread_dies(fault: Fault, engine: Engine) -> None:
    """The loop's own thread dies when the ``at``-th call for it has been queued."""
    signals = list[Any]()

    def signal(inner: Any, name: str) -> Any:
        signals.append(inner(name))
        return signals[-1]

    def thread(inner: Any, name: str) -> Any:
        found = inner(name)
        if "launch" not in vars(found):
            kill(fault, found, signals)
        return found

    wrap(engine.device, "thread", thread)
    if engine.device.clock == "virtual":
        wrap(engine.device, "signal", signal)


def thread_raises(fault: Fault, engine: Engine) -> None:
    """A call of the loop's own thread raises before it has launched anything of a step."""

    def launch(inner: Any, step: Step, *args: Any) -> Any:
        if not step.launched and fault.is_due():
            fault.hit(*step.batch.rids)
            raise Death(fault.kind.says)
        return inner(step, *args)

    wrap(engine.worker, "launch", launch)


def stream_dies(fault: Fault, engine: Engine) -> None:
    """The forward stream stops: its thread dies, on ``mlx`` that which evaluates, or watches."""
    if engine.device.name != "mlx":
        stream = next(op.stream for op in engine.worker.recipe if op.name == SAMPLE.name)
        kill(fault, engine.device.stream(stream))
        return
    runner: Any = vars(engine.device)["_runner"]

    def submit(inner: Any, *args: Any) -> None:
        if fault.is_due():
            fault.hit(*EVERYBODY)
            vars(runner)["_watcher" if fault.pick % 2 else "_evaluator"].shutdown()
        inner(*args)

    wrap(runner, "submit", submit)


# -- All of them -----------------------------------------------------------------------------------

STEP_FAULTS = {
    "forward raises": FaultKind(forward_raises, "the device is out of luck"),
    "out of device memory": FaultKind(
        out_of_memory, "out of device memory (tried to allocate 2.00 GiB)"
    ),
    "sampling raises": FaultKind(sampling_raises, "no token could be chosen"),
    "NaN logits": FaultKind(not_numbers, "not numbers (NaN)"),
    "copy fails": FaultKind(copy_fails, "did not arrive"),
}
"""What may go wrong in a step that a workload names, by name."""
FAULTS = {
    **{name: STEP_FAULTS[name] for name in STEP_FAULTS if name != "out of device memory"},
    "stream dies": FaultKind(
        stream_dies,
        "has died",
        fits=lambda loop, device: device != "cuda",  # whose streams are no threads
        kills=True,
    ),
    "out of device memory": STEP_FAULTS["out of device memory"],
    "worker call raises": FaultKind(
        thread_raises,
        "the thread is out of luck",
        fits=lambda loop, device: loop in WITH_A_THREAD and loop != "pd",  # it does not launch
    ),
    "worker thread dies": FaultKind(
        thread_dies, "has died", fits=lambda loop, device: loop in WITH_A_THREAD, kills=True
    ),
    "no memory at start": FaultKind(open=none_at_start, keeps_from_starting=True),
    "never fits": FaultKind(prepare=never_fits),
    "runs out of pages": FaultKind(
        runs_out,
        prepare=longer_than_the_pool,
        fits=lambda loop, device: loop != "pd",  # it reserves all that a request may ever want
    ),
    "abort": FaultKind(given_up, prepare=choose),
    "Ctrl-C": FaultKind(ctrl_c),
    "reader raises": FaultKind(reader_raises, is_silent=True),
    "reader stops reading": FaultKind(reader_stops, prepare=choose_reader, is_silent=True),
    "pipe closes": FaultKind(reader_raises, is_silent=True),
}
"""What can go wrong, by name."""


def step_fault(failure: Failure) -> Fault:
    """What is to go wrong in the step of a workload's failure; out of memory is the pass itself."""
    return Fault(failure.kind, at=0, pick=1, computing=failure)


# -- What must hold although something has gone wrong: who may have ended, and who may not notice --

FATES_OF_THE_DEAD = ("it never ran", "thread, and nobody has waited for it")
ENDED_EARLY = (FinishReason.ERROR, FinishReason.ABORT)


class Whom(NamedTuple):
    """How many requests a trial has judged; those that the workload itself gives up are nowhere.

    ``ended`` ended early or were refused, ``whole`` got all their tokens. Of the ended, ``struck``
    are those who did so because of the fault; of the whole, ``spared`` are those whom it did not
    touch. ``can_spare`` is whether there could be such a one: not if the fault touches everybody,
    or if there is only one request.
    """

    ended: int = 0
    whole: int = 0
    struck: int = 0
    spared: int = 0
    can_spare: bool = False

    @property
    def tells(self) -> bool:
        """Whether there is somebody to judge on either side."""
        return self.struck > 0 and (self.spared > 0 or not self.can_spare)


@dataclass(frozen=True)
class Aftermath:
    """A run that is over, and the fault that was in it: each law is what breaks it, in sentences.

    A request may have ended early by the fault, or because the workload itself gives it up.
    """

    fault: Fault
    workload: Workload
    trace: Trace

    def is_given_up(self, req: Request) -> bool:
        """Whether the workload itself gives a request up, at one time or another."""
        return req.rid in self.workload.aborts.values()

    def is_touched(self, req: Request) -> bool:
        """Whether the fault has to do with a request; where it can't say with whom, they do."""
        return self.fault.may_end(req.rid) or (self.is_unknown and req.rid in self.failed_with)

    @property
    def is_unknown(self) -> bool:
        """Whether the fault has struck and can't say whom: then requests name the step."""
        return self.fault.is_hit and not self.fault.touched

    @cached_property
    def failed_steps(self) -> set[str]:
        """The steps that requests name as the reason of their end."""
        reasons = [req.error.split() for req in self.workload.requests]
        return {words[1] for words in reasons if words[:1] == ["step"]}

    @cached_property
    def failed_with(self) -> set[str]:
        """All who were in a step that has failed."""
        mine = (item for item in self.trace.slices if str(item.step) in self.failed_steps)
        return {rid for item in mine for rid in item.rids}

    def may_have_ended(self, req: Request) -> bool:
        """Whether it ended early and may have."""
        may = self.is_given_up(req) or self.is_touched(req)
        return may and req.finish_reason in ENDED_EARLY

    def bad_reasons(self) -> Iterator[str]:
        """Who ends early has a reason, and a step failed because of the fault and no other."""
        if self.is_unknown and len(self.failed_steps) > 1:
            yield f"steps {', '.join(sorted(self.failed_steps))} have failed, and one was to"
        for req in self.workload.requests:
            if req.finish_reason in ENDED_EARLY and req.output_ids and not self.may_have_ended(req):
                yield f"{req.rid} ended although the fault was none of its own"
            if req.finish_reason is not FinishReason.ERROR:
                continue
            if not req.error:
                yield f"{req.rid} ended with an error, and nobody knows why"
            if req.error.startswith("step ") and self.fault.kind.says not in req.error:
                yield f"{req.rid} ended with {req.error!r}, and not with {self.fault.kind.says!r}"

    def bad_ends(self, told: Sequence[Told]) -> Iterator[str]:
        """Every request ended, once, and its client heard its tokens, if it heard anything."""
        for req, outputs in told:
            if not (self.fault.kind.is_silent and self.fault.may_end(req.rid)):
                yield from find_ends([(req, outputs)], outputs)
                continue
            ends = sum(output.finish_reason is not None for output in outputs)
            heard = [output.token for output in outputs if output.token is not None]
            if req.finish_reason is None or ends > 1:
                yield f"{req.rid} ended {ends} times"
            if heard != req.output_ids[: len(heard)]:
                yield f"{req.rid} heard {heard}, produced {req.output_ids}"

    def leaks(self) -> Iterator[str]:
        """Whoever took memory gave it back; and what was launched has ended, as somebody knows.

        A dead thread has not run what was launched for it. Or it has, in time, and nobody asked:
        whoever was about to has heard of its death first.
        """
        for leak in map(str, find_leaks(self.trace)):
            if not (self.fault.kind.kills and leak.endswith(FATES_OF_THE_DEAD)):
                yield leak

    def whom(self, has_run: bool) -> Whom:
        """Count them, when every law has held; where nothing has run, everybody is struck."""
        if not has_run:
            return Whom(struck=len(self.workload.requests))
        others = [req for req in self.workload.requests if not self.is_given_up(req)]
        ended = [req for req in others if req.finish_reason in ENDED_EARLY]
        whole = [req for req in others if req.finish_reason not in (None, *ENDED_EARLY)]
        return Whom(
            len(ended),
            len(whole),
            sum(self.is_touched(req) for req in ended),
            sum(not self.is_touched(req) for req in whole),
            len(others) > 1 and not EVERYBODY & self.fault.touched,
        )
