"""How large must the ring be: a formula, tried in runs, and then held against what is needed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from .blame import blame
from .callable_check import takes
from .exercise import right, try_all
from .guard import TooLong, bounded, in_time
from .ring_exercise import draw_slots, play_ring, why
from .trial import Trial
from .verdict import ExerciseVerdict
from .wording import joined
from .workload import Asked, ExerciseWorkload, WorkloadLimits

CONTEXT = 19  # the most tokens of a request here, its prompt and its new ones
CHUNKED = WorkloadLimits(
    requests=3, prompt=CONTEXT - 1, arrives_ms=40, chunks=(1, 2, 4, CONTEXT), may_stop=False,
    context=CONTEXT,
)  # fmt: skip
MOST = 8  # requests at a time, in the runs
GRID = ((1, 2, 3, 8, 64, 256), (16, 19, 1000, 4096, 32768), (1, 4, 64, 512, 8192))
Limit = Callable[[int, int, int], Any]


@in_time
def check_limit(limit: Limit) -> ExerciseVerdict:
    """Whether ``limit(max_running_requests, context_len, chunk)`` slots are enough, and not silly.

    Prompts come in chunks here, and each chunk takes a slot while others wait for their next step.
    """
    if problem := takes(limit, "limit", "max_running_requests", "context_len", "chunk"):
        return ExerciseVerdict(False, [problem])
    ours = list(product(range(1, MOST + 1), [CONTEXT], CHUNKED.chunks))
    for case in ours:
        if problem := _silly(limit, case) or _too_small(limit, case, case[0]):
            return ExerciseVerdict(False, [problem])

    def playing(workload: ExerciseWorkload) -> Trial:
        size = limit(workload.max_running_requests, CONTEXT, workload.chunk)
        return play_ring(workload, limit=size)

    queues = [queue_of_prompts(most, chunk) for most in (2, 4, MOST) for chunk in CHUNKED.chunks]
    if failed := try_all(playing, CHUNKED, explain=why, draw=draw_slots, hard=queues):
        return failed
    for case in product(*GRID):
        if problem := _silly(limit, case) or _too_small(limit, case, needed(*case)):
            return ExerciseVerdict(False, [problem])
    chunks = joined(list(map(str, CHUNKED.chunks)))
    return right(
        f"Prompts of up to {CONTEXT - 1} tokens came in chunks of {chunks}, also several of the "
        "longest in a row, and no slot was lapped. The formula itself was held against what is "
        f"needed in {len(list(product(*GRID)))} more cases, up to {GRID[0][-1]} requests of "
        f"{GRID[1][-1]} tokens."
    )


def queue_of_prompts(max_running_requests: int, chunk: int) -> ExerciseWorkload:
    """One request that is to decode, and behind it as many of the longest prompts as may run."""
    long = tuple(range(CONTEXT - 1))
    others = [Asked(rid, long, 1) for rid in "bcdefgh"[: max_running_requests - 1]]
    return ExerciseWorkload((Asked("a", (1,), 3), *others), max_running_requests, chunk)


def needed(most: int, context: int, chunk: int) -> int:
    """The least that can do: a slot for each chunk of everybody in front, and the own one."""
    return max(most, (most - 1) * -(-(context - 1) // chunk) + 1)


def _silly(limit: Limit, case: tuple[int, ...]) -> str:
    """One sentence on a limit that is no number, or more than twice what is needed; or nothing."""
    call = f"limit{case}"
    try:
        with bounded():
            size = limit(*case)
    except (Exception, TooLong) as error:
        return f"{call}: {blame(error)}"
    if type(size) is not int:
        return f"{call} gives {size!r}, but it must be a whole number of slots."
    highest = 2 * case[0] * (3 + -(-case[1] // case[2]))
    if size <= highest:
        return ""
    return (
        f"{call} gives {size}, but at most {highest} make sense there: memory is dear.{_of(case)}"
    )


def _too_small(limit: Limit, case: tuple[int, ...], least: int) -> str:
    """One sentence on a limit with which slots are taken too early; or nothing."""
    size, others = limit(*case), case[0] - 1
    if size >= least:
        return ""
    if least == case[0]:
        return (
            f"limit{case} gives {size}, but there must be at least {least}, a slot for each "
            f"request.{_of(case)}"
        )
    return (
        f"limit{case} gives {size}, but there must be at least {least}: {others} prompts may stand "
        f"in front of a request, each of up to {case[1] - 1} tokens, in chunks of {case[2]}."
    )


def _of(case: tuple[int, ...]) -> str:
    """Where the numbers of a case come from, if they are not made up."""
    if case[1] != CONTEXT:
        return ""
    return f" ({CONTEXT}: the longest request of the runs here, prompt and new tokens.)"
