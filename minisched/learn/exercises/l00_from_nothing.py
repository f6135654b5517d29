"""Lesson 0, from nothing: a device that is a queue and a clock, and ``generate`` on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any

from ...checks.history import many
from ...devices.base import Label
from ...devices.cost import MILLISECOND
from ...devices.sim import SimDevice, SimOp
from ...models.hash import mix
from ...trace import Trace
from ..exercise import Exercise, Pure, short
from ..guard import Mistake, unwatched
from ..runs import VOCAB, timing

# -- A device that is a queue, and who did what on it: here and in lesson 3 ------------------------


@dataclass(eq=False, repr=False)
class LaunchedJob:
    """A launched job. Only ``wait`` gives its value."""

    op: SimOp
    number: int

    def __repr__(self) -> str:
        return f"job {self.number}"


class QueueAndClock:
    """One queue of jobs and one host on a virtual clock, and a note of what the host did.

    ``acts`` are ``("launch", 1)``, ``("wait", 1)``, ``("work", 1)``: jobs by number, and work by
    how many times there was some.
    """

    def __init__(self) -> None:
        self.sim = SimDevice()
        self.acts: list[tuple[str, int]] = []
        self.is_in_job = False

    @property
    def now(self) -> float:
        """The host's clock, in ms."""
        return self.sim.now() / MILLISECOND

    def work(self, ms: float) -> None:
        """The host is busy."""
        number = self.count("work") + 1
        self.busy("process", ms, number)
        self.acts.append(("work", number))

    def launch(self, fn: Callable[[], Any], ms: float) -> LaunchedJob:
        """Put a job into the queue: it begins when those before it are done."""
        self.is_in_job = True
        value, number = fn(), self.count("launch") + 1
        self.is_in_job = False
        self.acts.append(("launch", number))
        op = self.sim.stream("forward").launch(
            lambda: value, name="forward", cost=round(ms * MILLISECOND), label=of_step(number)
        )
        return LaunchedJob(op, number)

    def wait(self, job: Any, until: LaunchedJob | None = None) -> Any:
        """Stand still until a job is done, or ``until`` is, and take the job's value.

        Raises:
            Mistake: it is no job.
        """
        if not isinstance(job, LaunchedJob):
            raise Mistake(f"`wait` got {job!r}; it takes what `launch` gave back")
        start = self.sim.now()
        (until or job).op.synchronize()
        value = job.op.synchronize()
        if self.sim.now() > start:
            step = of_step(job.number)
            self.sim.record("host", "wait", start, step, self.sim.recorder.new_id())
        self.acts.append(("wait", job.number))
        return value

    def busy(self, phase: str, ms: float, step: int) -> None:
        """The host does something of its own."""
        with self.sim.host(phase, round(ms * MILLISECOND), of_step(step)):
            pass

    def count(self, kind: str) -> int:
        """How often the host did that."""
        return sum(kind == done for done, _ in self.acts)

    def when(self, kind: str, number: int) -> float:
        """As which of its acts the host did that; infinity if it did not."""
        return self.acts.index((kind, number)) if (kind, number) in self.acts else inf

    def trace(self) -> Trace:
        """Return the trace, once everything in the queue has run."""
        while (time := self.sim.next_event) is not None:
            self.sim.idle_until(time)
        return Trace.of(self.sim.recorder, "your lines", "sim", "hash", "virtual")


def of_step(number: int) -> Label:
    """How a job and the work on it are drawn."""
    return Label(number, "extend" if number == 1 else "decode", ("a",))


