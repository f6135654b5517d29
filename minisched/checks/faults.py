"""How often each fault was tried and survived, on each loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, ClassVar, NamedTuple

from ..core import FinishReason, Output, Request, SamplingParams
from ..devices.base import Device
from ..devices.registry import open_device
from ..engine.engine import Engine
from ..engine.frontend import ClientStreams, ReaderStopped
from ..loops.design import LOOPS
from ..trace import Trace
from ..worker import Step
from ..worker.worker import SAMPLE
from .books import check_idle, threads
from .case import Case, Workload, fresh
from .draw import Design, all_designs, draw, read_design
from .fault import (
    EVERYBODY,
    CopyFails,
    Fault,
    ForwardRaises,
    NotNumbers,
    OutOfMemory,
    SamplingRaises,
    wrap,
)
from .judge import STOPPED_BY, Finding, Witness, broken, hash_model, run
from .laws import Broken, check_leaks
from .leaks import find_leaks
from .many import base_of, processes, unheard_interrupt
from .oracle import Refusal, tokens_alone

# -- Whom a fault has cost something, and whom it has not ------------------------------------------


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


def whom(after: Aftermath) -> Whom:
    """Count them, when every law has held.

    Raises:
        Broken: requests name several failed steps, of which only one can have failed.
    """
    others = [req for req in after.workload.requests if not after.is_given_up(req)]
    ended = [req for req in others if req.finish_reason in ENDED_EARLY]
    whole = [req for req in others if req.finish_reason not in (None, *ENDED_EARLY)]
    return Whom(
        len(ended),
        len(whole),
        sum(after.is_touched(req) for req in ended),
        sum(not after.is_touched(req) for req in whole),
        can_spare(after.fault, others),
    )


def can_spare(fault: Fault, others: list[Request]) -> bool:
    """Whether a fault could leave one of these alone: there are two, and it spares somebody."""
    return len(others) > 1 and not EVERYBODY & fault.touched


def kept_from_starting(num_requests: int) -> Whom:
    """Nothing has run: nobody has ended, and everybody is struck."""
    return Whom(struck=num_requests)


# -- Faults of who asks: giving up at any moment, Ctrl-C, and a reader that is not there any more


class Aborted(Fault):
    """A request is given up after the ``at``-th turn, or output: twice, and one that nobody has."""

    name: ClassVar[str] = "abort"

    def prepare(self, workload: Workload) -> None:
        """Choose one."""
        self.rid = workload.requests[self.pick % len(workload.requests)].rid

    def put_in(self, engine: Engine) -> None:
        """Every other time it is a client that says so while it is told something."""
        self.says_it_at_once = bool(self.pick // 7 % 2)
        self.client = engine
        if self.says_it_at_once:
            wrap(engine.frontend, "on_output", self.around)

    def around(self, on_output: Any, output: Output) -> None:
        """In the middle of a turn."""
        on_output(output)
        self.look()

    def each_turn(self, engine: Engine) -> None:
        """Between two turns."""
        if engine is self.client and not self.says_it_at_once:
            self.look()

    def look(self) -> None:
        """Give up, if it is time."""
        if self.is_due():
            self.hit(self.rid)
            for rid in (self.rid, "nobody", self.rid):
                self.client.frontend.abort(rid)


class CtrlC(Fault):
    """Ctrl-C after the ``at``-th turn."""

    name: ClassVar[str] = "Ctrl-C"

    def put_in(self, engine: Engine) -> None:
        """The side that clients talk to hears it."""
        self.client = engine

    def each_turn(self, engine: Engine) -> None:
        """As the handler of the signal does."""
        if engine is self.client and self.is_due():
            self.hit(*EVERYBODY)
            engine.frontend.interrupt()


class ReaderRaises(Fault):
    """A client's callback raises from the ``at``-th output on."""

    name: ClassVar[str] = "reader raises"
    is_silent: ClassVar[bool] = True

    def put_in(self, engine: Engine) -> None:
        """Between the engine and its clients."""
        wrap(engine.frontend, "on_output", self.around)

    def around(self, on_output: Any, output: Output) -> None:
        """Raise for one request."""
        if self.is_due():
            self.hit(output.rid)
        if self.may_end(output.rid):
            raise self.error()
        on_output(output)

    def error(self) -> Exception:
        """What it raises."""
        return ConnectionResetError("the client has gone")


