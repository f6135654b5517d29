"""Lesson 7, mixed chunks or another machine: who rides along, how long a pause is, how many fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise, product
from random import Random
from typing import Any

from ...checks.case import Case
from ...checks.overlap import forwards
from ...core import Request, SamplingParams
from ...devices.cost import CostModel
from ...devices.registry import open_device
from ...export.layout import view_of_steps
from ...export.runs import side_by_side
from ...export.scene_svg import to_svg
from ...export.units import ms
from ...loops.run import Run, run_loop
from ...memory import LeasePool
from ...models.hash import HashModel
from ...museum.exhibit import case
from ...scheduler import SchedulerConfig
from ..exercise import COST, Exercise, Function, Pure, Workloads
from ..runs import VOCAB
from .l04_long_prompt import asked

# -- rides: whether those who decode go into the step of a chunk -----------------------------------


def beside_a_document(seed: int) -> Case:
    """Some decode when a longer prompt comes, in a memory that is sometimes too small for all."""
    random = Random(seed)
    page, streams = random.choice((1, 2, 2)), "abc"[: random.randint(1, 3)]
    sizes = [(random.randint(2, 5), random.randint(5, 12)) for _ in streams]
    requests = [asked(random, rid, 0, *size) for rid, size in zip(streams, sizes, strict=True)]
    length = random.randint(14, 24)
    requests.append(asked(random, "doc", random.randint(2, 4), length, 3))
    tokens = int((sum(map(sum, sizes)) + length + 3) * random.choice((0.8, 0.9, 1, 1.5)))
    pages = max(tokens, length + 6) // page
    return case(
        "; ".join(requests), "mixed", kv=pages * page, rows=4, page_size=page,
        chunked_prefill_size=6, schedule_conservativeness=random.choice((0.0, 0.0, 1.0)),
        cost=replace(COST, forward_per_token=1_000_000),
    )  # fmt: skip


SHOWN = case(
    f"a: 1 2 3 -> 9; b: 4 5 6 -> 9; doc at 3: {' '.join(map(str, range(1, 19)))} 1 2 -> 3",
    "mixed", kv=64, rows=3, chunked_prefill_size=8, cost=COST,
)  # fmt: skip


def all_or_nobody(
    lines: Callable[..., Any],
    prompts: list[tuple[Request, int]],
    running: list[Request],
    leases: LeasePool,
) -> list[Request]:
    """The learner's ``rides`` in the place of ``mix_with_running``."""

    def lacking(work: Sequence[tuple[Request, int]]) -> list[int]:
        return [leases.pages_lacking(req.lease, req.computed_len + length)
                for req, length in work if req.lease is not None]  # fmt: skip

    ones = lacking([(req, 1) for req in running])
    return running if lines(lacking(prompts), ones, leases.available_pages) else []


# -- longest_pause and prompts_a_second: formulas, held against runs -------------------------------

MS, SLOT = 1_000_000, 1024  # nanoseconds; bytes of a KV slot
WAYS = {"one piece": "overlap", "chunks": "overlap", "mixed": "mixed", "apart": "pd"}
Figures = tuple[str, int, int, int, float, float]  # how, prompt, chunk, running, base, per_token