@dataclass(frozen=True)
class Generated:
    """The tokens of a learner's ``generate``, its device, its ms, and what it was asked for."""

    given: Any
    device: QueueAndClock
    took: float
    asked: str

    def one_by_one(self, due: Sequence[int]) -> str:
        """Return a sentence on wrong tokens, or on missing work of the host; or ''."""
        when, asked = self.device.when, self.asked
        if self.given != due:
            wrong = f"{asked} it gives {short(self.given)}, should give {due}."
            if not isinstance(self.given, list) or len(self.given) != len(due):
                return f"{wrong} It must give each new token, and only those; 0 is a token, too."
            return f"{wrong} Token by token: the model's input is everything before it."
        if (worked := self.device.count("work")) != len(due):
            times = many(worked, "time")
            return f"{asked} the host worked {times}; it should once for each token."
        for number in range(1, len(due) + 1):
            if when("work", number) < when("wait", number):
                return f"{asked} the host worked on token {number} before it was there: wait first."
            if number > 1 and when("wait", number) < when("work", number - 1):
                return (
                    f"{asked} token {number} was waited for before the host had worked on token "
                    f"{number - 1}. A reader of the text would see nothing for so long: work on "
                    "each token before you wait for the next one."
                )
        return ""

    def one_ahead(self, count: int, best: float) -> str:
        """Return a sentence on a launch that came too early or too late, or ''."""
        when, launched, waited_for = self.device.when, 0, set[int]()
        for kind, number in self.device.acts:
            launched += kind == "launch"
            if kind == "wait":
                waited_for.add(number)
            if (flying := launched - len(waited_for)) > 2:
                return (
                    f"{flying} jobs were in flight at a time. Any token may turn out to be the "
                    "last, and each job launched after it is wasted. One ahead is enough."
                )
        if self.took > best:
            return (
                f"Every token is right, but {self.asked} it took {self.took:g} ms, and "
                f"{best:g} would be enough. Look at the gaps in the device's lane: what could you "
                "launch before you wait?"
            )
        for number in range(1, count):
            if when("wait", number) < when("launch", number + 1):
                return (
                    f"You waited for token {number} before you launched job {number + 1}. Here "
                    "that costs nothing; on a real device every launch takes time, and the way of "
                    "the token to the host, too. Launch first, then wait."
                )
        return ""


def as_it_ran(run: Generated, *args: Any) -> str:
    """Their run from beginning to end."""
    trace = run.device.trace()
    idle = trace.end - sum(item.duration for item in trace.on("forward"))
    took = f"{trace.end / MILLISECOND:g} ms; the device had nothing to do for"
    title = f"{many(run.device.count('launch'), 'job')} in {took} {idle / MILLISECOND:g}"
    return timing(trace, whole=True, title=title).svg if trace.on("forward") else ""


# -- Exercise 1: a script of launches, work and waits on a learner's device ------------------------

Script = tuple[tuple[str, float], ...]
TIMES = (0, 0.5, 1, 2, 2.5, 5, 7, 10, 12)  # ms
WORDS = {"work": "work {} ms", "launch": "launch {} ms", "wait": "wait for job {}",
         "equal": "launch {} ms that give 0", "again": "launch `step` {} ms"}  # fmt: skip
SCRIPTS: tuple[Script, ...] = (
    (("launch", 10),),
    (("launch", 10), ("wait", 0)),
    (("launch", 10), ("work", 6), ("wait", 0)),
    (("launch", 10), ("work", 16), ("wait", 0), ("wait", 0)),
    (("launch", 10), ("launch", 5), ("wait", 0), ("wait", 1)),
    (("equal", 10), ("equal", 5), ("wait", 0), ("wait", 1)),
    (("equal", 0), ("wait", 0)),
    (("launch", 10), ("launch", 0), ("wait", 0), ("wait", 1)),
    (("launch", 10), ("launch", 0), ("wait", 1)),
    (("again", 10), ("again", 10), ("wait", 0), ("wait", 1)),
    (("launch", 10), ("launch", 5), ("wait", 1), ("wait", 0)),
)