class PipeCloses(ReaderRaises):
    """The one stream to which everything is written closes at the ``at``-th output."""

    name: ClassVar[str] = "pipe closes"

    def hit(self, *rids: str) -> None:
        """Everybody is written to it."""
        super().hit(*EVERYBODY)

    def error(self) -> Exception:
        """As the operating system says it."""
        return BrokenPipeError(32, "Broken pipe")


class ReaderStops(Fault):
    """A client reads no more: what is for it is kept, up to ``at`` outputs, and then it is over."""

    name: ClassVar[str] = "reader stops reading"
    is_silent: ClassVar[bool] = True

    def prepare(self, workload: Workload) -> None:
        """Choose one that will hear more than is kept, and then its end, if there is such a one."""
        requests = workload.requests
        able = [req for req in requests if req.params.max_new_tokens >= self.at + 2] or requests
        self.rid = able[self.pick % len(able)].rid

    def put_in(self, engine: Engine) -> None:
        """Clients read from streams of a limited length."""
        self.streams = ClientStreams(limit=self.at)
        wrap(engine.frontend, "on_output", self.around)

    def around(self, on_output: Any, output: Output) -> None:
        """All read at once, but for one."""
        try:
            self.streams.hear(output)
        except ReaderStopped:
            self.hit(output.rid)
            raise
        if output.rid != self.rid:
            for heard in self.streams.read_now(output.rid):
                on_output(heard)
        else:
            self.num_chances += 1
            on_output(output)


# -- Faults of memory: a request for which there never is enough -----------------------------------

TOO_LARGE = "too large"


class NoneAtStart(Fault):
    """The device has no memory for what a run needs from its beginning to its end."""

    name: ClassVar[str] = "no memory at start"
    keeps_from_starting: ClassVar[bool] = True

    def open(self, device: Device) -> None:
        """Wrap what takes it: KV, page table, relay, outputs."""
        wrap(device, "memory", self.around)

    def around(self, memory: Any, name: str, size: int) -> Any:
        """Find none, from the ``at``-th time on."""
        if self.is_due():
            self.hit()
        if self.is_hit:
            raise MemoryError(f"tried to allocate {8 * size} bytes")
        return memory(name, size)


class NeverFits(Fault):
    """A request comes that needs more than the whole pool, or the context: it is refused."""

    name: ClassVar[str] = "never fits"

    def prepare(self, workload: Workload) -> None:
        """One more request."""
        self.add(workload, max_new_tokens=workload.config.num_slots)

    def add(self, workload: Workload, max_new_tokens: int) -> None:
        """It comes in the ``at``-th turn."""
        params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
        workload.requests = [*workload.requests, Request(TOO_LARGE, [1, 2], params)]
        workload.arrivals = [*workload.arrivals, self.at]
        self.hit(TOO_LARGE)


class RunsOut(NeverFits):
    """A request that nobody refused runs out of pages on the way, when all others have made room.

    The scheduler's own refusal is switched off for it, and the context made longer than the pool:
    an engine that does not bound outputs has such requests every day.
    """

    name: ClassVar[str] = "runs out of pages"

    @classmethod
    def fits(cls, loop: str, device: str) -> bool:
        """``pd`` reserves all the pages that a request may ever want, before it begins."""
        return loop != "pd"

    def prepare(self, workload: Workload) -> None:
        """One more request, as long as the context, and so longer than the pool."""
        config = workload.config
        longest = max(config.context_len, config.num_slots + config.page_size)
        workload.config = replace(config, context_len=longest)
        self.add(workload, max_new_tokens=longest - 2)
        self.is_hit = False

    def put_in(self, engine: Engine) -> None:
        """Refuse it no more."""
        refusal = engine.scheduler.config.refusal
        object.__setattr__(
            engine.scheduler.config, "refusal",
            lambda req: None if req.rid == TOO_LARGE else refusal(req),
        )  # fmt: skip

    def each_turn(self, engine: Engine) -> None:
        """It is hit when the request has memory and can't go on."""
        req = engine.scheduler.live.get(TOO_LARGE)
        self.is_hit |= req is not None and req.lease is not None


