"""Lesson 3, two lazy graphs: hand over before you read, chain on a lazy token, break the chain."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...checks.history import many
from ...checks.overlap import step_intervals
from ...core import ScheduleBatch
from ...devices.base import Label
from ...devices.cost import MILLISECOND
from ...devices.sim import SimDevice, SimOp
from ...engine.engine import Engine
from ...export.layout import steady_views
from ...export.runs import side_by_side
from ...export.scene_svg import to_svg
from ...export.views.marks import ordinal
from ...loops.design import Turns
from ...models.hash import mix
from ...museum.exhibit import case
from ...relay.lazy_chain import LazyChain
from ...scheduler import Scheduler
from ...trace import Trace
from ...worker import Step
from ..exercise import COST, Exercise, Function, Loop, Pure, Workloads
from ..guard import Mistake, unwatched
from ..runs import VOCAB

# -- Lazy arrays on a virtual clock: what ``mx.async_eval`` and ``.item()`` cost whom, and when ----
#
# What is computed is a graph first; the device begins when somebody hands it over. Here a step
# takes the device ``device`` ns, and the host ``BUILD`` ns for its graph and ``host`` ns for its
# own work on the token.

FIRST = 7  # the token that everything begins with
BUILD = 1 * MILLISECOND


def token_after(token: int, position: int) -> int:
    """The model: an exact hash of the token before."""
    return mix(token, position) % VOCAB


@dataclass(eq=False, repr=False)
class LazyToken:
    """A token that nobody may have computed yet; step 1 makes the first one."""

    clock: LazyClock
    source: LazyToken | int
    step: int
    op: SimOp | None = None

    def __repr__(self) -> str:
        return f"lazy token of step {self.step}"

    def item(self) -> int:
        """Block the host until its value is there; hand it over first, if nobody has."""
        return self.clock.read(self)


@dataclass
class LazyClock:
    """One host, one device, and what was built, handed over, read and worked upon."""

    host: int  # nanoseconds
    device: int
    sim: SimDevice = field(default_factory=SimDevice)
    read_steps: list[int] = field(default_factory=list)
    worked_on: list[int] = field(default_factory=list)
    most_in_flight: tuple[int, int] = (0, 0)  # how many, and the newest of them
    read_too_soon: int = (
        0  # the first step whose token was read before the one before was worked on
    )
    newest: int = 0  # the last step that was handed over
    alone: int = 0  # the first step that was read while no step behind it was handed over

    def step(self, token: LazyToken | int) -> LazyToken:
        """Build the graph of the next token.

        Raises:
            Mistake: it is neither the first token nor a lazy one.
        """
        if not isinstance(token, LazyToken) and token != FIRST:
            raise Mistake(f"`step` got {token!r}; it takes the first token, or a lazy one")
        number = token.step + 1 if isinstance(token, LazyToken) else 1
        with self.sim.host("build", BUILD, _label(number)):
            return LazyToken(self, token, number)

    def async_eval(self, token: LazyToken) -> None:
        """Hand a graph over, with all that it is built on; the host goes on at once.

        Raises:
            Mistake: it is no lazy token.
        """
        if not isinstance(token, LazyToken):
            raise Mistake(f"`async_eval` got {token!r}; it takes a lazy token")
        if token.op is not None:
            return
        source = token.source
        if isinstance(source, LazyToken):
            self.async_eval(source)
        args = (source.op if isinstance(source, LazyToken) else source, token.step)
        token.op = self.sim.stream("forward").launch(
            token_after, *args, name="forward", cost=self.device, label=_label(token.step)
        )
        self.newest = max(self.newest, token.step)
        in_flight = self.newest - len(set(self.read_steps))
        self.most_in_flight = max(self.most_in_flight, (in_flight, token.step))

    def read(self, token: LazyToken) -> int:
        """Wait for a value; the time is a slice of the host's, but no work."""
        self.async_eval(token)
        if len(self.worked_on) < token.step - 1:
            self.read_too_soon = self.read_too_soon or token.step
        if token.step == self.newest < COUNT:
            self.alone = self.alone or token.step
        start = self.sim.now()
        assert token.op is not None
        value: int = token.op.synchronize()
        if self.sim.now() > start:
            self.sim.record("host", "wait", start, _label(token.step), self.sim.recorder.new_id())
        self.read_steps.append(token.step)
        return value

    def host_work(self, token: int) -> None:
        """What the host does with a token: text of it, the client, the next schedule."""
        with self.sim.host("process", self.host, _label(len(self.worked_on) + 1)):
            self.worked_on.append(token)

    def trace(self, name: str) -> Trace:
        """What happened, once everything handed over has run."""
        while (time := self.sim.next_event) is not None:
            self.sim.idle_until(time)
        return self.sim.recorder.trace(name, "sim", "hash", "virtual")


