"""Lesson 0, from nothing: a device that is a queue and a clock, and ``generate`` on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...checks.history import many
from ...devices.cost import MILLISECOND
from ...export.runs import compare
from ...export.scene_svg import to_svg
from ...models.hash import mix
from ...trace import Slice, Trace
from ..exercise import Exercise, Pure
from ..guard import Mistake, unwatched
from ..runs import VOCAB

# -- A model in a line, and a device in a few: what the exercises are held against -----------------

HOST, DEVICE = 6, 10  # ms a token


def model(tokens: Sequence[int]) -> int:
    """The next token: an exact hash of all tokens before, so that one wrong input shows."""
    state = 1
    for token in tokens:
        state = mix(state, token)
    return state % VOCAB


@dataclass(eq=False)
class Promise:
    """What ``launch`` gives back; the value is nobody's before ``wait``."""

    value: Any
    end: float
    number: int


@dataclass(eq=False)
class QueueAndClock:
    """The device of the exercises, with a note of what ran when."""

    now: float = 0
    free_at: float = 0
    launched: list[Promise] = field(default_factory=list)
    waited: set[int] = field(default_factory=set)
    launched_at_wait: dict[int, int] = field(default_factory=dict)  # by job: how many, at its wait
    most_in_flight: int = 0
    slices: list[Slice] = field(default_factory=list)

    def work(self, ms: float) -> None:
        """The host is busy."""
        self.note("host", "process", self.now, self.now + ms, max(1, len(self.waited)))
        self.now += ms

    def launch(self, fn: Callable[[], Any], ms: float) -> Promise:
        """Put a job into the queue: it begins when those before it are done."""
        start = max(self.now, self.free_at)
        self.free_at = start + ms
        self.launched.append(Promise(fn(), self.free_at, len(self.launched) + 1))
        self.note("forward", "forward", start, self.free_at, len(self.launched))
        self.most_in_flight = max(self.most_in_flight, len(self.launched) - len(self.waited))
        return self.launched[-1]

    def wait(self, op: Any) -> Any:
        """Stand still until a job is done, and take its value."""
        if not isinstance(op, Promise):
            raise Mistake(f"`wait` got {op!r}; it takes what `launch` gave back")
        self.launched_at_wait.setdefault(op.number, len(self.launched))
        if op.end > self.now:
            self.note("host", "wait", self.now, op.end, op.number)
        self.now = max(self.now, op.end)
        self.waited.add(op.number)
        return op.value

    def note(self, lane: str, name: str, start: float, end: float, step: int) -> None:
        """A box in the picture."""
        begins, ends = round(start * MILLISECOND), round(end * MILLISECOND)
        mode = "extend" if step == 1 else "decode"
        number = len(self.slices) + 1
        self.slices.append(Slice(number, lane, name, begins, ends, step, mode, ("a",)))

    def picture(self, title: str) -> str:
        """Who worked when."""
        slices = tuple(sorted(self.slices, key=lambda item: (item.start, item.end, item.id)))
        trace = Trace("your device", "sim", "hash", "virtual", slices, (), (), ())
        return to_svg(compare([trace], 0, title))


# -- Exercise 1: a script of launches, work and waits on a learner's device ------------------------

Script = tuple[tuple[str, int], ...]
WORDS = {"work": "work {} ms", "launch": "launch {} ms", "wait": "wait for job {}"}
SCRIPTS: tuple[tuple[Script], ...] = tuple(
    (script,)
    for script in (
        (("launch", 10),),
        (("launch", 10), ("wait", 0)),
        (("launch", 10), ("work", 6), ("wait", 0)),
        (("launch", 10), ("work", 16), ("wait", 0), ("wait", 0)),
        (("launch", 10), ("launch", 5), ("wait", 0), ("wait", 1)),
        (("launch", 10), ("launch", 5), ("wait", 1), ("wait", 0)),
        (("launch", 4), ("work", 9), ("launch", 4), ("wait", 1), ("work", 1), ("wait", 0)),
        (("work", 3), ("launch", 2), ("launch", 7), ("work", 5), ("launch", 1), ("wait", 2)),
    )
)