def scripts() -> Iterator[tuple[Script]]:
    """Some by hand, random ones, and the one of the picture."""
    yield from zip(SCRIPTS[:-1])
    random = Random(0)
    for size in sorted([*range(2, 40)] * 3):
        lines, launched = list[tuple[str, float]](), 0
        for _ in range(2 + size // 4):
            kinds = ("work", "launch", "equal", "wait", "wait") if launched else ("work", "launch")
            what = random.choice(kinds)
            launched += what in ("launch", "equal")
            lines.append(
                (what, random.randrange(launched) if what == "wait" else random.choice(TIMES))
            )
        yield (tuple(lines),)
    yield (SCRIPTS[-1],)


def played(make: Callable[[], Any], script: Script) -> list[tuple[float, Any]]:
    """Return the clock after each line of a script, with the value of a wait.

    A job's value is its number, and its place in the order in which jobs ran; or it is 0, which is
    false. Each ``again`` launches the same function, ``step``.
    """
    device, ops, order, said = make(), list[Any](), list[int | str](), list[tuple[float, Any]]()

    def job(name: int | str, is_equal: bool = False) -> Callable[[], Any]:
        def run() -> Any:
            order.append(name)
            return 0 if is_equal else (name, len(order))

        return run

    step = job("step")
    for what, amount in script:
        value = None
        if what == "work":
            device.work(amount)
        elif what == "wait":
            value = device.wait(ops[int(amount)])
        else:
            fn = step if what == "again" else job(len(ops), what == "equal")
            ops.append(device.launch(fn, amount))
        said.append((device.now, value))
    return said


def as_a_queue(said: list[tuple[float, Any]], script: Script) -> str:
    """The first line after which the clock or a value is not as it should be."""
    lines = [WORDS[what].format(amount) for what, amount in script]
    for at, ((now, value), (due, right)) in enumerate(
        zip(said, played(QueueAndClock, script), strict=True), 1
    ):
        story = f"After `{', '.join(lines[:at])}`"
        if now != due:
            return f"{story} the host's clock is at {now!r} ms, but it should be at {due:g}."
        if value != right:
            return (
                f"{story} the wait gave {value!r}, but the job had given {right!r}: which job it "
                "was, and as which one it ran, or 0. Jobs run in the order of their launch."
            )
    return ""


def as_it_should_be(said: Any, script: Script) -> str:
    """The script on a device that is a queue and a clock."""
    device = QueueAndClock()
    played(lambda: device, script)
    title = "As it should be: " + ", ".join(WORDS[what].format(amount) for what, amount in script)
    return timing(device.trace(), whole=True, title=title, detail=True).svg


# -- Exercises 2 and 3: tokens on such a device ----------------------------------------------------

HOST, DEVICE = 6, 10  # ms a token
REPEATS = [3, 5, 3], 4  # gives 5, which is in the prompt, and then token 0
LONG = [*range(20)], 40
PROMPTS = (([7], 1), ([7], 3), ([8, 8], 2), REPEATS, ([3, 1, 4], 9), LONG, ([15, 9, 2, 6, 5], 9))


def model(tokens: Sequence[int]) -> int:
    """The next token: an exact hash of all tokens before, so that one wrong input shows."""
    state = 1
    for token in tokens:
        state = mix(state, token)
    return state % VOCAB


def generated(generate: Any, prompt: list[int], count: int) -> Generated:
    """Run it on a fresh device."""
    device = QueueAndClock()
    asked = f"for the prompt {prompt} and {many(count, 'new token')}"
    for name in ("work", "launch", "wait"):
        setattr(device, name, unwatched(getattr(device, name)))

    def on_device(tokens: Sequence[int]) -> int:
        if not device.is_in_job:
            raise Mistake(
                "the host called `model`, which only the device can run: call it in what `launch` "
                "gets"
            )
        return model(tokens)

    mine = list(prompt)
    given = generate(device, unwatched(on_device), mine, count)
    if mine != prompt:
        raise Mistake(
            f"{asked} your lines write to the list `prompt`, which belongs to the client; copy it: "
            "`list(prompt)`"
        )
    return Generated(given, device, device.now, asked)


def right_tokens(run: Generated, prompt: list[int], count: int) -> str:
    """Compare with the model's tokens: each needs one job and one piece of the host's work."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(model(tokens))
    if problem := run.one_by_one(tokens[len(prompt) :]):
        return problem
    if (launched := run.device.count("launch")) != count:
        launches = many(launched, "launch", "launches")
        return f"{run.asked} the device got {launches}; it needs {count}."
    took = {(item.name, item.duration // MILLISECOND) for item in run.device.trace().slices}
    if took - {("process", HOST), ("forward", DEVICE), ("wait", DEVICE), ("wait", DEVICE - HOST)}:
        return f"{run.asked} the costs are others: a job takes {DEVICE} ms, the host's work {HOST}."
    return ""


def ahead(run: Generated, prompt: list[int], count: int) -> str:
    """The same, and the device is never idle, with two jobs in flight at most."""
    return right_tokens(run, prompt, count) or run.one_ahead(count, count * DEVICE + HOST)


EXERCISES = (
    Exercise(
        name="Device",
        hole=Pure(scripts, call=played, holds=as_a_queue, draw=as_it_should_be),
        solution="""
            class Device:
                def __init__(self):
                    self.now = 0
                    self.free_at = 0

                def work(self, ms):
                    self.now += ms

                def launch(self, fn, ms):
                    start = max(self.now, self.free_at)
                    self.free_at = start + ms
                    return fn(), self.free_at

                def wait(self, op):
                    value, end = op
                    self.now = max(self.now, end)
                    return value
        """,
        hints=(
            "Two clocks: the host's `now`, and the time at which the device is free again.",
            "A job starts when the host has launched it *and* those before it are done: `max`.",
            "`launch` gives back the value and its end; `wait` moves `now` to the end, never back.",
        ),
        why=(
            "A device is a queue and a clock. To launch costs the host nothing, and to wait costs "
            "what is left. All that follows in this course is the art of launching before waiting."
        ),
    ),
    Exercise(
        name="generate_tokens",
        hole=Pure(
            lambda: (([8, 8], 0), *PROMPTS), call=generated, holds=right_tokens, draw=as_it_ran
        ),
        solution="""
            def generate_tokens(device, model, prompt, count):
                tokens = list(prompt)
                for _ in range(count):
                    op = device.launch(lambda: model(tokens), 10)
                    tokens.append(device.wait(op))
                    device.work(6)
                return tokens[len(prompt):]
        """,
        hints=(
            "All jobs are launched before the first token is there. What do they read?",
            "One loop: launch, wait, append, work.",
        ),
        why=(
            "Each token is the input of the next one, so one job has to wait for the other. If it "
            "waits for the host's work as well, the device has nothing to do meanwhile. That gap "
            "is called the bubble, and the next exercise removes it."
        ),
    ),
    Exercise(
        name="generate_ahead",
        hole=Pure(lambda: PROMPTS, call=generated, holds=ahead, draw=as_it_ran),
        solution="""
            def generate_ahead(device, model, prompt, count):
                memory = list(prompt)  # lies on the device

                def step():
                    memory.append(model(memory))
                    return memory[-1]

                tokens, op = [], device.launch(step, 10)
                for at in range(count):
                    following = device.launch(step, 10) if at < count - 1 else None
                    tokens.append(device.wait(op))
                    device.work(6)
                    op = following
                return tokens
        """,
        hints=(
            "`step` reads its input from the device's memory. Does the host have to know it?",
            "Launch the first before the loop; in the loop the next one, before you wait.",
            "The last round has nothing more to launch.",
        ),
        why=(
            "The token never had to come to the host and back: the next job finds it in the "
            "device's memory, and the queue keeps the order. The host reads it one job late, "
            "and works while the device does. That is overlap scheduling, in ten lines."
        ),
    ),
)  # fmt: skip