# -- Faults of who works beside the host: a thread of its own that dies, or one of the device's ----

THREAD_OF = {
    "overlap_thread": "worker thread",
    "mindie_plugin": "forward thread",
    "mindie_dual": "forward thread",
    "pd": "kv transfer",
}


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


class ThreadDies(Fault):
    """The loop's own thread dies when the ``at``-th call for it has been queued."""

    name: ClassVar[str] = "worker thread dies"
    says: ClassVar[str] = "has died"

    @classmethod
    def fits(cls, loop: str, device: str) -> bool:
        """Only some loops have one."""
        return loop in THREAD_OF

    def put_in(self, engine: Engine) -> None:
        """Wrap the way to the thread, wherever the loop takes it."""
        wrap(engine.device, "thread", self.around)
        if engine.device.clock == "virtual":
            self.signals: list[Any] = []
            wrap(engine.device, "signal", self.around_signal)

    def around_signal(self, signal: Any, name: str) -> Any:
        """Know what might be waited for."""
        self.signals.append(signal(name))
        return self.signals[-1]

    def around(self, thread: Any, name: str) -> Any:
        """The thread, which dies with time."""
        found = thread(name)
        if "launch" not in vars(found):
            self.kill(found)
        return found

    def kill(self, lane: Any) -> None:
        """Let a lane die at the ``at``-th launch; on ``sim`` all fails that it is to run then."""
        if hasattr(lane, "thread"):
            wrap(
                lane, "launch", lambda launch, *args, **more: self.poison(lane, launch, args, more)
            )
        else:
            wrap(lane, "launch", self.launch_dead)

    def poison(self, lane: Any, launch: Any, args: Any, more: Any) -> Any:
        """What is queued before the poison is still run."""
        op = launch(*args, **more)
        if self.is_due():
            self.hit(*EVERYBODY)
            lane.queue.put(Poison())
        return op

    def launch_dead(self, launch: Any, fn: Any, *args: Any, **more: Any) -> Any:
        """On ``sim``: run, or fail as a thread does that is dead."""
        if self.is_due():
            self.hit(*EVERYBODY)
        return launch(self.fail if self.is_hit else fn, *args, **more)

    def fail(self, *args: Any) -> Any:
        """Say what the thread would have said, and nothing else."""
        for signal in getattr(self, "signals", ()):
            signal.set()
        raise Death("the thread has died: it was killed")


class ThreadRaises(Fault):
    """A call of the loop's own thread raises before it has launched anything."""

    name: ClassVar[str] = "worker call raises"
    says: ClassVar[str] = "the thread is out of luck"

    @classmethod
    def fits(cls, loop: str, device: str) -> bool:
        """Where it is a thread that launches."""
        return loop in THREAD_OF and loop != "pd"

    def put_in(self, engine: Engine) -> None:
        """Wrap what the thread does first for a step."""
        wrap(engine.worker, "launch", self.around)

    def around(self, launch: Any, step: Step, *args: Any) -> Any:
        """Raise instead, once."""
        if not step.launched and self.is_due():
            self.hit(*step.batch.rids)
            raise Death(self.says)
        return launch(step, *args)


