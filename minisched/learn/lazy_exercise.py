"""Hand over before you read: the order of building, ``async_eval``, reading and the host's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..core import ScheduleBatch
from ..devices.base import Device, Label
from ..devices.cost import MILLISECOND
from ..devices.sim import SimDevice, SimOp
from ..engine.engine import Engine
from ..export.layout import steady_views
from ..export.mlx_memory import NewestKnown
from ..export.runs import side_by_side
from ..export.scene_svg import to_svg
from ..models.hash import mix
from ..relay import LazyChain
from ..trace import Trace
from ..worker import Step
from .figure import LessonFigure
from .grade import ExerciseVerdict
from .guard import Mistake, TooLong, blame, bounded, in_time, takes, unwatched
from .loop_exercise import step_of, too_slow
from .runs import VOCAB, joined, ordinal
from .trial import BrokenLaw, ExerciseWorkload, Loop, StepNotes, Trial, WorkloadLimits, broken, play
from .verdicts import right, try_all

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


# -- A lazy chain that does not complain where a step is not told what it is built on --------------


class NewestOrLazy(LazyChain):
    """Without a previous step, an unknown token is the newest that the host has.

    That is what SGLang's ``decode_batch_start`` for MLX does, which is for fresh steps; an excerpt
    of #22416 calls it for chained ones (``export/mlx_memory.py``). ``untold`` are the steps to
    which that happened.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.untold: set[int] = set()

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """Places in the previous step's tokens; without one, the newest known tokens."""
        if previous is not None or not any(None in row.ids for row in batch.rows):
            return super().bind(batch, previous)
        self.untold.add(batch.step)
        return NewestKnown().bind(batch, None)


Generate = Callable[..., Any]
COUNT = 14  # tokens
PAIRS = ((6, 10), (10, 6), (9, 9), (0, 5))  # host and device, in ms a token
ARGUMENTS = ("step", "first", "count", "async_eval", "host_work")


@in_time
def check_generate(generate: Generate) -> ExerciseVerdict:
    """Whether ``generate(step, first, count, async_eval, host_work)`` is right, and one step ahead.

    The lazy tokens are those of ``lazy_clock``: the same calls as MLX's, on a virtual clock.
    """
    if problem := takes(generate, "generate", *ARGUMENTS):
        return ExerciseVerdict(False, [problem])
    for host, device in PAIRS:
        clock = LazyClock(host * MILLISECOND, device * MILLISECOND)
        if failed := _try(generate, clock, f"host {host} ms, device {device} ms a token"):
            return failed
    return ExerciseVerdict(
        True,
        [
            f"Checked with {len(PAIRS)} pairs of costs: all {COUNT} tokens are right, each one was "
            "worked upon once, in order, and before the next was read. On average, from one token "
            "to the next it took no longer than the longer of host and device, and "
            "there were never more than two graphs in flight."
        ],
    )


def _try(generate: Generate, clock: LazyClock, costs: str) -> ExerciseVerdict | None:
    problem, given = "", None
    try:
        with bounded():
            given = generate(
                unwatched(clock.step), FIRST, COUNT,
                unwatched(clock.async_eval), unwatched(clock.host_work),
            )  # fmt: skip
    except (Exception, TooLong) as error:
        problem = blame(error)
    trace = clock.trace("your generate")
    problem = problem or _wrong_tokens(given) or _wrong_work(clock) or _too_far_ahead(clock)
    problem = problem or _too_slow(clock, step_of(trace), costs)
    if not problem:
        return None
    return ExerciseVerdict(False, [problem], [drawn(trace)] if trace.on("forward") else [])


def drawn(trace: Trace) -> LessonFigure:
    """A few settled steps; without the copy stream, which MLX does not have."""
    views = [
        replace(view, lanes=tuple(lane for lane in view.lanes if lane.key != "copy"))
        for view in steady_views([trace], 3)
    ]
    svg = to_svg(side_by_side(views))
    return LessonFigure(svg.replace(">another phase</text>", ">build a graph</text>"))


def truth() -> list[int]:
    """The tokens, one after the other."""
    tokens = [FIRST]
    for position in range(1, COUNT + 1):
        tokens.append(token_after(tokens[-1], position))
    return tokens[1:]