def run_of(
    loop: str, reqs: list[Request], chunk: int, base: float, per_token: float, **link: Any
) -> Run:
    """A run in which a step takes ``base`` ms and ``per_token`` ms for each token in it."""
    host = {"schedule": MS // 2, "process": MS // 2}
    cost = CostModel(
        host, forward_base=round(base * MS), forward_per_token=round(per_token * MS), copy=MS // 10
    )
    config = SchedulerConfig(
        kv_tokens=8192, context_len=2048, max_running_requests=len(reqs),
        chunked_prefill_size=chunk, disable_radix_cache=True,
    )  # fmt: skip
    model = HashModel(VOCAB, eos_ids=frozenset())
    return run_loop(loop, open_device("sim"), model, reqs, config, cost, **link)


def tokens(rid: str, first: int, prompt: int, answer: int, time: float = 0) -> Request:
    """A request that comes after so many ms."""
    params = SamplingParams(max_new_tokens=answer)
    prompt_ids = [(7 * first + at) % VOCAB for at in range(prompt)]
    return Request(rid, prompt_ids, params, round(time * MS))


@cache
def interrupted(
    how: str, prompt: int, chunk: int, running: int, base: float, per_token: float
) -> Run:
    """Some decode; a long prompt comes between."""
    reqs = [tokens(f"chat{at}", at, 4, 24) for at in range(running)]
    reqs.append(tokens("document", 9, prompt, 2, (5.5 + running) * base))
    return run_of(WAYS[how], reqs, -1 if how == "one piece" else chunk, base, per_token)


def pause_of(run: Run) -> tuple[int, int]:
    """The longest time between two tokens of a chat while the document is being read: from, to."""
    ended = {item.rid: item for item in run.metrics.ended}
    document = ended.pop("document")
    heard = [
        pair
        for item in ended.values()
        for pair in pairwise(accumulate(item.itls, initial=item.first_token or 0))
    ]
    first = document.first_token or 0
    meanwhile = [pair for pair in heard if document.arrival < pair[1] and pair[0] < first]
    return max(meanwhile, key=lambda pair: pair[1] - pair[0])


def situations() -> Iterator[Figures]:
    """Each way with some sizes; the smallest first."""
    sizes = ((96, 32), (200, 64), (150, 50))
    for how, (prompt, chunk), (running, base, per_token) in product(
        WAYS, sizes, ((1, 8, 0.05), (4, 8, 0.05), (4, 5, 0.2))
    ):
        yield how, prompt, chunk, running, base, per_token


def as_long_as_that(said: Any, *figures: Any) -> str:
    """As long as in the run, but for the host's part of it."""
    how, *sizes = figures
    given = f"how {how!r}, {sized('prompt chunk running base per_token', sizes)}"
    start, end = pause_of(interrupted(*figures))
    return off_by(said, (end - start) / MS, given, "ms", 0.02)


def sized(names: str, values: Sequence[Any]) -> str:
    """Names and values, to be read."""
    return ", ".join(f"{name} {value}" for name, value in zip(names.split(), values, strict=True))


def off_by(said: Any, measured: float, given: str, unit: str, share: float) -> str:
    """What is wrong with a formula's number, if it is off by more than this share of a run's."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return f"With {given} it gives {said!r}, which is not a number."
    if abs(said - measured) <= share * measured:
        return ""
    return f"With {given} you say {said:.4g} {unit}; in the run it was {measured:.4g} {unit}."


def pause_picture(said: Any, *figures: Any) -> str:
    """The steps around the pause, and from when to when it is."""
    trace = interrupted(*figures).trace
    start, end = pause_of(interrupted(*figures))
    steps = [item.step for item in forwards(trace) if item.end > start - MS and item.start < end]
    view = view_of_steps(trace, min(steps), max(steps))
    when = f"from {ms(start - view.start)} to {ms(end - view.start)} ms"
    title = f"{figures[0]}: a chat hears nothing {when}, a pause of {ms(end - start)} ms"
    return to_svg(side_by_side([view], title))


@cache
def sent(prompt: int, chunk: int, base: float, per_token: float, link: float) -> Run:
    """Eight prompts at once, read on one device and sent to another at ``link`` ms a token."""
    reqs = [tokens(f"d{at}", at, prompt, 1) for at in range(8)]
    rate = round(SLOT * 1000 / link)
    return run_of(
        "pd", reqs, chunk, base, per_token, latency=0, bytes_per_second=rate, slot_bytes=SLOT
    )


def as_many_as_that(said: Any, *figures: Any) -> str:
    """As many as came out in the middle of the run."""
    firsts = sorted(item.first_token or 0 for item in sent(*figures).metrics.ended)
    measured = 4 * 1e9 / (firsts[6] - firsts[2])
    given = sized("prompt chunk base per_token link", figures)
    return off_by(said, measured, given, "a second", 5e-4)


def links() -> Iterator[tuple[int, int, float, float, float]]:
    """The device is the narrow place, or the link."""
    for prompt, chunk, base, per_token in (
        (96, 32, 8, 0.05),
        (200, 50, 8, 0.05),
        (128, 64, 5, 0.2),
    ):
        for link in (0.01, 0.1, 0.3, 0.5):
            yield prompt, chunk, base, per_token, link


EXERCISES = (
    Exercise(
        name="rides",
        lesson="07_mixed_or_apart",
        hole=Function("policy.admission:mix_with_running", all_or_nobody),
        solution="""
            def rides(prompt_pages, decode_pages, free):
                return sum(prompt_pages) + sum(decode_pages) <= free
        """,
        mistakes=(
            ("sum(prompt_pages) + sum(decode_pages) <= free", "True", "pop from empty list"),
            ("sum(prompt_pages) + ", "", "pop from empty list"),
            (" <= free", " < free", "is not in step"),
            ("sum(decode_pages)", "len(decode_pages)", "is not in step"),
        ),
        workloads=Workloads(
            seeds=0, on="mixed", cases=(SHOWN, *map(beside_a_document, range(50))),
            show=SHOWN,
        ),
        picture="mixed_chunk",
        beside="",
        hints=(
            "What does a row of the step need, if it has filled its last page?",
            "Pages for the chunk and pages for those who decode come out of the same memory.",
            "Compare the sum of both lists with `free`; just enough is enough.",
        ),
        why=(
            "A step with a chunk in it runs anyway, so whoever decodes may as well have a row in "
            "it: one token more hardly makes it longer. Without memory for all of them the chunk "
            "runs alone, and the next decode step sees to it (lesson 6)."
        ),
    ),
    Exercise(
        name="longest_pause",
        lesson="07_mixed_or_apart",
        hole=Pure(situations, holds=as_long_as_that, draw=pause_picture),
        solution="""
            def longest_pause(how, prompt, chunk, running, base, per_token):
                decode = base + per_token * running
                if how == "one piece":
                    return base + per_token * prompt + decode
                if how == "chunks":
                    return -(-prompt // chunk) * base + per_token * prompt + decode
                if how == "mixed":
                    return base + per_token * chunk
                return decode
        """,
        mistakes=(
            (" + decode", "", "in the run it was"),
            ("per_token * chunk", "per_token * (chunk + running)", "in the run it was"),
            ("-(-prompt // chunk) * base", "prompt / chunk * base", "in the run it was"),
            ("return decode", "return base + per_token * prompt", "in the run it was"),
            ("return decode", "return None", "which is not a number"),
        ),
        hints=(
            "From one token of a chat to the next: which steps lie between? Add up their times.",
            "One piece: the document's step, and then the chat's own. Chunks: a step for each of "
            "them, and then the chat's own. Each step costs `base` once.",
            "Mixed: the chat's token comes out of the step of a chunk, which has `chunk` tokens in "
            "all. Apart: a step is what it always is.",
        ),
        why=(
            "A pause is the sum of the steps between two tokens, and mixing leaves one: that of a "
            "chunk. So the chunk is a knob: a smaller one makes the pause shorter and the "
            "document slower, as each chunk costs `base` once more. With a second device a "
            "chat waits for nothing but its own step."
        ),
    ),
    Exercise(
        name="prompts_a_second",
        lesson="07_mixed_or_apart",
        hole=Pure(links, holds=as_many_as_that),
        solution="""
            def prompts_a_second(prompt, chunk, base, per_token, link):
                read = -(-prompt // chunk) * base + per_token * prompt
                return 1000 / max(read, link * prompt)
        """,
        mistakes=(
            ("max(read, link * prompt)", "(read + link * prompt)", "in the run it was"),
            ("max(read, link * prompt)", "read", "in the run it was"),
            ("-(-prompt // chunk) * base", "base", "in the run it was"),
            ("1000 / max", "1 / max", "in the run it was"),
        ),
        hints=(
            "Device and link work at the same time, on different prompts: two stations in a row.",
            "The slower of the two sets the pace. How long does each of them have one prompt?",
            "Reading: `base` for each chunk, `per_token` for each token. Sending: `link` for each.",
        ),
        why=(
            "In a row of stations the slowest sets the pace, whether that is the device or the "
            "link. If more prompts come than that, the queue grows and first tokens come later and "
            "later, however fast the rest is. So it is a queueing question: rate against pace."
        ),
    ),
)  # fmt: skip
