"""Lesson 10, where overlap must wait: who waits, with what, and which drafts count."""

from __future__ import annotations

from random import Random
from typing import Any

from ...checks.case import Case
from ...core import Row
from ...devices.base import Array, Arrays
from ...models.base import ForwardBatch
from ...museum.exhibit import case
from ..exercise import COST, Attempt, Exercise, Function, Loop, Workloads, is_large
from ..guard import Mistake
from ..runs import VOCAB
from .l01_bubble import idle_only_without_work, no_busy_turn

# -- Who waits -------------------------------------------------------------------------------------


def reason_to_wait(lines: Any, row: Row, late_penalties: bool, steps_ahead: int) -> str:
    """Ask a learner about a row that samples something; the package wants to know why."""
    req = row.req
    if not row.deliver or req.lease is not row.lease:
        return ""
    unknown = max(0, req.num_output_placeholders - 1 + steps_ahead)
    has_grammar, has_penalties = req.params.has_grammar, req.params.has_penalties
    if not lines(has_grammar, has_penalties, unknown):
        return ""
    return "grammar" if has_grammar else "penalty"


def wishes_of_a_row(random: Random) -> tuple[bool, bool, int]:
    """With two steps in flight a token is unknown, with more of them several."""
    unknown = random.randint(0, 50 if is_large(random) else 3)
    return random.random() < 0.5, random.random() < 0.5, unknown


def wishing(requests: str, on: str, **wishes: Any) -> Case:
    """Return a case in which all requests have the same wishes."""
    return case(requests, on, kv=64, rows=3, vocab_size=128, cost=COST, wishes=wishes)


TWO = "a: 1 2 3 -> 8; b at 3: 4 5 6 7 -> 6"
RULE, PENALTY = {"regex": "(a1|b2|c3){9}"}, {"presence_penalty": 1.5}


def has_wishes(case: Case) -> bool:
    """Return whether a request has a grammar or a penalty, and there are no drafts."""
    config = case.workload.config
    wishes = (req.params.regex or req.params.has_penalties for req in case.workload.requests)
    return any(wishes) and not config.speculative_algorithm and not config.late_penalties


def no_needless_delay(attempt: Attempt) -> str:
    """A step is launched without its sampling only if that lacks a token."""
    if not (steps := attempt.calls.delayed):
        return ""
    return (
        f"step {steps[0]} was launched without its sampling, but no row of it lacks a token. Ask "
        "`engine.must_delay_sample(batch)` first"
    )


# -- Which drafts count ----------------------------------------------------------------------------


def count_of(lines: Any, xp: Arrays, inputs: ForwardBatch, tokens: Array) -> Array:
    """Ask a learner about each row: its drafts, and what the model sampled in their places."""
    counts, end, last = list[int](), 0, 0
    for extend_len, samples in zip(inputs.extend_lens, inputs.sample_lens, strict=True):
        end, last = end + extend_len, last + samples
        drafts, sampled = [*inputs.ids[end - samples + 1 : end]], [*tokens[last - samples : last]]
        found = lines(drafts, sampled)
        if not isinstance(found, list) or not found or found != sampled[: len(found)]:
            raise Mistake(
                f"with drafts {drafts} and sampled {sampled}, `accept` gave {found!r}; it must be "
                "the first of what was sampled, and at least one"
            )
        counts.append(len(found))
    return xp.asarray(counts)


def drafts_and_samples(random: Random) -> tuple[list[int], list[int]]:
    """Some drafts, and one token more that was sampled; equal tokens are different objects."""
    kinds = [random.randrange(3) for _ in range(random.randint(1, 9))]
    guessed = [kind if random.random() < 0.8 else random.randrange(3) for kind in kinds[:-1]]
    return [1000 + kind for kind in guessed], [1000 + kind for kind in kinds]


def drafted(requests: str, **settings: Any) -> Case:
    """A case in which a draft model guesses three tokens."""
    return case(
        requests, "overlap:pool", kv=96, rows=3, vocab_size=VOCAB, cost=COST,
        speculative_algorithm="STANDALONE", speculative_num_draft_tokens=3,
        speculative_draft_model_path="hash", **settings,
    )  # fmt: skip