def _wrong_tokens(given: Any) -> str:
    if not isinstance(given, list):
        kind = type(given).__name__
        return f"generate gave back {given!r}, of type {kind}, but it must give a list of tokens."
    for at, (token, due) in enumerate(zip(given, truth(), strict=False), 1):
        if token != due:
            kept = isinstance(token, LazyToken)
            hint = ": you kept the lazy token; read it with .item()" if kept else ""
            return f"The {ordinal(at)} token is {token!r}, should be {due}{hint}."
    if len(given) != COUNT:
        return f"generate gave back {len(given)} tokens, but {COUNT} were asked for."
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
            return f"host_work got {token!r} as its {ordinal(at)} token, should get {due}."
    return f"host_work was called {len(clock.worked_on)} times, but there are {COUNT} tokens."


def _too_far_ahead(clock: LazyClock) -> str:
    count, step = clock.most_in_flight
    if count <= 2:
        return ""
    return (
        f"When step {step} was handed over, {count} steps were on their way and unread. Had the "
        f"oldest of their tokens been the end of the text, {count - 1} steps would be wasted; one "
        "step ahead is enough."
    )


def _too_slow(clock: LazyClock, took: float | None, costs: str) -> str:
    best = max(clock.host + BUILD, clock.device) / MILLISECOND
    if took is not None and took <= best + 1e-6:
        return ""
    return (
        f"Every token is right, but the device waits. With {costs} it takes {took:g} ms from one "
        f"token to the next, on average, of which building a graph is {BUILD // MILLISECOND} ms; "
        f"{best:g} ms would be enough. In the hatched gaps the device has "
        "nothing: what could you hand over before you read?"
    )


# -- Loops on lazy tokens with a hole for a learner's lines: a whole turn, or one decision ---------

Turn = Callable[[Engine, Step], Any]
MayChain = Callable[[Sequence[str], Sequence[str], Sequence[str]], Any]
Turns = Iterator[ScheduleBatch | None]


def loop_of_turns(turn: Turn) -> Loop:
    """A loop that calls ``turn`` as long as a step is in flight, and otherwise schedules."""

    def loop(engine: Engine) -> Turns:
        steps = StepNotes()
        steps.watch(engine)
        pending: Step | None = None
        while True:
            engine.recv_requests()
            if pending is not None:
                pending = _after_a_turn(steps, pending, turn(engine, pending))
            if pending is None:
                pending = launch_fresh(engine)
            yield pending.batch if pending else None

    return loop


def loop_that_asks(may_chain: MayChain, waited: list[tuple[int, str]]) -> Loop:
    """A loop that chains where ``may_chain`` says so; notes (step, request) of who waited then."""

    def loop(engine: Engine) -> Turns:
        pending: Step | None = None
        while True:
            engine.recv_requests()
            following = None
            if pending is not None:
                if may_chain(*_state(engine, pending)):
                    following = _chain(engine, pending, waited)
                engine.process_batch_result(pending)
            pending = following or launch_fresh(engine)
            yield pending.batch if pending else None

    return loop


def launch_fresh(engine: Engine) -> Step | None:
    """Nothing is in flight, so the scheduler may decide as it likes."""
    batch = engine.get_next_batch_to_run()
    if batch:
        return engine.run_batch(batch)
    engine.on_idle()
    return None


def _state(engine: Engine, pending: Step) -> tuple[list[str], list[str], list[str]]:
    """Ids of who is in the step in flight, of who waits, and of who in that step has ended."""
    batch, waiting = pending.batch, engine.scheduler.waiting_queue
    ended = [req.rid for req in batch.reqs if req.finished]
    return list(batch.rids), [req.rid for req in waiting], ended


def _chain(engine: Engine, pending: Step, waited: list[tuple[int, str]]) -> Step | None:
    """The same rows once more, whoever waits; None for a prompt, which cannot be repeated."""
    batch, waiting, ended = _state(engine, pending)
    if ended:
        raise Mistake(
            f"after step {pending.batch.step} your loop chained on with {joined(batch)}, but "
            f"request {ended[0]} has ended: its place and its memory may belong to somebody "
            "else by then"
        )
    following = engine.advance_step(pending)
    if following is not None:
        waited += [(following.batch.step, rid) for rid in waiting]
    return following


