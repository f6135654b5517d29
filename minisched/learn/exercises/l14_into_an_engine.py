"""Lesson 14, into an engine: the input of a step, and the loop of a small engine, overlapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, NamedTuple

from ...checks.answers import Recorded
from ...checks.verdict import verdicts_on
from ...export.units import ms
from ...trace import Trace
from ..exercise import Exercise, Pure
from ..guard import Mistake
from ..runs import timing
from ..small_engine import SmallEngine, generate_serial

PROMPTS = (
    (([1, 2, 3], 4),),
    (([1, 1], 30),),
    (([1, 2, 3], 9), ([4, 5], 12)),
    (([1, 2, 3], 9), ([4, 5], 12), ([6, 7, 8, 9], 6), ([3, 3], 8), ([8], 10)),
    (([9, 1], 40), ([2, 2, 4], 3), ([1, 1], 30), ([30, 6], 25)),
    (([1, 2, 3], 9), ([4, 5], 9), ([8], 9), ([3, 3], 9)),
    (([1, 2, 3], 1), ([4, 5], 12), ([8], 2), ([3, 3], 1)),
)
"""Prompts with the most tokens of their answers; that of `1 1` ends early, at its 12th token.

In the last but one three answers end in the same step, and only then the fourth has a slot. In the
last ones an answer has one token, which its prompt brings.
"""
MOST_STEPS = 400


# -- input_ids -------------------------------------------------------------------------------------


class SequenceRow(NamedTuple):
    """One sequence of a step that is about to be launched."""

    slot: int
    answer: list[int]  # the tokens that the host knows
    in_flight: int  # launched tokens that the host does not know, with that of this step


def rows() -> Iterator[tuple[list[SequenceRow]]]:
    """Yield the sequences of a step; the first step has none, and the next ones have one."""
    random = Random(0)
    yield ([],)
    for size in range(40):
        slots = random.sample(range(8), 1 + size // 6)
        answers = [[random.randrange(97) for _ in range(random.randrange(4))] for _ in slots]
        both = zip(slots, answers, strict=True)
        yield ([SequenceRow(*pair, random.randint(1, 3)) for pair in both],)
    yield ([SequenceRow(2, [7, 0], 1)],)
    slots = random.sample(range(300), 40)
    yield ([SequenceRow(slot, [slot % 97], 1 + slot % 9) for slot in slots],)


def right_ids(seqs: list[SequenceRow]) -> list[int]:
    """Return the input ids of a step."""
    return [
        -1 - row.slot if row.in_flight > 1 else row.answer[-1] if row.answer else 0 for row in seqs
    ]


# -- generate --------------------------------------------------------------------------------------


def trace_of_engine(engine: SmallEngine, name: str) -> Trace:
    """Return what a small engine has recorded."""
    return Trace.of(engine.rec, name, "small engine", "hash", "wall")


@cache
def serial_run(workload: int) -> SmallEngine:
    """Return the engine after the serial loop."""
    engine = SmallEngine(PROMPTS[workload])
    generate_serial(engine)
    return engine


class CountedEngine(SmallEngine):
    """A small engine that stops a loop without an end, and wrong calls of a loop."""

    def __init__(self, workload: int) -> None:
        super().__init__(PROMPTS[workload])
        self.waited, self.read = set[int](), set[int]()  # steps
        self.scheduled: list[Any] = []  # the sequences that `launch` has not got yet

    def schedule(self) -> list[Any]:
        """Schedule, unless far more steps were scheduled than there are tokens.

        Raises:
            Mistake: the loop does not end.
        """
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > MOST_STEPS:
            raise Mistake(
                f"`schedule` was called {MOST_STEPS} times, and some answer has not ended"
            )
        self.scheduled = super().schedule()
        return self.scheduled

    def launch(self, seqs: Any, ids: Any) -> Any:
        """Launch a step that has a sequence.

        Raises:
            Mistake: it has none, not as many ids, or two steps are in flight.
        """
        if not seqs:
            raise Mistake("`launch` got no sequence: `schedule` returned none; test that first")
        if len(ids) != len(seqs):
            raise Mistake(f"`launch` got {len(seqs)} sequences and {len(ids)} ids")
        if self.steps - len(self.read) > 1:
            raise Mistake(
                f"step {self.steps + 1} is launched while steps {len(self.read) + 1} and "
                f"{self.steps} are in flight. Two keep the device busy; with more, an answer that "
                "ends early wastes more steps"
            )
        self.scheduled = []
        return super().launch(seqs, ids)

    def wait(self, step: Any) -> tuple[int, ...]:
        """Wait, unless a step could be launched first.

        Raises:
            Mistake: `schedule` has returned sequences that are not launched.
        """
        if self.scheduled:
            raise Mistake(
                f"step {self.steps + 1} was scheduled, but you waited for step {step.step} before "
                "you launched it. Meanwhile the device may run out of work: launch first, then wait"
            )
        self.waited.add(step.step)
        return super().wait(step)

    def postprocess(self, step: Any, tokens: Any) -> None:
        """Process a step once, and in the order of the launches.

        Raises:
            Mistake: it was processed before, another one is next, or its tokens are not there yet.
        """
        if step.step in self.read:
            raise Mistake(f"step {step.step} has already been processed")
        if step.step != len(self.read) + 1:
            raise Mistake(f"step {step.step} is processed, but step {len(self.read) + 1} is next")
        if step.step not in self.waited:
            raise Mistake(
                f"step {step.step} is processed before you waited for it: its tokens are not there "
                "yet"
            )
        self.read.add(step.step)
        super().postprocess(step, tokens)


def generated(lines: Callable[..., Any], workload: int) -> CountedEngine:
    """Return the engine after a learner's loop."""
    engine = CountedEngine(workload)
    lines(engine)
    return engine


