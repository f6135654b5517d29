"""What can go wrong around a scheduler, sixteen kinds of it, and what must hold all the same.

A fault goes wrong once, at a chance that can be chosen: a step on the device, who asks, memory, or
a thread. Five of them a drawn workload may have, too (``STEP_FAULTS``). What a fault may cost, and
whom it may not, says ``Aftermath``; ``judge.py:try_fault`` puts one into a case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

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
    """What goes wrong, and when: at the ``at``-th chance, from 1 on.

    Of a step that goes wrong, ``computing`` may say instead which one: the first that computes a
    position of a request.

    A run may have no such chance: then it was not ``is_hit``, and counts as not tried. ``touched``
    are the requests that may end because of it; all the others must not notice.
    """

    name: ClassVar[str]
    says: ClassVar[str] = ""  # stands in the reason of whoever ends with an error because of it
    is_silent: ClassVar[bool] = False  # their reader is the fault: they can't be told of their end
    keeps_from_starting: ClassVar[bool] = False  # then nothing runs, and a sentence says why
    kills: ClassVar[bool] = False  # who is dead sees to nothing any more

    at: int
    pick: int = 0  # a number that decides what else there is to decide
    is_hit: bool = False
    touched: set[str] = field(default_factory=set)
    num_chances: int = 0  # so far; of a fault that draws no moment, none are counted
    computing: Failure | None = None

    @staticmethod
    def fits(loop: str, device: str) -> bool:
        """Whether it can happen there at all."""
        return True

    def prepare(self, workload: Workload) -> None:
        """Change the workload before anything runs."""

    def open(self, device: Device) -> None:
        """Change the device before there is an engine."""

    def put_in(self, engine: Engine) -> None:
        """Change an engine before it starts; ``pd`` has two, and the client's comes last."""

    def each_turn(self, engine: Engine) -> None:
        """After every turn."""

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


# -- Faults of one step on the device: its forward pass, its logits, its sampling, its copy --------


class BadLuck(RuntimeError):
    """What the device says when one of these faults makes it fail."""


class ForwardRaises(Fault):
    """The ``at``-th forward pass raises (in a pipeline, one of its stages)."""

    name = "forward raises"
    says = "the device is out of luck"

    def put_in(self, engine: Engine) -> None:
        """Wrap the model's pass, or its layers where these run in stages."""
        is_cut = len(engine.worker.page_tables) > 1
        wrap(engine.worker.model, "forward_layer" if is_cut else "forward", self.once)

    def once(self, inner: Any, *args: Any) -> Any:
        """Raise instead, once."""
        batch = next(arg for arg in args if isinstance(arg, ForwardBatch))
        if self.is_due(batch):
            self.hit(*batch.label.rids)
            raise self._error()
        return inner(*args)

    def _error(self) -> Exception:
        return BadLuck(self.says)


class OutOfMemory(ForwardRaises):
    """A forward pass finds no memory; every other time it is an array that is shipped."""

    name = "out of device memory"
    says = "out of device memory (tried to allocate 2.00 GiB)"

    def put_in(self, engine: Engine) -> None:
        """Wrap the pass, or what brings arrays to the device.

        A step ships several, so not each is a chance: it would always be in the first step. Which
        step an array was for, the requests' reasons say.
        """
        self.num_arrays, each = 0, 1 + self.pick // 2 % 9

        def asarray(inner: Any, values: Any) -> Any:
            self.num_arrays += 1
            if self.num_arrays % each == 0 and self.is_due():
                self.hit()
                raise self._error()
            return inner(values)

        if self.pick % 2:
            super().put_in(engine)
        else:
            wrap(engine.device.xp, "asarray", asarray)

    def _error(self) -> Exception:  # as CUDA says it through torch, or Python
        return MemoryError("tried to allocate 2.00 GiB")


class SamplingRaises(ForwardRaises):
    """The ``at``-th sampling raises."""

    name = "sampling raises"
    says = "no token could be chosen"

    def put_in(self, engine: Engine) -> None:
        """Wrap the model's sampling."""
        wrap(engine.worker.model, "sample", self.once)