class StreamDies(ThreadDies):
    """The forward stream stops: its thread dies, on ``mlx`` that which evaluates, or watches."""

    name: ClassVar[str] = "stream dies"

    @classmethod
    def fits(cls, loop: str, device: str) -> bool:
        """CUDA's streams are no threads."""
        return device != "cuda"

    def put_in(self, engine: Engine) -> None:
        """Wrap the stream's launch, or on ``mlx`` what hands steps over."""
        if engine.device.name == "mlx":
            self.runner: Any = vars(engine.device)["_runner"]
            wrap(self.runner, "submit", self.around_submit)
        else:
            stream = next(op.stream for op in engine.worker.recipe if op.name == SAMPLE.name)
            self.kill(engine.device.stream(stream))

    def around_submit(self, submit: Any, *args: Any) -> None:
        """End one of its two threads before a step."""
        if self.is_due():
            self.hit(*EVERYBODY)
            executor: Any = vars(self.runner)["_watcher" if self.pick % 2 else "_evaluator"]
            executor.shutdown()
        submit(*args)


# -- What must hold although something has gone wrong: who may have ended, and who may not notice

FATES_OF_THE_DEAD = ("it never ran", "thread, and nobody has waited for it")
ENDED_EARLY = (FinishReason.ERROR, FinishReason.ABORT)


@dataclass(frozen=True)
class Aftermath:
    """A run that is over, and the fault that was in it."""

    fault: Fault
    workload: Workload
    outputs: Sequence[Output]  # what clients heard
    trace: Trace

    def may_end(self, req: Request) -> bool:
        """Whether a request may have ended early: by the fault, or because the workload says so."""
        return self.is_given_up(req) or self.is_touched(req)

    def is_given_up(self, req: Request) -> bool:
        """Whether the workload itself gives a request up, at one time or another."""
        return req.rid in self.workload.aborts.values()

    def is_touched(self, req: Request) -> bool:
        """Whether the fault has to do with a request; where it can't say with whom, they do."""
        is_unknown = self.fault.is_hit and not self.fault.touched
        return self.fault.may_end(req.rid) or (is_unknown and req.rid in self.failed_with)

    @property
    def failed_with(self) -> set[str]:
        """All who were in a step that requests name as the reason of their end.

        Raises:
            Broken: they name several steps, of which only one can have failed.
        """
        reasons = [req.error.split() for req in self.workload.requests]
        steps = {words[1] for words in reasons if words[:1] == ["step"]}
        if len(steps) > 1:
            raise Broken(f"reason: steps {', '.join(sorted(steps))} have failed, and one was to")
        return {rid for item in self.trace.slices if str(item.step) in steps for rid in item.rids}


def check_threads(before: Iterable[str]) -> None:
    """Whatever was opened for the run is closed.

    Raises:
        Broken: a thread is left.
    """
    if left := [name for name in threads() if name not in before]:
        raise Broken(f"leak: the thread {left[0]} is still alive")


def check_no_leak(trace: Trace, is_dead: bool) -> None:
    """Whoever took memory gave it back; and what was launched has ended, as somebody knows.

    A dead thread has not run what was launched for it. Or it has, in time, and nobody asked:
    whoever was about to has heard of its death first.

    Raises:
        Broken: somebody did not.
    """
    for leak in find_leaks(trace):
        if not (is_dead and str(leak).endswith(FATES_OF_THE_DEAD)):
            raise Broken(f"leak: {leak}")


def check_tokens(after: Aftermath, refusal: Refusal) -> None:
    """Whoever may have ended got the first of its tokens and a reason; all others got all.

    Raises:
        Broken: somebody did not.
    """
    for req in after.workload.requests:
        truth = tokens_alone(after.workload, req, refusal)
        given_up = req.finish_reason in ENDED_EARLY and after.may_end(req)
        if req.output_ids != (truth[: len(req.output_ids)] if given_up else truth):
            reason = f" ({req.error})" if req.error else ""
            raise Broken(f"identity: {req.rid} gave {req.output_ids}, alone {truth}{reason}")
        if req.finish_reason is FinishReason.ERROR:
            check_reason(after.fault, req)
        if truth and not given_up and req.finish_reason in ENDED_EARLY:
            raise Broken(f"identity: {req.rid} ended although the fault was none of its own")