def _label(step: int) -> Label:
    return Label(step, "decode", ("a",))


COUNT = 14  # tokens
PAIRS = ((6, 10), (10, 6), (9, 9), (0, 5))  # host and device, in ms a token


@dataclass(frozen=True)
class Generated:
    """What a learner's ``generate`` gave back, and what the clock saw of it."""

    given: Any
    clock: LazyClock
    trace: Trace


def generated(generate: Any, host: int, device: int) -> Generated:
    """Run it with these costs, in ms a token."""
    clock = LazyClock(host * MILLISECOND, device * MILLISECOND)
    calls = (unwatched(call) for call in (clock.step, clock.async_eval, clock.host_work))
    step, async_eval, host_work = calls
    given = generate(step, FIRST, COUNT, async_eval, host_work)
    return Generated(given, clock, clock.trace("your generate"))


def in_order(run: Generated, host: int, device: int) -> str:
    """Right tokens, each worked upon once and in order, two graphs in flight, and no gap."""
    clock = run.clock
    costs = f"host {host} ms, device {device} ms a token"
    return (
        _wrong_tokens(run.given)
        or _wrong_work(clock)
        or _too_far_ahead(clock)
        or _too_slow(clock, run.trace, costs)
        or _alone(clock)
    )


def drawn(run: Generated, host: int, device: int) -> str:
    """A few settled steps; without the copy stream, which MLX does not have."""
    if not run.trace.on("forward"):
        return ""
    views = [
        replace(view, lanes=tuple(lane for lane in view.lanes if lane.key != "copy"))
        for view in steady_views([run.trace], 3)
    ]
    svg = to_svg(side_by_side(views))
    return svg.replace(">another phase</text>", ">build a graph</text>")


def truth() -> list[int]:
    """The tokens, one after the other."""
    tokens = [FIRST]
    for position in range(1, COUNT + 1):
        tokens.append(token_after(tokens[-1], position))
    return tokens[1:]


def _wrong_tokens(given: Any) -> str:
    if not isinstance(given, list):
        kind = type(given).__name__
        return f"`generate` gave {given!r}, of type {kind}, but it must give a list of tokens."
    for at, (token, due) in enumerate(zip(given, truth(), strict=False), 1):
        if token != due:
            kept = isinstance(token, LazyToken)
            hint = ": you kept the lazy token; read it with .item()" if kept else ""
            return f"The {ordinal(at)} token is {token!r}, should be {due}{hint}."
    if len(given) != COUNT:
        tokens = many(len(given), "token")
        return f"`generate` gave {tokens}, but {COUNT} were asked for."
    return ""


def _wrong_work(clock: LazyClock) -> str:
    step = clock.read_too_soon
    if clock.worked_on == truth() and step:
        return (
            f"The token of step {step} was read before host_work had got that of step {step - 1}. "
            "A reader of the text would see nothing for so long: give each token to host_work "
            "before you read the next one."
        )
    if clock.worked_on == truth():
        return ""
    for at, (token, due) in enumerate(zip(clock.worked_on, truth(), strict=False), 1):
        if token != due:
            return f"`host_work` got {token!r} as its {ordinal(at)} token, should get {due}."
    times = many(len(clock.worked_on), "time")
    return f"`host_work` was called {times}, but there are {COUNT} tokens."


def _too_far_ahead(clock: LazyClock) -> str:
    count, step = clock.most_in_flight
    if count <= 2:
        return ""
    return (
        f"When step {step} was handed over, {count} steps were on their way and unread. Had the "
        f"oldest of their tokens been the end of the text, {count - 1} steps would be wasted; one "
        "step ahead is enough."
    )


