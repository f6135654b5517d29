"""Lesson 2, the token that is not there yet: the lines of a FutureMap, and how large it must be."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

from ...checks.history import many
from ...checks.judge import judge
from ...checks.overlap import forwards
from ...devices.base import Array, Buffer
from ...export.offence import offence_scene
from ...export.scene_svg import to_svg
from ...export.views.marks import named, number, numbers
from ...loops.run import Run
from ...museum.blame import of_identity
from ...museum.exhibit import case
from ...museum.exhibit import find as find_bug
from ...museum.patch import put_in
from ...relay.base import RelayShape
from ...relay.future_map import FutureMapRing
from ..exercise import COST, Exercise, Function, Pure, Workloads, is_large, of_any_size
from ..guard import Mistake
from ..outputs import Table
from ..runs import VOCAB

# -- What the host sends, in a table -----------------------------------------------------------


def joined(words: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def inputs_sent(run: Run, steps: int = 4, guess: int | None = None) -> Table:
    """Return a table of the inputs of the first steps, and of the slots for their tokens.

    The last row is a guess of the number that stands for an unknown token.

    Raises:
        NothingToShow: a mark of the future map is not what it should be.
        ValueError: the guess is not an integer.
    """
    ran = {item.step: item for item in forwards(run.trace)}
    rows = []
    for mark in named(run.trace, "future slots")[:steps]:
        step = number(mark, "step")
        reads = [f"-{slot}" for slot in numbers(mark, "reads")]
        sent = joined(reads) if reads else "the tokens of the prompts"
        slots = joined([*map(str, numbers(mark, "slots"))])
        rows.append((str(step), joined(list(ran[step].rids)), sent, f"slots {slots}"))
    if guess is not None:
        if not isinstance(guess, int):
            raise ValueError(f"guess is {guess!r}, but it must be an integer, as tokens are.")
        words = "no token has this number" if guess < 0 else "a token can have this number, too"
        rows.append(("your guess", "", str(guess), words))
    return Table(("step", "requests", "the host sends", "leaves its tokens in"), tuple(rows))


# -- The ring as SGLang had it at first ------------------------------------------------------------

STICKY = find_bug("ring_lapped").edits
"""A placeholder stays what it is until its request runs again, even if the host knows the token by
then. So a slot is read as late as its request is scheduled, and a ring can be lapped
(``managers/overlap_utils.py`` and ``schedule_batch.py`` before #25862)."""


# -- What a learner's lines take and give back -----------------------------------------------------


def resolved(resolve: Any, ring: FutureMapRing, ids: Array, previous: Array | None = None) -> Array:
    """The ids of a step as a list, and the slots one by one."""
    slots = Slots(ring.token_ids_map, ring.future_limit * 5 // 3 + 1)
    sent, given = list(ids), resolve(list(ids), slots)
    if not _are_integers(given) or len(given) != len(sent):
        raise Mistake(
            f"`resolve({sent}, ...)` gave {given!r}, but it must give a list of {len(sent)} "
            f"integer{'s' if len(sent) > 1 else ''}, one for each id"
        )
    return ring.xp.asarray(given)


class Slots:
    """The values of the slots. A slot is read only when it is asked for."""

    def __init__(self, buffer: Buffer, size: int) -> None:
        self.buffer, self.size = buffer, size

    def __getitem__(self, slot: Any) -> int:
        if isinstance(slot, slice):
            raise Mistake("`token_ids_map` is no list here: ask it for one slot at a time")
        if not 0 <= slot < self.size:
            raise IndexError(f"there is no slot {slot}")
        return int(self.buffer[[slot]][0])

    def __len__(self) -> int:
        return self.size


def ids_of_a_step(random: Random) -> tuple[list[int], list[int]]:
    """Tokens and placeholders, and the values of the slots, also of slot 0."""
    num_slots, num_ids, tokens = random.randint(1, 10), random.randint(1, 5), 19
    if is_large(random):
        num_slots, num_ids = of_any_size(random, 10, 4000), of_any_size(random, 5, 100)
        tokens = 150_000
    slots = [random.randrange(tokens) for _ in range(num_slots)]
    ids = [random.randrange(1 - num_slots, random.choice((1, tokens))) for _ in range(num_ids)]
    return ids, slots


def allotted(alloc: Any, ring: FutureMapRing, num_reqs: int) -> list[int]:
    """The slots of a batch; the counter is the ring's."""
    asked = ring.future_ct, num_reqs, ring.future_limit
    given = alloc(*asked)
    call = f"`alloc({', '.join(map(str, asked))})` gave {given!r}"
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], int)):
        raise Mistake(f"{call}, but it must give two things: slots, and the new counter")
    slots = list(given[0]) if isinstance(given[0], list | tuple | range) else given[0]
    if not _are_integers(slots) or len(slots) != num_reqs:
        raise Mistake(f"{call}, but its first part must be a list or range of {num_reqs}")
    most = ring.future_limit * 5 // 3
    if any(not 1 <= slot <= most for slot in slots):
        raise Mistake(f"{call}, but the buffer has the slots 1 to {most} (0 would be a token)")
    if slots[0] > ring.future_limit:
        raise Mistake(
            f"{call}, but slots begin at 1 again once {ring.future_limit} of them are handed out"
        )
    if slots[0] - 1 not in (0, ring.future_ct, ring.future_ct % ring.future_limit):
        raise Mistake(
            f"{call}, but slots stand in turn: the first one is {ring.future_ct + 1}, or 1 again"
        )
    is_distinct = len({*slots}) == num_reqs
    is_behind = bool(given[1]) or (ring.future_ct > 0 and 1 in slots)  # or it begins again
    if is_distinct and is_behind and (given[1] - slots[-1]) % ring.future_limit:
        raise Mistake(
            f"{call}, but the last slot handed out is {slots[-1]}: a counter of {given[1]} makes "
            "the next batch skip slots, or take one that is in use"
        )
    ring.future_ct = given[1]
    return slots