SPECULATIVE = tuple(
    drafted(requests)
    for requests in (
        "a: 1 2 3 4 -> 12; b: 2 3 4 5 -> 12",
        "a: 1 2 -> 9; b at 2: 3 -> 4; c at 5: 5 6 7 -> 7",
        "a: 9 8 7 -> 16",
    )
)

EXERCISES = (
    Exercise(
        name="must_wait",
        hole=Function(
            "features.history:_lacks", reason_to_wait, asked=wishes_of_a_row,
            counts=lambda answer, *args: bool(answer),
        ),
        solution="""
            def must_wait(has_grammar, has_penalties, unknown):
                return unknown > 0 and (has_grammar or has_penalties)
        """,
        workloads=Workloads(
            levels=("wishes",), want=has_wishes, show=wishing(TWO, "overlap:ring", **RULE),
            cases=(wishing(TWO, "overlap:ring", **PENALTY), wishing(TWO, "overlap:ring", **RULE)),
        ),
        no_worse=(("makespan", 1.0),),
        hints=(
            "A grammar decides which tokens may follow those so far, and a penalty lowers those "
            "that were generated. Which tokens do both need?",
            "Nothing is lacking in a request's first step: its prompt is known.",
        ),
        why=(
            "Both read the tokens before. While one of them is in flight, the host does not know "
            "yet what may be sampled. The forward pass reads it on the device and need not wait: "
            "only the sampling does."
        ),
    ),
    Exercise(
        name="waiting_loop",
        hole=Loop("overlap"),
        solution="""
            def waiting_loop(engine):
                last = None
                while True:
                    engine.recv_requests()
                    batch = engine.get_next_batch_to_run()
                    delay = bool(batch) and engine.must_delay_sample(batch)
                    pending = engine.run_batch(batch, delay_sample=delay) if batch else None
                    if last:
                        engine.process_batch_result(last)
                    elif not batch:
                        engine.on_idle()
                    if delay:
                        engine.launch_batch_sample_if_needed(pending)
                    last = pending
                    yield
        """,
        workloads=Workloads(
            levels=("wishes",), want=has_wishes, show=wishing(TWO, "overlap:ring", **RULE),
            cases=(wishing(TWO, "overlap:ring", **RULE), wishing(TWO, "overlap:ring", **PENALTY)),
        ),
        extra=(no_busy_turn, idle_only_without_work, no_needless_delay),
        no_worse=(("makespan", 1.0),),
        reach=8,
        hints=(
            "`engine.run_batch(batch, delay_sample=True)` launches the forward pass alone.",
            "Then process the last result, while the device computes. After that the host knows "
            "the token.",
            "Then `engine.launch_batch_sample_if_needed(pending)`, which builds the mask.",
        ),
        why=(
            "The longest part of a step, the forward pass, depends on a token that the device has. "
            "Only the sampling depends on what the host makes of it. So the pass is launched at "
            "once, and the device waits for the mask alone: as long as the host takes longer than "
            "the pass."
        ),
    ),
    Exercise(
        name="accept",
        hole=Function("worker.verify:count_accepted", count_of, asked=drafts_and_samples),
        solution="""
            def accept(drafts, sampled):
                count = 0
                while count < len(drafts) and drafts[count] == sampled[count]:
                    count += 1
                return sampled[: count + 1]
        """,
        workloads=Workloads("overlap:pool", seeds=0, cases=SPECULATIVE, show=SPECULATIVE[0]),
        no_worse=(("steps", 1.0),),
        beside="",
        hints=(
            "`sampled[0]` is the model's token after the last known one: it is always right.",
            "`sampled[1]` was computed after `drafts[0]`. When is it right?",
            "Go on as long as `drafts[i] == sampled[i]`, and take one more.",
        ),
        why=(
            "Whatever the drafts are, the tokens are the model's own: a draft only decides how "
            "many of them one step brings. The first wrong draft makes everything after it wrong, "
            "and the model's token in its place is right."
        ),
    ),
)  # fmt: skip
