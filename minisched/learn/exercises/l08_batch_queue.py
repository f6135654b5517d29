"""Lesson 8, a queue of batches: how idle a stage is, a loop for any depth, and who is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random
from typing import Any

from ...checks.case import Case
from ...checks.history import many
from ...core import Request
from ...devices.cost import of_milliseconds
from ...export.layout import view_of_steps
from ...export.runs import side_by_side
from ...export.scene_svg import to_svg
from ...loops.run import Run
from ...museum.exhibit import case
from ..exercise import Attempt, Exercise, Function, Loop, Pure, Workloads, is_large
from ..runs import VOCAB, simulate
from .l01_bubble import idle_only_without_work, no_busy_turn

# -- The share of the time in which a stage idles, held against runs -------------------------------

NEW_TOKENS, ROUNDS = 16, 6


@cache
def run_of(batches: int, stages: int, stage_ms: int, rest_ms: int) -> Run:
    """So many requests, each a batch of its own, over the stages of a pipeline."""
    return simulate(
        f"vllm_pp{stages}:host:depth={batches}", host_ms=rest_ms / 2, copy_ms=rest_ms / 2,
        device_ms=stages * stage_ms, requests=batches, new_tokens=NEW_TOKENS, chunk=4,
    )  # fmt: skip


def idle_share(batches: int, stages: int, stage_ms: int, rest_ms: int) -> float:
    """Of the first stage, over some rounds from the middle of a run."""
    trace = run_of(batches, stages, stage_ms, rest_ms).trace
    passes = [item for item in trace.on("stage 0") if item.name == "forward"]
    some = passes[4 * batches : (4 + ROUNDS) * batches + 1]
    return 1 - sum(item.duration for item in some[:-1]) / (some[-1].start - some[0].start)


def pipelines() -> Iterator[tuple[int, int, int, int]]:
    """One batch first; then the queue as long as the pipeline, and longer."""
    for (rest_ms, stage_ms), stages in product(((0, 5), (4, 3), (8, 5)), (2, 4)):
        for batches in range(1, 7):
            yield batches, stages, stage_ms, rest_ms


def figures_of_a_pipeline(random: Random) -> tuple[int, int, float, float]:
    """Return a few batches and stages, and times; equal ones are not rare."""
    stage_ms, rest_ms = (random.choice((random.randint(1, 4), 0.7, 9)) for _ in "ab")
    return random.randint(1, 9), random.randint(1, 9), stage_ms, rest_ms * random.randint(0, 1)


def draw_run(share: Any, batches: int, stages: int, stage_ms: int, rest_ms: int) -> str:
    """Two rounds of the run, from its middle."""
    trace = run_of(batches, stages, stage_ms, rest_ms).trace
    return to_svg(side_by_side([view_of_steps(trace, 5 * batches + 1, 7 * batches + 1)]))


# -- The loop --------------------------------------------------------------------------------------


def over_four_stages(requests: str, **settings: Any) -> Any:
    """A case in which each prompt fills a step, so that every request is a batch of its own."""
    settings = {"kv": 256, "rows": 8, "chunked_prefill_size": 2, **settings}
    return case(requests, "vllm_pp4:host", vocab_size=VOCAB, cost=PIPELINE, **settings)


def at_some_depth(case: Case) -> Case:
    """Return the case with a queue of 1 to 5 places, all requests at turn 0 and no abort.

    With the learner's loop, requests would come at other times than with the package's.
    """
    requests = case.workload.requests
    depth = 1 + sum(len(req.prompt) for req in requests) % 5
    workload = replace(case.workload, arrivals=[0] * len(requests), aborts={})
    return replace(case, workload=workload, options={"depth": depth})


PIPELINE = of_milliseconds(host=2, device=0, copy=1, token=20)
FOUR = over_four_stages("a: 1 2 -> 6; b: 5 6 -> 6; c: 9 10 -> 6; d: 3 6 -> 6")
SEVEN = "; ".join(f"{rid}: {at} 5 -> 2" for at, rid in enumerate("abcdefg"))
MORE = (
    FOUR,
    *(over_four_stages(SEVEN, options={"depth": depth}) for depth in (2, 3, 5)),
    over_four_stages("a: 1 2 -> 2; b: 3 4 -> 2", options={"depth": 1}),
    over_four_stages("a: 1 2 3 4 -> 7; b: 2 3 4 5 -> 3"),
    over_four_stages(SEVEN),
    over_four_stages("a: 1 2 3 4 -> 2; b at 30: 5 6 7 8 -> 2"),
    over_four_stages(
        "; ".join(f"r{at}: {at % 9} 5 -> 2" for at in range(40)),
        rows=40,
        options={"depth": 36},
        disable_radix_cache=True,
    ),
    over_four_stages("a: 1 2 -> 200"),
)


# -- Which requests are left out -------------------------------------------------------------------


def left_out(lines: Any, req: Request) -> bool:
    """Call the learner's ``ends_in_flight`` for a request."""
    return bool(lines(req.computed_len, req.num_output_placeholders, req.max_device_len))