def _too_slow(clock: LazyClock, trace: Trace, costs: str) -> str:
    between = step_intervals(trace)[4:-4]
    took = sum(between) / len(between) / MILLISECOND if between else None
    best = max(clock.host + BUILD, clock.device) / MILLISECOND
    if took is not None and took <= best + 1e-6:
        return ""
    return (
        f"Every token is right, but the device waits. With {costs} it takes {took:g} ms from one "
        f"token to the next, on average, of which building a graph is {BUILD // MILLISECOND} ms; "
        f"{best:g} ms would be enough. In the hatched gaps the device has "
        "nothing: what could you hand over before you read?"
    )


def _alone(clock: LazyClock) -> str:
    step = clock.alone
    if not step:
        return ""
    return (
        f"When the token of step {step} was read, nothing else was with the device. That costs "
        "nothing here, as on this clock `async_eval` takes no time; a real device would wait "
        f"until you come back from `item`. Hand over step {step + 1} before you read step {step}."
    )


# -- One turn of MLX's loop, and what a step is fed that is not told what it is built on -----------


def newest_or_lazy(
    chain: LazyChain, batch: ScheduleBatch, previous: ScheduleBatch | None
) -> tuple[list[int], list[int]]:
    """Without a previous step, an unknown token is the newest one that the host has.

    That is what SGLang's ``decode_batch_start`` for MLX does, which is for fresh steps; an excerpt
    of #22416 calls it for chained ones.
    """
    places = {rid: -1 - at for at, rid in enumerate(previous.rids)} if previous else {}
    ids = []
    for row in batch.rows:
        newest = (row.req.output_ids or row.req.prompt)[-1]
        unknown = places.get(row.req.rid, newest)
        ids += [unknown if token is None else token for token in row.ids]
    chain.record(batch, previous, ids)
    return ids, []


def loop_of_turns(turn: Any) -> Any:
    """A loop that calls ``turn`` as long as a step is in flight, and otherwise schedules."""

    def loop(engine: Engine) -> Turns:
        pending: Step | None = None
        while True:
            engine.recv_requests()
            if pending is not None:
                pending = _after_a_turn(engine, pending, turn(engine, pending))
            if pending is None:
                batch = engine.get_next_batch_to_run()
                if batch:
                    pending = engine.run_batch(batch)
                else:
                    engine.on_idle()
            yield pending.batch if pending else None  # type: ignore[misc]

    return loop


def _after_a_turn(engine: Engine, pending: Step, given: Any) -> Step | None:
    """The step that a turn gave back, or None.

    Raises:
        Mistake: it gave something else, or left a step behind.
    """
    if given is not None and not isinstance(given, Step):
        kind = type(given).__name__
        raise Mistake(f"`turn` gave back a {kind}, but it must give the step it launched, or None")
    newest, in_flight = engine.scheduler.step, engine.scheduler.batches_in_flight
    if in_flight == 2 or (in_flight and newest == pending.batch.step):
        raise Mistake(f"`turn` never processed `pending`, which was step {pending.batch.step}")
    if in_flight and given is None:
        raise Mistake(f"`turn` launched step {newest} but gave back None")
    return given


# -- When the chain must break ---------------------------------------------------------------------


def chains(may_chain: Any, scheduler: Scheduler, batch: ScheduleBatch) -> bool:
    """``Scheduler.can_chain`` of a decode batch, by what it asks."""
    if batch.num_extend_reqs or any(r.device_len > scheduler.config.row_len for r in batch.reqs):
        return False
    if not all(map(scheduler.decode.may_run, batch.reqs)):
        return False
    chunked = scheduler.prefill.chunked_req
    short = scheduler.leases.pages_short([req for req in batch.reqs if req.lease is not None])
    said = may_chain(
        list(batch.rids),
        [req.rid for req in scheduler.running_batch],
        [req.rid for req in scheduler.waiting_queue],
        chunked.rid if chunked else None,
        max(0, short),
    )
    if type(said) is not bool:
        raise Mistake(f"`may_chain` gave {said!r}, but it must give True or False")
    return said


GIVEN_UP = case(  # nobody waits, but one of two is gone
    "a: 1 2 3 -> 12; b: 4 5 6 -> 12, gone at 4", "mlx_async", kv=64, rows=2, cost=COST
)