def check_reason(fault: Fault, req: Request) -> None:
    """Who ended with an error knows why; and a step has failed because of the fault, and only so.

    Raises:
        Broken: there is no reason, or another one.
    """
    if not req.error:
        raise Broken(f"reason: {req.rid} ended with an error, and nobody knows why")
    if req.error.startswith("step ") and fault.says not in req.error:
        raise Broken(f"reason: {req.rid} ended with {req.error!r}, and not with {fault.says!r}")


def check_heard(after: Aftermath) -> None:
    """Every request ended, once, and its client heard its tokens, if it heard anything.

    Raises:
        Broken: it did not.
    """
    for req in after.workload.requests:
        mine = [output for output in after.outputs if output.rid == req.rid]
        heard = [output.token for output in mine if output.token is not None]
        ends = sum(output.finish_reason is not None for output in mine)
        is_silent = after.fault.is_silent and after.fault.may_end(req.rid)
        if req.finish_reason is None or ends != (0 if is_silent and not ends else 1):
            raise Broken(f"ends: {req.rid} ended {ends} times")
        if heard != (req.output_ids[: len(heard)] if is_silent else req.output_ids):
            raise Broken(f"ends: {req.rid} heard {heard}, produced {req.output_ids}")


# -- Runs one case with one fault in it, and says what did not hold --------------------------------

WATCHDOG = 30.0  # seconds after which a run in real time is taken for hung


class Trial(NamedTuple):
    """What became of a run with a fault in it; ``whom`` is empty where a law was broken."""

    is_hit: bool
    findings: tuple[Finding, ...]
    whom: Whom = Whom()
    num_chances: int = 0  # how often the fault could have struck

    @property
    def survived(self) -> bool:
        """Whether it was hit, and every law held."""
        return self.is_hit and not self.findings

    @property
    def hit_nobody(self) -> bool:
        """Whether it was hit, and cost nobody anything but whom the workload itself gives up."""
        return self.survived and not self.whom.struck


@dataclass
class Course:
    """A run as it comes along; it may be another thread's."""

    case: Case
    fault: Fault
    workload: Workload
    engines: list[Engine] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)
    trace: Trace | None = None

    def __post_init__(self) -> None:
        self.witness, self.device = Witness(self.workload), open_device(self.case.device)

    def go(self) -> None:
        """Drive the case to its end, whatever that is."""
        device = self.device
        model = hash_model(self.case.device, self.workload)
        self.fault.open(device)
        try:
            self.engines, self.outputs = run(
                self.case, self.workload, device, model, self.put_in, self.look
            )
        except Exception as error:  # there is no other way out for a fault that is not survived
            if not (self.fault.keeps_from_starting and says_what_is_missing(error)):
                kinds = (name for kind, name in STOPPED_BY.items() if isinstance(error, kind))
                law = next(kinds, "crash")
                self.findings[law] = Finding(law, f"{type(error).__name__}: {error}")
        finally:
            device.close()
        self.trace = device.recorder.trace(self.case.loop, device.name, model.name, device.clock)

    @property
    def aftermath(self) -> Aftermath:
        """What is left when it is over."""
        assert self.trace is not None
        return Aftermath(self.fault, self.workload, self.outputs, self.trace)

    def put_in(self, engine: Engine) -> None:
        """Before an engine starts; the fault stands between it and its clients."""
        self.witness.watch(engine)
        self.fault.put_in(engine)

    def look(self, engine: Engine) -> None:
        """After a turn."""
        self.fault.each_turn(engine)
        self.witness.look(engine)


def says_what_is_missing(error: Exception) -> bool:
    """Whether it is the one sentence of a run that finds no memory to begin with."""
    said = str(error)
    return isinstance(error, ValueError) and "has no memory for" in said


def try_fault(case: Case, fault: Fault) -> Trial:
    """Run a fresh copy of a case with the fault in it, and hold every law against what is left."""
    workload, before = fresh(case.workload), threads()
    fault.prepare(workload)
    course = Course(case, fault, workload)
    if not finished(course):
        return Trial(fault.is_hit, (Finding("hang", f"it still runs after {WATCHDOG:.0f} s"),))
    findings = course.findings | broken(laws_of(course, before))
    counted = Whom() if findings else whom_of(course)
    return Trial(fault.is_hit, tuple(findings.values()), counted, fault.num_chances)