def played(make: Callable[[], Any], script: Script) -> list[tuple[float, Any]]:
    """What the clock says after each line of a script, and what a wait gave."""
    device, ops, order, said = make(), list[Any](), list[int](), list[tuple[float, Any]]()

    def job(number: int) -> Callable[[], Any]:
        def run() -> tuple[int, int]:
            order.append(number)
            return number, len(order)  # a value that tells in which order they ran

        return run

    for what, amount in script:
        value = None
        if what == "work":
            device.work(amount)
        elif what == "launch":
            ops.append(device.launch(job(len(ops)), amount))
        else:
            value = device.wait(ops[amount])
        said.append((device.now, value))
    return said


def as_a_queue(said: list[tuple[float, Any]], script: Script) -> str:
    """The first line after which the clock or a value is not as it should be."""
    done = list[str]()
    for (what, amount), (now, value), (due, right) in zip(
        script, said, played(QueueAndClock, script), strict=True
    ):
        done.append(WORDS[what].format(amount))
        story = ", ".join(done)
        if now != due:
            return f"After `{story}` the host's clock says {now!r} ms, but it should say {due:g}."
        if value != right:
            return (
                f"After `{story}` the wait gave {value!r}, but the job had given {right!r}: which "
                "job it was, and as which one it ran. Jobs run in the order of their launch."
            )
    return ""


def as_it_should_be(said: Any, script: Script) -> str:
    """The script on a device that is a queue and a clock."""
    device = QueueAndClock()
    played(lambda: device, script)
    story = ", ".join(WORDS[what].format(amount) for what, amount in script)
    return device.picture(f"As it should be: {story}") if device.slices else ""


# -- Exercises 2 and 3: tokens on such a device ----------------------------------------------------

PROMPTS = (([7], 1), ([7], 3), ([3, 1, 4], 6), ([15, 9, 2, 6, 5], 9))


@dataclass(frozen=True)
class Tokens:
    """What ``generate`` gave back, and the device it ran on."""

    given: Any
    device: QueueAndClock


def generated(generate: Any, prompt: list[int], count: int) -> Tokens:
    """Run it on a fresh device."""
    device = QueueAndClock()
    for name in ("work", "launch", "wait"):
        setattr(device, name, unwatched(getattr(device, name)))
    return Tokens(generate(device, unwatched(model), prompt, count), device)