def _after_a_turn(steps: StepNotes, pending: Step, given: Any) -> Step | None:
    """The step that a turn gave back, or None.

    Raises:
        Mistake: it gave something else, or left a step behind.
    """
    if given is not None and not isinstance(given, Step):
        kind = type(given).__name__
        raise Mistake(f"`turn` gave back a {kind}, but it must give the step it launched, or None")
    step = pending.batch.step
    if step in steps.in_flight and given is not pending:
        raise Mistake(f"`turn` never processed `pending`, which was step {step}")
    if steps.in_flight and given is None:
        raise Mistake(f"`turn` launched step {steps.in_flight[0]} but gave back None")
    return given


# -- What a lazy step is built on, and when the chain must break: two parts of MLX's loop ----------

SHAPE = WorkloadLimits()


@in_time
def check_turn(turn: Turn) -> ExerciseVerdict:
    """Whether ``turn(engine, pending)`` keeps two lazy graphs in flight, on the right tokens.

    It is given the step in flight, and gives back the one launched behind it, or None.
    """
    if problem := takes(turn, "turn", "engine", "pending"):
        return ExerciseVerdict(False, [problem])
    loop = loop_of_turns(turn)
    if failed := try_all(partial(play_lazily, loop=loop), SHAPE, explain=why):
        return failed
    return too_slow(loop, "chain", "mlx_async") or right(
        "Two graphs are in flight: a settled step takes no longer than the longer of host and "
        "device needs."
    )


@in_time
def check_may_chain(may_chain: MayChain) -> ExerciseVerdict:
    """Whether ``may_chain(batch, waiting, ended)`` breaks the chain when it must, and only then.

    All three are request ids: of the step in flight, of who waits, of who has ended.
    """
    if problem := takes(may_chain, "may_chain", "batch", "waiting", "ended"):
        return ExerciseVerdict(False, [problem])

    def playing(workload: ExerciseWorkload) -> Trial:
        chained: list[tuple[int, str]] = []
        trial = play_lazily(workload, loop_that_asks(may_chain, chained))
        trial.parts["waited"] = chained
        return trial

    if failed := try_all(playing, SHAPE, law=nobody_waits):
        return failed
    return too_slow(loop_that_asks(may_chain, []), "chain", "mlx_async") or right(
        "Nobody waited while others were chained, and nobody was chained who had ended."
    )


def play_lazily(workload: ExerciseWorkload, loop: Loop) -> Trial:
    """A loop on lazy tokens; a step that was not told what it is built on gets an old token."""
    relay: list[NewestOrLazy] = []

    def patch(engine: Engine) -> None:
        relay.append(NewestOrLazy(engine.device))
        engine.worker.relay = relay[0]

    trial = play(workload, loop, "chain", patch)
    trial.parts["untold"] = relay[0].untold
    return trial


def why(trial: Trial, what: BrokenLaw) -> Sequence[str]:
    """What a wrong step was built on."""
    before = sum(one.step < what.step for one in trial.tokens(what.rid))
    if what.law != "identity" or what.step not in trial.parts["untold"] or not before:
        return []
    return [
        f"run_batch was not told which step {what.step} is built on. So its input for request "
        f"{what.rid} was the newest token that the host had then, and not its {ordinal(before)} "
        f"one, which step {what.step - 1} was still computing."
    ]


def nobody_waits(trial: Trial) -> BrokenLaw | None:
    """The laws, and: while somebody waits, nothing is chained."""
    if found := broken(trial):
        return found
    waited: list[tuple[int, str]] = trial.parts["waited"]
    if not waited:
        return None
    step, rid = waited[0]
    steps = [str(at) for at, who in waited if who == rid]
    words = f"steps {joined(steps)} were" if len(steps) > 1 else f"step {step} was"
    sentence = (
        f"request {rid} waited while {words} chained. A chain has the same requests in every "
        f"step, so {rid} can't join before it breaks."
    )
    return BrokenLaw("waits", sentence, step, rid)