def whom_of(course: Course) -> Whom:
    """Whom the fault has cost something, in a run in which every law held."""
    if not course.engines:
        return kept_from_starting(len(course.workload.requests))
    return whom(course.aftermath)


def laws_of(course: Course, before: list[str]) -> list[Callable[[], None]]:
    """What is to hold; of a run that has stopped, only what follows from nothing else."""
    assert course.trace is not None
    fault, engines = course.fault, course.engines
    is_dead = isinstance(fault, ThreadDies)
    laws = course.witness.laws(
        course.trace, course.device, is_over=bool(engines), all_alive=not is_dead
    )
    laws.append(partial(check_threads, before))
    if not engines:
        return laws
    after = course.aftermath
    return [
        partial(check_tokens, after, engines[0].scheduler.config.refusal),
        partial(check_heard, after),
        *course.witness.laws_of_clients(engines[0], course.outputs, not fault.is_silent),
        partial(check_no_leak, course.trace, is_dead),
        *laws,
        *(partial(check_idle, engine.scheduler) for engine in engines),
        *(partial(check_leaks, engine) for engine in engines),
    ]


def finished(course: Course) -> bool:
    """Let it run; on a wall clock on a thread of its own, which is given up when it hangs."""
    if course.case.device == "sim":
        course.go()
        return True
    thread = threading.Thread(target=course.go, name="trial", daemon=True)
    thread.start()
    thread.join(WATCHDOG)
    return not thread.is_alive()


# -- Every fault on every loop, over random workloads ----------------------------------------------

FAULTS: tuple[type[Fault], ...] = (
    ForwardRaises, SamplingRaises, NotNumbers, CopyFails, StreamDies, OutOfMemory,
    ThreadRaises, ThreadDies, NoneAtStart, NeverFits, RunsOut,
    Aborted, CtrlC, ReaderRaises, ReaderStops, PipeCloses,
)  # fmt: skip
LATEST = 8  # of the chances in a run, one among so many is chosen
MOST_WORKLOADS = 12  # that are drawn for a place
MANY = 10**6  # workloads that these are among


@dataclass(frozen=True)
class Place:
    """Where a fault is to be put in."""

    fault: str
    loop: str
    device: str
    seed: int


class Cell(NamedTuple):
    """One fault on one loop, and what became of it; the place repeats it."""

    place: Place
    loop: str  # as it was run, with relay and options
    at: int
    trial: Trial


def try_place(place: Place) -> Cell:
    """Draw a workload and a moment for the fault, until the trial tells something.

    Where the moment did not come, the run was too short, and it is drawn once more from those that
    did. Another workload is drawn where the fault can't happen in it at all, where it hits nobody
    but whom the workload itself gives up, and where nobody is left who must not notice. If none of
    them will do, it is the trial that tells most: one that was never hit, or that hit nobody,
    counts as not tried.
    """
    kind = next(item for item in FAULTS if item.name == place.fault)
    rng = Random(f"{place.fault} {place.loop} {place.seed}")
    cells: list[Cell] = []
    for _ in range(MOST_WORKLOADS):
        seed = rng.randrange(MANY)
        design = design_for(place.loop, seed)
        case, latest = draw(seed, odd=False).on(design, place.device), LATEST
        while latest:
            at, pick = rng.randint(1, latest), rng.randrange(1000)
            trial = try_fault(case, kind(at, pick))
            cells.append(Cell(place, design.name, at, trial))
            if trial.findings or trial.whom.tells:
                return cells[-1]
            latest = 0 if trial.is_hit else min(trial.num_chances, at - 1)
    return max(cells, key=lambda cell: (cell.trial.is_hit, cell.trial.whom.struck))