def slots_within_the_limit(random: Random) -> tuple[int, int, int]:
    """A counter, a batch and a limit, not yet near the place where slots begin at 1 again."""
    limit, num_reqs = random.randint(8, 40), random.randint(1, 5)
    if is_large(random):
        limit, num_reqs = of_any_size(random, 200, 100_000), of_any_size(random, 5, 100)
    return random.randint(0, limit * 3 // 4 - num_reqs), num_reqs, limit


def slots_and_counter(answer: Any, future_ct: int, num_reqs: int, limit: int) -> Any:
    """Return the slots as a list, and the counter, where ``limit`` is as good as 0."""
    slots, *counters = answer
    return [*slots], [counter % limit for counter in counters]


def _are_integers(given: Any) -> bool:
    return isinstance(given, list) and all(type(item) is int for item in given)


# -- How large must the ring be: held against what is needed, and a run with it drawn --------------

CONTEXT = 19  # tokens of the longest request in the runs
CASES = (
    *product((2, 3, 4), (CONTEXT,), (1, 2, 4, CONTEXT)),
    *product((1, 2, 3, 8, 64, 256), (1, 2, 16, 19, 1000, 4096, 32768), (1, 4, 64, 512, 8192)),
)


def needed(most: int, context: int, chunk: int) -> int:
    """Return the least number of slots: one for each chunk of all earlier requests, and one."""
    return max(most, (most - 1) * -(-(context - 1) // chunk) + 1)


def large_enough(size: Any, most: int, context: int, chunk: int) -> str:
    """Return a sentence if that many slots are too few, or far too many; or ''.

    Enough is twice what is needed, or the chunks of all requests and four slots for each.
    """
    call = f"`limit({most}, {context}, {chunk})` gives {size!r}"
    if type(size) is not int:
        return f"{call}, but it must be a whole number of slots."
    least = needed(most, context, chunk)
    highest = max(2 * least, most * (4 + -(-context // chunk)))
    if size < least:
        prompts, tokens = many(most - 1, "prompt"), many(context - 1, "token")
        return (
            f"{call}, but there must be at least {least}: {prompts} of up to {tokens} may "
            f"stand in front of a request, in chunks of {chunk}, and every chunk takes a slot. "
            "A slot that is taken again before its token was read is lapped."
        )
    if size > highest:
        return f"{call}, but at most {highest} make sense there: memory is dear."
    return ""


def lapped_run(size: Any, most: int, context: int, chunk: int) -> str:
    """A run with such a ring: one request decodes, and long prompts stand in front of it."""
    if type(size) is not int or not 0 < size < 1000 or context != CONTEXT:
        return ""
    prompt = " ".join(map(str, range(CONTEXT - 1)))
    others = "".join(f"; {rid} at 1: {prompt} -> 1" for rid in "bcd"[: most - 1])
    small = case(
        f"a: 1 -> 3{others}", "overlap:ring", kv=100, rows=most, vocab_size=VOCAB, cost=COST,
        chunked_prefill_size=chunk, disable_radix_cache=True,
    )  # fmt: skip

    def with_ring(engine: Any) -> None:
        ring = FutureMapRing(engine.device, RelayShape(size + most))  # with a buffer for any slot
        ring.future_limit = size
        engine.worker.relay = ring

    with put_in(STICKY):
        verdict = judge(small, with_ring)
    found = verdict.broke("identity")
    return to_svg(offence_scene(verdict.trace, of_identity(verdict, found))) if found else ""


def limits() -> Iterator[tuple[int, int, int]]:
    """Yield the arguments of ``limit``."""
    yield from CASES


EXERCISES = (
    Exercise(
        name="resolve",
        hole=Function("relay.future_map:FutureMap.resolve_future", resolved, asked=ids_of_a_step),
        solution="""
            def resolve(ids, token_ids_map):
                return [token_ids_map[-token] if token < 0 else token for token in ids]
        """,
        workloads=Workloads("overlap:ring", levels=("tight",), seeds=60),
        reach=20,
        picture="future_map",
        hints=(
            "Which of the ids are tokens, and which are promises?",
            "The promise -3 means slot 3. So the index is minus the id.",
        ),
        why=(
            "The host sends a number that it can know: where the token will be. The device looks "
            "it up when the step before has put it there, because one queue keeps its order. "
            "Neither waits for the other."
        ),
    ),
    Exercise(
        name="alloc",
        hole=Function(
            "relay.future_map:FutureMapRing.alloc_future_indices",
            call=allotted,
            bug=STICKY,
            asked=slots_within_the_limit,
            counts=slots_and_counter,
        ),
        solution="""
            def alloc(future_ct, num_reqs, limit):
                slots = range(future_ct + 1, future_ct + 1 + num_reqs)
                return slots, (future_ct + num_reqs) % limit
        """,
        workloads=Workloads("overlap:ring", levels=("plain",), seeds=60),
        reach=20,
        picture="future_map",
        hints=(
            "The counter only grows. When may it start again?",
            "After `limit` slots the round is over: `%`.",
        ),
        why=(
            "A slot is needed from its promise to its reading, and that is two steps. So a few "
            "slots, handed out round and round, are enough. How few is the next question."
        ),
    ),
    Exercise(
        name="limit",
        hole=Pure(limits, holds=large_enough, draw=lapped_run),
        solution="""
            from math import ceil

            def limit(max_running_requests, context_len, chunk):
                return max_running_requests * (3 + ceil(context_len / chunk))
        """,
        hints=(
            "How many chunks can one prompt have?",
            "How many requests can stand in front of you?",
            "Requests, times the chunks of each, and a few more for those in flight.",
        ),
        why=(
            "While your request waits, every chunk in front of it takes a slot. The ring must not "
            "come round before your token is read, so its size is the longest queue there can be. "
            "SGLang's formula after the bug (#13713) is `m * (3 + ceil(n / c))`; later it dropped "
            "the ring."
        ),
    ),
)