class NotNumbers(Fault):
    """The logits of one row of the ``at``-th forward pass are NaN, and of no other."""

    name = "NaN logits"
    says = "not numbers (NaN)"

    def put_in(self, engine: Engine) -> None:
        """Wrap what gives logits."""
        is_cut = len(engine.worker.page_tables) > 1
        wrap(engine.worker.model, "compute_logits" if is_cut else "forward", self._spoil)

    def _spoil(self, forward: Any, batch: ForwardBatch, ids: Any, *args: Any) -> Any:
        if isinstance(ids, list) and ids and min(ids) < 0:
            raise BadLuck(f"{min(ids)} is no token")  # but what marks NaN
        logits = forward(batch, ids, *args)
        if self.is_due(batch):
            row = self.pick % len(batch.rows)
            if self.computing is not None:
                row = batch.label.rids.index(self.computing.rid)
            self.hit(batch.label.rids[row])
            first = sum(batch.logit_lens[:row])  # those that it samples from are its last ones
            for at in range(first, first + batch.logit_lens[row]):
                nan = float("nan")
                logits[at] = [nan] * len(logits[at]) if isinstance(logits, list) else nan
        return logits


class CopyFails(Fault):
    """The ``at``-th copy fails: of tokens or log-probabilities to the host, or of KV on ``pd``."""

    name = "copy fails"
    says = "did not arrive"

    def put_in(self, engine: Engine) -> None:
        """Wrap what launches it; a transfer is one launch of its own."""
        self.failing: tuple[Step | None, str] = (None, "")  # and which of its copies
        if isinstance(engine, PrefillEngine) and self.pick % 2:
            wrap(engine, "copy_kv", self._transfer)
        else:
            wrap(engine.worker, "queue", self._queue)

    def _queue(self, queue: Any, step: Step, op: StepOp) -> Any:
        if op.name == COPY.name and self.is_due(step.batch):
            self.hit(*step.batch.rids)
            wants = any(req.params.return_logprob for req in step.batch.reqs)
            self.failing = step, "logprobs" if wants and self.pick % 2 else COPY.gives
        return queue(step, replace(op, run=self._fail) if (step, op.gives) == self.failing else op)

    def _transfer(self, copy: Any, rid: str, *args: Any) -> None:
        if self.is_due():
            self.hit(rid)
            raise BadLuck("the KV did not arrive")
        copy(rid, *args)

    def _fail(self, *args: Any) -> Any:
        raise BadLuck("the copy did not arrive")


STEP_FAULTS: dict[str, type[Fault]] = {
    kind.name: kind for kind in (ForwardRaises, OutOfMemory, SamplingRaises, NotNumbers, CopyFails)
}
"""What may go wrong in a step that a workload names, by name."""


def step_fault(failure: Failure) -> Fault:
    """What is to go wrong in the step of a workload's failure; out of memory is the pass itself."""
    return STEP_FAULTS[failure.kind](at=0, pick=1, computing=failure)


# -- Faults of who asks: giving up at any moment, Ctrl-C, and a reader that is not there any more --