EXERCISES = (
    Exercise(
        name="generate",
        lesson="03_lazy_graphs",
        hole=Pure(lambda: PAIRS, holds=in_order, call=generated, draw=drawn),
        solution="""
            def generate(step, first, count, async_eval, host_work):
                tokens, y = [], step(first)
                async_eval(y)
                for _ in range(count):
                    following = step(y)
                    async_eval(following)
                    tokens.append(y.item())
                    host_work(tokens[-1])
                    y = following
                return tokens
        """,
        mistakes=(
            ("y.item()", "following.item()", "The 1st token is"),
            ("        host_work(tokens[-1])\n", "", "`host_work` was called 0 times"),
            ("following = step(y)", "following = step(y.item())", "the first token, or a lazy one"),
            ("        async_eval(following)\n", "", "the device waits"),
            ("        async_eval(following)\n        tokens.append(y.item())\n",
             "        tokens.append(y.item())\n        async_eval(following)\n",
             "nothing else was with the device"),
        ),
        hints=(
            "`item` is where the host stands still. What could the device have got before?",
            "Build the next token's graph on `y` itself, before you read `y`.",
            "Before the loop: hand over the first. In it: build, hand over, read, work.",
        ),
        why=(
            "A lazy array is a promise that one can build upon. So the next step goes to the "
            "device before this one is read, and the host's work is hidden behind it. No queue and "
            "no buffer is needed: the graph itself knows who reads whom."
        ),
        survivors=("pass",),  # without the first call: the second one hands over both
    ),
    Exercise(
        name="turn",
        lesson="03_lazy_graphs",
        hole=Loop(
            "mlx_async",
            call=loop_of_turns,
            also={"relay.lazy_chain:LazyChain.bind": newest_or_lazy},
        ),
        solution="""
            def turn(engine, pending):
                batch = engine.chain(pending.batch)
                following = engine.run_batch(batch, pending) if batch else None
                engine.process_batch_result(pending)
                return following
        """,
        mistakes=(
            ("batch, pending)", "batch)", "alone it gives"),
            ("    engine.process_batch_result(pending)\n", "", "`turn` never processed `pending`"),
            ("return following", "return None", "but gave back None"),
            ("return following", "return batch", "must give the step it launched"),
        ),
        workloads=Workloads("mlx_async", level="stops"),
        no_worse=(("makespan", 1.0),),
        reach=8,
        hints=(
            "Which call waits for the device? What could be launched before it?",
            "The chained step reads tokens that nobody has. Who has to be told where they are?",
        ),
        why=(
            "The next step is built on `pending`'s tokens while they are still a graph. Only then "
            "the host waits for them. A step that is not told what it is built on reads the newest "
            "token that the host has, which is one too old."
        ),
    ),
    Exercise(
        name="may_chain",
        lesson="03_lazy_graphs",
        hole=Function("scheduler.scheduler:Scheduler.can_chain", call=chains),
        solution="""
            def may_chain(batch, running, waiting, chunked, pages_short):
                if waiting or chunked is not None:
                    return False
                return batch == running and pages_short == 0
        """,
        mistakes=(
            ("batch == running and ", "", "it broke the scheduler"),
            ("batch == running", "bool(running)", "it broke the scheduler"),
            (" and pages_short == 0", "", "it broke the scheduler"),
            ("waiting or chunked is not None", "chunked is not None", "is not asked"),
            ("return batch == running and pages_short == 0", "return False", "makespan"),
        ),
        workloads=Workloads("mlx_async", level="tight", seeds=60, cases=(GIVEN_UP,)),
        no_worse=(("makespan", 1.0),),
        reach=20,
        beside="",
        hints=(
            "The scheduler is not asked while the chain holds. Who would notice that?",
            "Whoever waits, whoever is half computed, whoever has ended, and who has no page left.",
            "If somebody ended or joined, `batch` and `running` differ.",
        ),
        why=(
            "A chain is a decision that was made once and is repeated. It may be repeated as long "
            "as everything is as it was: the same requests, nobody at the door, and room for one "
            "token more each. The scheduler's books have to be kept all the same (#30093)."
        ),
    ),
)  # fmt: skip