def held(engine: CountedEngine, workload: int) -> str:
    """Return a sentence on the first thing that does not hold: tokens, ends, overlap, time."""
    serial = serial_run(workload)
    if left := engine.steps - len(engine.read):
        return f"{left} of {engine.steps} launched steps were never processed"
    for own, other in zip(engine.all, serial.all, strict=True):
        if own.answer != other.answer:
            return (
                f"sequence {own.rid} gets the tokens {own.answer}, but {other.answer} in the "
                "serial loop"
            )
    runs = [
        Recorded(name, trace_of_engine(run, name))
        for name, run in (("serial", serial), ("yours", engine))
    ]
    for answer in verdicts_on(runs)[1].answers:
        if not answer.holds:
            return answer.sentence
        if answer.question == "overlaps" and answer.word != "yes" and workload:
            return answer.sentence
    if workload and engine.now > 0.8 * serial.now:
        return f"it takes {ms(engine.now)} ms, and the serial loop takes {ms(serial.now)} ms"
    return ""


def both(engine: CountedEngine, workload: int) -> str:
    """Draw the serial run and the learner's, above each other; without a token there is nothing."""
    if not engine.read:
        return ""
    traces = [trace_of_engine(serial_run(workload), "serial"), trace_of_engine(engine, "yours")]
    return timing(*traces, steps=4).svg


EXERCISES = (
    Exercise(
        name="input_ids",
        hole=Pure(rows, truth=right_ids),
        solution="""
            def input_ids(seqs):
                ids = []
                for seq in seqs:
                    known = seq.answer[-1] if seq.answer else 0
                    ids.append(-1 - seq.slot if seq.in_flight > 1 else known)
                return ids
        """,
        hints=(
            "`in_flight` counts the token of this step, too. When does the host not know the "
            "newest token?",
            "With `in_flight > 1` the newest token is still on the device, in the slot of the "
            "sequence: `-1 - slot`.",
        ),
        why=(
            "That was the FutureMap of lesson 2 with the slot of the sequence, as SGLang has it "
            "today. The engine's own `input_ids` does the same."
        ),
    ),
    Exercise(
        name="generate_overlapped",
        hole=Pure(lambda: zip(range(len(PROMPTS))), call=generated, holds=held, draw=both),
        solution="""
            def generate_overlapped(engine):
                last = None
                while last or not engine.is_finished:
                    seqs = engine.schedule()
                    step = engine.launch(seqs, engine.input_ids(seqs)) if seqs else None
                    if last:
                        engine.postprocess(last, engine.wait(last))
                    last = step
        """,
        hints=(
            "Keep the step that was launched in the turn before in a variable.",
            "In each turn: schedule, launch, and only then wait for the step before.",
            "`schedule` may return no sequence while the last step is in flight. The loop ends "
            "when all answers have ended and no step is in flight.",
        ),
        why=(
            "You changed the loop of an engine that was not written for overlap: one variable, and "
            "a scheduler that counts tokens in flight. In each step the device has the next one "
            "queued before the host reads a token."
        ),
    ),
)