def right_tokens(run: Tokens, prompt: list[int], count: int) -> str:
    """Whether they are the model's, one after the other, each with its share of the host's work."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(model(tokens))
    due, given, device = tokens[len(prompt) :], run.given, run.device
    asked = f"For the prompt {prompt} and {many(count, 'new token')}"
    if given != due:
        return (
            f"{asked} it gives {given!r}, should give {due}. Token by token: "
            "the model's input is everything before it."
        )
    if len(device.launched) != count:
        launches = many(len(device.launched), "launch", "launches")
        return f"{asked} the device got {launches}; it needs {count}."
    worked = [item for item in device.slices if item.name == "process"]
    if len(worked) != count:
        times = many(len(worked), "time")
        return f"{asked} the host worked {times}: `device.work(6)` once for each token."
    for at, (item, op) in enumerate(zip(worked, device.launched, strict=True), 1):
        if item.start < op.end * MILLISECOND:
            return f"{asked} the host worked on token {at} before it was there. `wait` first."
    costs = {item.name: item.duration // MILLISECOND for item in device.slices}
    if (costs["process"], costs["forward"]) != (HOST, DEVICE):
        return f"{asked} the costs are others: a job takes {DEVICE} ms, the host's work {HOST}."
    return ""


def ahead(run: Tokens, prompt: list[int], count: int) -> str:
    """The same, and the device is never idle, with two jobs in flight at most."""
    if problem := right_tokens(run, prompt, count):
        return problem
    if run.device.most_in_flight > 2:
        return (
            f"{run.device.most_in_flight} jobs were in flight at once. Any token may turn out to "
            "be the last: what was launched behind it is wasted. One ahead is enough."
        )
    for number, launched in run.device.launched_at_wait.items():
        if launched == number < count:
            return (
                f"You waited for token {number} before you launched job {number + 1}. Here that "
                "costs nothing; on a real device every launch takes time, and the way of the token "
                "to the host, too. Launch first, then wait."
            )
    took, best = run.device.now, count * DEVICE + HOST
    if took > best:
        return (
            f"Every token is right, but {many(count, 'token')} took {took:g} ms, and {best} "
            "would be enough. Look at the gaps in the device's lane: what could it have been doing?"
        )
    return ""


def as_it_ran(run: Tokens, prompt: list[int], count: int) -> str:
    """Their run."""
    idle = max(0, run.device.now - DEVICE * len(run.device.launched))
    tokens = many(count, "token")
    title = f"{tokens} in {run.device.now:g} ms; the device had nothing to do for {idle:g}"
    return run.device.picture(title) if run.device.slices else ""


EXERCISES = (
    Exercise(
        name="Device",
        lesson="00_from_nothing",
        hole=Pure(lambda: SCRIPTS, call=played, holds=as_a_queue, draw=as_it_should_be),
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
        mistakes=(
            ("max(self.now, self.free_at)", "self.now", "should say 15"),
            ("max(self.now, self.free_at)", "self.free_at", "should say"),
            ("self.now = max(self.now, end)", "self.now = end", "should say 16"),
            ("return value", "return op", "the wait gave"),
            ("return fn(), self.free_at", "return fn, self.free_at", "the wait gave"),
        ),
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
        lesson="00_from_nothing",
        hole=Pure(lambda: PROMPTS, call=generated, holds=right_tokens, draw=as_it_ran),
        solution="""
            def generate_tokens(device, model, prompt, count):
                tokens = list(prompt)
                for _ in range(count):
                    op = device.launch(lambda: model(tokens), 10)
                    tokens.append(device.wait(op))
                    device.work(6)
                return tokens[len(prompt):]
        """,
        mistakes=(
            ("tokens.append(device.wait(op))", "tokens.append(op)", "should give"),
            ("        device.work(6)\n", "", "the host worked 0 times"),
            ("return tokens[len(prompt):]", "return tokens", "should give"),
        ),
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
        lesson="00_from_nothing",
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
        mistakes=(
            (" if at < count - 1 else None", "", "launches;"),
            ("    tokens.append(device.wait(op))\n        device.work(6)",
             "    device.work(6)\n        tokens.append(device.wait(op))", "before it was there"),
            ("", "def generate_ahead(device, model, prompt, count):\n"
             "    tokens = list(prompt)\n"
             "    op = device.launch(lambda: model(tokens), 10)\n"
             "    for at in range(count):\n"
             "        tokens.append(device.wait(op))\n"
             "        if at < count - 1:\n"
             "            op = device.launch(lambda: model(tokens), 10)\n"
             "        device.work(6)\n"
             "    return tokens[len(prompt):]\n", "Launch first, then wait"),
            ("", "def generate_ahead(device, model, prompt, count):\n"
             "    memory = list(prompt)\n"
             "    def step():\n"
             "        memory.append(model(memory))\n"
             "        return memory[-1]\n"
             "    ops = [device.launch(step, 10) for _ in range(count)]\n"
             "    done = []\n"
             "    for op in ops:\n"
             "        done.append(device.wait(op))\n"
             "        device.work(6)\n"
             "    return done\n", "jobs were in flight at once"),
        ),
        hints=(
            "`step` reads its input from the device's memory. Does the host have to know it?",
            "Launch the first before the loop; in the loop the next one, before you wait.",
            "The last round has nothing more to launch.",
        ),
        why=(
            "The token never had to come to the host and back: the next job finds it in the "
            "device's memory, and the queue keeps the order. The host hears of it one job late, "
            "and works while the device does. That is overlap scheduling, in ten lines."
        ),
    ),
)  # fmt: skip
