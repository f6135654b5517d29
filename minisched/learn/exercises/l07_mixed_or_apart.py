"""Lesson 7, mixed chunks or another machine: who rides along, how long a pause is, how many fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise, product
from random import Random
from types import FunctionType
from typing import Any

from ...checks.overlap import forwards
from ...core import Request, SamplingParams
from ...devices.cost import of_milliseconds
from ...devices.registry import open_device
from ...export.layout import view_of_steps
from ...export.runs import side_by_side
from ...export.scene_svg import to_svg
from ...export.units import ms
from ...loops.run import Run, run_loop
from ...memory import LeasePool
from ...models.hash import HashModel
from ...museum.exhibit import case
from ...policy import PrefillManager
from ...scheduler import SchedulerConfig
from ..exercise import COST, Exercise, Function, Pure, Scored, Workloads, is_large, of_any_size
from ..guard import Mistake
from ..runs import VOCAB

# -- rides: whether those who decode go into the step of a chunk -----------------------------------


SHOWN = case(
    f"a: 1 2 3 -> 9; b: 4 5 6 -> 9; doc at 3: {' '.join(map(str, range(1, 19)))} 1 2 -> 3",
    "mixed", kv=64, rows=3, chunked_prefill_size=8, cost=COST,
)  # fmt: skip
FULL = case(  # a page is missing for all
    "a: 16 14 2 10 -> 9; b: 17 1 12 -> 7; c: 5 14 -> 10; "
    "doc at 2: 5 7 1 3 4 16 18 2 12 3 9 6 7 13 2 8 6 12 8 10 -> 3", "mixed",
    kv=46, rows=4, page_size=2, chunked_prefill_size=6, schedule_conservativeness=0.0,
    cost=replace(COST, forward_per_token=1_000_000),
)  # fmt: skip


def pages_of_a_step(random: Random) -> tuple[list[int], list[int], int]:
    """Pages that prompts and decoding requests need; as many are free, or a few more or less."""
    most, pages = random.choice((1, 2, 6)), 3
    if is_large(random):
        most, pages = of_any_size(random, 6, 200), of_any_size(random, 3, 2000)
    prompts = [random.randint(0, pages) for _ in range(random.randint(1, most))]
    decodes = [random.choice((0, 1, 1, 2)) for _ in range(random.randint(0, most))]
    return prompts, decodes, max(0, sum(prompts) + sum(decodes) + random.choice((-9, -1, 0, 1, 9)))


def all_or_nobody(
    lines: Callable[..., Any],
    prompts: list[tuple[Request, int]],
    running: list[Request],
    leases: LeasePool,
) -> list[Request]:
    """Call the learner's ``rides`` as ``mix_with_running``."""

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
    config = SchedulerConfig(
        kv_tokens=8192, context_len=2048, max_running_requests=len(reqs),
        chunked_prefill_size=chunk, disable_radix_cache=True,
    )  # fmt: skip
    model, cost = HashModel(VOCAB, eos_ids=frozenset()), of_milliseconds(1, base, 0.1, per_token)
    return run_loop(loop, open_device("sim"), model, reqs, config, cost, **link)


def tokens(rid: str, first: int, prompt: int, answer: int, time: float = 0) -> Request:
    """Return a request that arrives at ``time``, in ms."""
    params = SamplingParams(max_new_tokens=answer)
    prompt_ids = [(7 * first + at) % VOCAB for at in range(prompt)]
    return Request(rid, prompt_ids, params, round(time * MS))


@cache
def interrupted(
    how: str, prompt: int, chunk: int, running: int, base: float, per_token: float
) -> Run:
    """Some decode; a long prompt comes between."""
    reqs = [tokens(f"chat{at}", at, 4, 24) for at in range(running)]
    reqs.append(tokens("document", 9, prompt, 1, (5.5 + running) * base))
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
    sizes, figures = ((96, 32), (200, 64), (150, 50)), ((1, 8, 0.05), (4, 8, 0.05), (4, 5, 0.2))
    for how, size, rest in product(WAYS, sizes, figures):
        yield how, *size, *rest


def small_or_large(random: Random) -> tuple[int, float, float]:
    """Return a chunk, and the times of a step and of a token in it; equal ones are not rare."""
    most = of_any_size(random, 9, 20_000) if random.random() < 0.3 else 4
    chunk, base = random.randint(1, most), random.choice((random.randint(1, 4), 0.25, 9.7))
    return chunk, base, random.choice((0, 0.3125, 1, 2, 5))


def figures_of_a_pause(random: Random) -> Figures:
    """The chats leave room for the prompt in a chunk, and the prompt is longer than that."""
    chunk, base, per_token = small_or_large(random)
    running = random.randint(1, min(chunk, random.choice((9, 300))))
    prompt = chunk + 1 + random.randint(1, 3 * chunk)
    return random.choice([*WAYS]), prompt, chunk + 1, running, base, per_token


def measured_pause(
    how: str, prompt: int, chunk: int, running: int, base: float, per_token: float
) -> float:
    """In ms, as long as in the run."""
    start, end = pause_of(interrupted(how, prompt, chunk, running, base, per_token))
    return (end - start) / MS