class Aborted(Fault):
    """A request is given up after the ``at``-th turn, or output: twice, and one that nobody has."""

    name = "abort"

    def prepare(self, workload: Workload) -> None:
        """Choose one."""
        self.rid = workload.requests[self.pick % len(workload.requests)].rid

    def put_in(self, engine: Engine) -> None:
        """Every other time it is a client that says so while it is told something."""
        self.client, self.says_it_at_once = engine, bool(self.pick // 7 % 2)

        def on_output(inner: Any, output: Output) -> None:
            inner(output)
            self._look()

        if self.says_it_at_once:
            wrap(engine.frontend, "on_output", on_output)

    def each_turn(self, engine: Engine) -> None:
        """Between two turns."""
        if engine is self.client and not self.says_it_at_once:
            self._look()

    def _look(self) -> None:
        if self.is_due():
            self.hit(self.rid)
            for rid in (self.rid, "nobody", self.rid):
                self.client.frontend.abort(rid)


class CtrlC(Fault):
    """Ctrl-C after the ``at``-th turn."""

    name = "Ctrl-C"

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

    name = "reader raises"
    is_silent = True

    def put_in(self, engine: Engine) -> None:
        """Between the engine and its clients, raise for one request."""

        def on_output(inner: Any, output: Output) -> None:
            if self.is_due():
                self.hit(output.rid)
            if self.may_end(output.rid):
                raise self._error()
            inner(output)

        wrap(engine.frontend, "on_output", on_output)

    def _error(self) -> Exception:
        return ConnectionResetError("the client has gone")


class PipeCloses(ReaderRaises):
    """The one stream to which everything is written closes at the ``at``-th output."""

    name = "pipe closes"

    def hit(self, *rids: str) -> None:
        """Everybody is written to it."""
        super().hit(*EVERYBODY)

    def _error(self) -> Exception:  # as the operating system says it
        return BrokenPipeError(32, "Broken pipe")


class ReaderStops(Fault):
    """A client reads no more: what is for it is kept, up to ``at`` outputs, and then it is over."""

    name = "reader stops reading"
    is_silent = True

    def prepare(self, workload: Workload) -> None:
        """Choose one that will hear more than is kept, and then its end, if there is such a one."""
        requests = workload.requests
        able = [req for req in requests if req.params.max_new_tokens >= self.at + 2] or requests
        self.rid = able[self.pick % len(able)].rid

    def put_in(self, engine: Engine) -> None:
        """Clients read from streams of a limited length, all at once, but for one."""
        streams = ClientStreams(limit=self.at)

        def on_output(inner: Any, output: Output) -> None:
            try:
                streams.hear(output)
            except ReaderStopped:
                self.hit(output.rid)
                raise
            if output.rid != self.rid:
                for heard in streams.read_now(output.rid):
                    inner(heard)
            else:
                self.num_chances += 1
                inner(output)

        wrap(engine.frontend, "on_output", on_output)


# -- Faults of memory: a request for which there never is enough -----------------------------------

TOO_LARGE = "too large"


class NoneAtStart(Fault):
    """The device has no memory for what a run needs from its beginning to its end."""

    name = "no memory at start"
    keeps_from_starting = True

    def open(self, device: Device) -> None:
        """What takes it (KV, page table, relay, outputs) finds none, from the ``at``-th time on."""

        def memory(inner: Any, name: str, size: int) -> Any:
            if self.is_due():
                self.hit()
            if self.is_hit:
                raise MemoryError(f"tried to allocate {8 * size} bytes")
            return inner(name, size)

        wrap(device, "memory", memory)


class NeverFits(Fault):
    """A request comes that needs more than the whole pool, or the context: it is refused."""

    name = "never fits"

    def prepare(self, workload: Workload) -> None:
        """One more request."""
        self._add(workload, max_new_tokens=workload.config.num_slots)

    def _add(self, workload: Workload, max_new_tokens: int) -> None:
        params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
        workload.requests = [*workload.requests, Request(TOO_LARGE, [1, 2], params)]
        workload.arrivals = [*workload.arrivals, self.at]
        self.hit(TOO_LARGE)


class RunsOut(NeverFits):
    """A request that nobody refused runs out of pages on the way, when all others have made room.

    The scheduler's own refusal is switched off for it, and the context made longer than the pool:
    an engine that does not bound outputs has such requests every day.
    """

    name = "runs out of pages"

    @staticmethod
    def fits(loop: str, device: str) -> bool:
        """``pd`` reserves all the pages that a request may ever want, before it begins."""
        return loop != "pd"

    def prepare(self, workload: Workload) -> None:
        """One more request, as long as the context, and so longer than the pool."""
        config = workload.config
        longest = max(config.context_len, config.num_slots + config.page_size)
        workload.config = replace(config, context_len=longest)
        self._add(workload, max_new_tokens=longest - 2)
        self.is_hit = False

    def put_in(self, engine: Engine) -> None:
        """Refuse it no more."""
        config = engine.scheduler.config
        refusal = config.refusal

        def of_others(req: Request) -> str | None:
            return None if req.rid == TOO_LARGE else refusal(req)

        object.__setattr__(config, "refusal", of_others)

    def each_turn(self, engine: Engine) -> None:
        """It is hit when the request has memory and can't go on."""
        req = engine.scheduler.live.get(TOO_LARGE)
        self.is_hit |= req is not None and req.lease is not None


# -- Faults of who works beside the host: a thread of its own that dies, or one of the device's ----

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


class ThreadDies(Fault):
    """The loop's own thread dies when the ``at``-th call for it has been queued."""

    name = "worker thread dies"
    says = "has died"
    kills = True

    @staticmethod
    def fits(loop: str, device: str) -> bool:
        """Only some loops have one."""
        return loop in WITH_A_THREAD

    def put_in(self, engine: Engine) -> None:
        """Wrap the way to the thread, wherever the loop takes it, and what might be waited for."""
        self.signals = list[Any]()

        def signal(inner: Any, name: str) -> Any:
            self.signals.append(inner(name))
            return self.signals[-1]

        def thread(inner: Any, name: str) -> Any:
            found = inner(name)
            if "launch" not in vars(found):
                self.kill(found)
            return found

        wrap(engine.device, "thread", thread)
        if engine.device.clock == "virtual":
            wrap(engine.device, "signal", signal)

    def kill(self, lane: Any) -> None:
        """Let a lane die at the ``at``-th launch; what is queued before the poison is still run.

        On ``sim`` all fails that it is to run then, as with a thread that is dead.
        """

        def poison(launch: Any, *args: Any, **more: Any) -> Any:
            op = launch(*args, **more)
            if self.is_due():
                self.hit(*EVERYBODY)
                lane.queue.put(Poison())
            return op

        def launch_dead(launch: Any, fn: Any, *args: Any, **more: Any) -> Any:
            if self.is_due():
                self.hit(*EVERYBODY)
            return launch(self._fail if self.is_hit else fn, *args, **more)

        wrap(lane, "launch", poison if hasattr(lane, "thread") else launch_dead)

    def _fail(self, *args: Any) -> Any:
        for signal in getattr(self, "signals", ()):
            signal.set()
        raise Death("the thread has died: it was killed")


class ThreadRaises(Fault):
    """A call of the loop's own thread raises before it has launched anything."""

    name = "worker call raises"
    says = "the thread is out of luck"

    @staticmethod
    def fits(loop: str, device: str) -> bool:
        """Where it is a thread that launches."""
        return loop in WITH_A_THREAD and loop != "pd"

    def put_in(self, engine: Engine) -> None:
        """Wrap what the thread does first for a step: it raises instead, once."""

        def launch(inner: Any, step: Step, *args: Any) -> Any:
            if not step.launched and self.is_due():
                self.hit(*step.batch.rids)
                raise Death(self.says)
            return inner(step, *args)

        wrap(engine.worker, "launch", launch)


class StreamDies(ThreadDies):
    """The forward stream stops: its thread dies, on ``mlx`` that which evaluates, or watches."""

    name = "stream dies"

    @staticmethod
    def fits(loop: str, device: str) -> bool:
        """CUDA's streams are no threads."""
        return device != "cuda"

    def put_in(self, engine: Engine) -> None:
        """Wrap the stream's launch; on ``mlx`` end one of the two threads before a step."""
        if engine.device.name != "mlx":
            stream = next(op.stream for op in engine.worker.recipe if op.name == SAMPLE.name)
            self.kill(engine.device.stream(stream))
            return
        runner: Any = vars(engine.device)["_runner"]

        def submit(inner: Any, *args: Any) -> None:
            if self.is_due():
                self.hit(*EVERYBODY)
                vars(runner)["_watcher" if self.pick % 2 else "_evaluator"].shutdown()
            inner(*args)

        wrap(runner, "submit", submit)


FAULTS: tuple[type[Fault], ...] = (
    ForwardRaises, SamplingRaises, NotNumbers, CopyFails, StreamDies, OutOfMemory,
    ThreadRaises, ThreadDies, NoneAtStart, NeverFits, RunsOut,
    Aborted, CtrlC, ReaderRaises, ReaderStops, PipeCloses,
)  # fmt: skip


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
            if req.error.startswith("step ") and self.fault.says not in req.error:
                yield f"{req.rid} ended with {req.error!r}, and not with {self.fault.says!r}"

    def bad_ends(self, told: Sequence[Told]) -> Iterator[str]:
        """Every request ended, once, and its client heard its tokens, if it heard anything."""
        for req, outputs in told:
            if not (self.fault.is_silent and self.fault.may_end(req.rid)):
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
            if not (self.fault.kills and leak.endswith(FATES_OF_THE_DEAD)):
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