def lengths(random: Random) -> tuple[int, int, int]:
    """A request with tokens in flight, perhaps past its end; with none, it lacks at least two."""
    placeholders = random.randint(0, 3)
    least = max(2, placeholders) if placeholders else 0  # each unknown token is of a computed one
    computed = random.randint(least, 9) + 990 * is_large(random)
    return computed, placeholders, computed + random.randint(-1 if placeholders else 2, 5)


def none_wasted(attempt: Attempt) -> str:
    """No row is computed of a request with its last token in flight."""
    for mark in attempt.verdict.trace.marks:
        if mark.name == "wasted row":
            return (
                f"step {mark.attrs['step']} computed a row of {mark.attrs['rid']} for nothing: its "
                "last token was in flight, and its length is known"
            )
    return ""


def no_more_than_depth(attempt: Attempt) -> str:
    """At most ``depth`` steps are launched and not yet processed."""
    flying, depth = 0, attempt.case.options.get("depth", 4)
    for item in attempt.verdict.trace.on("host"):
        flying += (item.name == "launch") - (item.name == "process")
        if flying > depth:
            return (
                f"when step {item.step} was launched, {flying} steps were in flight, but `depth` "
                f"is {depth}"
            )
    return ""


def filled_first(attempt: Attempt) -> str:
    """A step is processed when ``depth`` steps are in flight, or there was nothing to launch."""
    depth = attempt.case.options.get("depth", 4)
    for step, flying in attempt.calls.harvested:
        if flying < depth:
            return (
                f"step {step} was processed when the queue had {many(flying, 'step')}, `depth` is "
                f"{depth}, and the last call of get_next_batch_to_run() gave a batch. First fill "
                "the queue"
            )
    return ""


EXERCISES = (
    Exercise(
        name="bubble",
        hole=Pure(pipelines, idle_share, 1e-6, "as a share of the time", draw=draw_run,
                  asked=figures_of_a_pipeline),
        solution="""
            def bubble(batches, stages, stage_ms, rest_ms):
                round_ms = stages * stage_ms + rest_ms
                step_ms = max(stage_ms, round_ms / batches)
                return 1 - stage_ms / step_ms
        """,
        hints=(
            "How long does one batch take for a whole round: all stages, the copy, the host?",
            "In that time a stage works once for each batch in flight.",
            "With too many batches a stage would work for more than the whole round. It can't: a "
            "stage begins a batch every `max(stage_ms, round_ms / batches)`.",
        ),
        why=(
            "A batch comes round once in `stages * stage_ms + rest_ms`, and a stage works once for "
            "each batch in between. As many batches as stages would be enough if tokens came back "
            "for nothing; the copy and the host want one more. That is why vLLM, with its tokens "
            "still on the device, takes `pp + 1`."
        ),
    ),
    Exercise(
        name="batch_queue_loop",
        hole=Loop("vllm_pp4", takes=("depth",)),
        solution="""
            def batch_queue_loop(engine, depth):
                queue = []
                while True:
                    engine.recv_requests()
                    batch = engine.get_next_batch_to_run()
                    if batch:
                        queue.append(engine.run_batch(batch))
                    if queue and (len(queue) == depth or not batch):
                        engine.process_batch_result(queue.pop(0))
                    elif not batch:
                        engine.on_idle()
                    yield
        """,
        workloads=Workloads("vllm_pp4", levels=("stops",), seeds=30, cases=MORE, cost=PIPELINE,
                            show=FOUR, change=at_some_depth),
        extra=(no_more_than_depth, filled_first, no_busy_turn, idle_only_without_work),
        no_worse=(("makespan", 1.05),),
        reach=8,
        beside="vllm_pp4:host:depth=1",
        hints=(
            "Keep the launched steps in a list. Where does a new one go, and which is processed?",
            "Filling goes before harvesting: a turn that launched something ends there, as long as "
            "the list is shorter than `depth`.",
            "Process the oldest when the list is full, and also when there was nothing to launch. "
            "Sleep only if the list is empty, too.",
        ),
        why=(
            "While a place is free, the next batch goes in, so every stage has one to work on. The "
            "host blocks only on the oldest, the one that comes out first. Each request is in one "
            "batch at a time, so every input token is known: a pipeline needs no placeholders."
        ),
    ),
    Exercise(
        name="ends_in_flight",
        hole=Function(
            "loops.vllm_async:is_length_foreseen", left_out, asked=lengths,
            counts=lambda answer, *args: bool(answer),
        ),
        solution="""
            def ends_in_flight(computed, placeholders, length):
                return computed + 1 >= length
        """,
        workloads=Workloads("vllm_async", levels=("plain",)),
        extra=(none_wasted,),
        no_worse=(("makespan", 1.0), ("steps", 1.0)),
        hints=(
            "Write down a request with a prompt of 4 and 2 new tokens, after each launch.",
            "After the prompt, 4 tokens are computed and the 5th is on its way. The 6th is the "
            "last. When is it on its way?",
        ),
        why=(
            "Each computed token has given one more, so what is computed and the one on its way "
            "reach the length together: nothing is left to launch. vLLM writes `computed + 2 - "
            "placeholders >= length`, which is the same with one token in flight, and careful "
            "where drafts may be rejected."
        ),
    ),
)  # fmt: skip