def pause_picture(said: Any, *figures: Any) -> str:
    """The steps around the pause, and from when to when it is."""
    trace = interrupted(*figures).trace
    start, end = pause_of(interrupted(*figures))
    steps = [item.step for item in forwards(trace) if item.end > start - MS and item.start < end]
    view = view_of_steps(trace, min(steps), max(steps))
    when = f"from {ms(start - view.start)} to {ms(end - view.start)} ms"
    title = f"{figures[0]}: a chat gets no token {when}, a pause of {ms(end - start)} ms"
    return to_svg(side_by_side([view], title))


@cache
def sent(prompt: int, chunk: int, base: float, per_token: float, link: float) -> Run:
    """Run eight prompts, read on one device and sent to another at ``link`` ms a token."""
    reqs = [tokens(f"d{at}", at, prompt, 1) for at in range(8)]
    rate = round(SLOT * 1000 / link)
    return run_of(
        "pd", reqs, chunk, base, per_token, latency=0, bytes_per_second=rate, slot_bytes=SLOT
    )


def measured_prompts(prompt: int, chunk: int, base: float, per_token: float, link: float) -> float:
    """A second, as many as came out in the middle of the run."""
    ended = sent(prompt, chunk, base, per_token, link).metrics.ended
    firsts = sorted(item.first_token or 0 for item in ended)
    return 4 * 1e9 / (firsts[6] - firsts[2])


def links() -> Iterator[tuple[int, int, float, float, float]]:
    """The device is the narrow place, or the link."""
    devices = ((96, 32, 8, 0.05), (200, 50, 8, 0.05), (128, 64, 5, 0.2))
    for device, link in product(devices, (0.01, 0.1, 0.3, 0.5)):
        yield *device, link


def figures_of_a_link(random: Random) -> tuple[int, int, float, float, float]:
    """Return a prompt of whole chunks, and a link."""
    chunk, base, per_token = small_or_large(random)
    return chunk * random.randint(1, 4), chunk, base, per_token, random.choice((0, 0.1, 1, 2, 8))


# -- chunk_size: an open problem, on the workload "many prompts" of the score ---------------------

_schedule = FunctionType(
    PrefillManager.schedule_next_batch.__code__, PrefillManager.schedule_next_batch.__globals__
)


def with_chunk_size(
    lines: Callable[..., Any], prefill: PrefillManager, running: Sequence[Request], *rest: Any
) -> list[tuple[Request, int]]:
    """Let a learner choose the size of the next chunk.

    Raises:
        Mistake: it is not a whole number of at least 1.
    """
    most, waiting = prefill.chunk_size, len(prefill.waiting_queue.waiting)
    size = lines(len(running), waiting)
    if type(size) is not int or size < 1:
        raise Mistake(f"`chunk_size` gave {size!r}, but it must be a whole number of at least 1")
    prefill.chunk_size = size if most is None else min(size + len(running), most)
    try:
        found: list[tuple[Request, int]] = _schedule(prefill, running, *rest)
    finally:
        prefill.chunk_size = most
    return found


EXERCISES = (
    Exercise(
        name="rides",
        hole=Function(
            "policy.admission:mix_with_running", all_or_nobody, asked=pages_of_a_step,
            counts=lambda answer, *args: bool(answer),
        ),
        solution="""
            def rides(prompt_pages, decode_pages, free):
                return sum(prompt_pages) + sum(decode_pages) <= free
        """,
        workloads=Workloads(
            seeds=0, on="mixed", cases=(SHOWN, FULL), show=SHOWN,
        ),
        picture="mixed_chunk",
        beside="",
        hints=(
            "What does a row of the step need, if it has filled its last page?",
            "Pages for the chunk and pages for those who decode come out of the same memory.",
            "Compare the sum of both lists with `free`; just enough is enough.",
        ),
        why=(
            "A step with a chunk in it runs anyway, so a request that decodes may have a row in it "
            "too: one token more hardly makes it longer. Without memory for all of them the chunk "
            "runs alone, and the next decode step sees to it (lesson 6)."
        ),
    ),
    Exercise(
        name="longest_pause",
        hole=Pure(situations, measured_pause, 1e-6, "ms", draw=pause_picture,
                  asked=figures_of_a_pause),
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
        hole=Pure(links, measured_prompts, 1e-6, "a second", asked=figures_of_a_link),
        solution="""
            def prompts_a_second(prompt, chunk, base, per_token, link):
                read = -(-prompt // chunk) * base + per_token * prompt
                return 1000 / max(read, link * prompt)
        """,
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
    Exercise(
        name="chunk_size",
        hole=Scored(
            "policy.admission:PrefillManager.schedule_next_batch", with_chunk_size,
            workload="many prompts", second="prompts at once", loop="mixed", enough=280,
            slowest=1.06,
        ),
        solution="""
            def chunk_size(running, waiting):
                return 48 + 8 * waiting
        """,
        hints=(
            "A step takes 8 ms, and 0.05 ms more for each token in it. How long is a step with a "
            "chunk of 256?",
            "A small chunk makes each pause shorter, and there are more steps. Try some sizes.",
            "No fixed size is enough: where many requests wait, a small chunk delays all of them. "
            "Begin at about 50 tokens, and add some for each request that waits.",
        ),
        why=(
            "The chunk is the knob between pause and throughput. If no request waits, a short "
            "pause counts; if many wait, throughput does. Which function of both is best is open."
        ),
    ),
)  # fmt: skip