def design_for(loop: str, seed: int) -> Design:
    """A loop's relays and options, one after the other; those that take the workload's drafts."""
    if ":" in loop:
        return read_design(loop)
    algorithm = draw(seed).workload.config.speculative_algorithm
    mine = [item for item in all_designs() if item.loop == loop]
    taking = [item for item in mine if algorithm not in item.refuses()]
    designs = taking or mine
    return designs[seed % len(designs)]


def places(device: str, seed: int, times: int, loops: Sequence[str] = ()) -> list[Place]:
    """Every fault that can happen on a loop, on every loop, so many times."""
    return [
        Place(kind.name, loop, device, seed + at)
        for kind in FAULTS
        for loop in loops or LOOPS
        if device in LOOPS[loop.partition(":")[0]].devices and kind.fits(loop, device)
        for at in range(times)
    ]


def try_all(wanted: Sequence[Place], jobs: int = 1) -> Iterator[Cell]:
    """Each of them, in order, in so many processes."""
    if jobs == 1:
        yield from map(try_place, wanted)
        return
    with processes(jobs) as pool:
        with unheard_interrupt():
            results = pool.map(try_place, wanted, chunksize=8)
        yield from results


class Count(NamedTuple):
    """Of some of the trials: those in which the fault hit somebody, and those of them that held.

    ``ended`` are the requests that ended early in them, ``whole`` those that got all their tokens.
    ``hit_nobody`` are trials in which it was hit when nobody was left to be hit but those whom the
    workload itself gives up; they are not among the tried.
    """

    places: int
    tried: int
    survived: int
    ended: int
    whole: int
    hit_nobody: int = 0


@dataclass(frozen=True)
class Counted:
    """All the trials of a run of the command."""

    device: str
    seed: int
    cells: Sequence[Cell]

    def of(self, fault: str | None = None, loop: str | None = None) -> Count:
        """Those of one fault, of one loop, or both; all without either."""
        found = [
            cell.trial
            for cell in self.cells
            if fault in (None, cell.place.fault) and loop in (None, base_of(cell.place.loop))
        ]
        tried = [trial for trial in found if trial.is_hit and not trial.hit_nobody]
        return Count(
            len(found),
            len(tried),
            sum(trial.survived for trial in tried),
            sum(trial.whom.ended for trial in tried),
            sum(trial.whom.whole for trial in tried),
            sum(trial.hit_nobody for trial in found),
        )

    @property
    def faults(self) -> list[str]:
        """Which there are, in their order."""
        return list(dict.fromkeys(cell.place.fault for cell in self.cells))

    @property
    def loops(self) -> list[str]:
        """Which there are, in their order."""
        return list(dict.fromkeys(base_of(cell.place.loop) for cell in self.cells))

    @property
    def failures(self) -> list[Cell]:
        """The trials in which something did not hold, hit or not."""
        return [cell for cell in self.cells if cell.trial.findings]

    def as_json(self) -> dict[str, Any]:
        """What ``minisched check --faults --json`` prints; all the numbers are counts.

        ``tried``: trials in which the fault hit somebody; ``survived``: those of them in which
        every affected request ended with a reason, no other one changed a token, nothing leaked
        and nothing hung. ``hit_nobody``: trials in which only requests were hit that the workload
        itself gives up. ``faults`` and ``cells`` have the same by fault, and by fault and loop.
        """
        total = self.of()
        return {
            "device": self.device,
            "seed": self.seed,
            **total._asdict(),
            "faults": {fault: self.of(fault)._asdict() for fault in self.faults},
            "cells": [
                {"fault": fault, "loop": loop, **count._asdict()}
                for fault in self.faults
                for loop in self.loops
                if (count := self.of(fault, loop)).places
            ],
            "failures": [
                {
                    "fault": cell.place.fault,
                    "loop": cell.loop,
                    "seed": cell.place.seed,
                    "at": cell.at,
                    "findings": [asdict(item) for item in cell.trial.findings],
                }
                for cell in self.failures
            ],
        }  # fmt: skip
