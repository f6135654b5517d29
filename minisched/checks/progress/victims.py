"""Who loses their memory: whom the rules name, told without the code of the policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...core import Lease, Request
from ...memory import LeasePool
from ...policy.budget import CLIP_MAX_NEW_TOKENS
from ...scheduler import Scheduler, SchedulerConfig

ROUNDING = 1e-6  # tokens; shares of them are added up, in another order than the scheduler's

Places = Mapping[Request, int]  # in which order they came
Kept = Mapping[Request, float]  # tokens of memory, by those who run


def not_the_one(
    scheduler: Scheduler, req: Request, ready: Sequence[Request], reason: str,
    order: Sequence[Request],
) -> Iterator[str]:  # fmt: skip
    """What is wrong with it that ``req`` loses its memory now, for want of pages.

    A prompt in chunks goes first, as it has said nothing yet. Else whoever has said least; of them
    the longest prompt, then whose prompt was done last (``order``; SGLang ``retract_decode``); with
    vLLM's rule (``unified``) simply that one. Nobody at all, if what is free and what is on its
    way back is enough for all who are ``ready``: else one after the other would have to, and for
    ever (vllm-ascend #16315). Nor while one is about to end, whose memory comes back by itself.
    """
    rules = scheduler.config.in_force
    chunked, running = scheduler.prefill.chunked_req, scheduler.running_batch
    if chunked is not None:
        named, rule = chunked.req, "whose prompt is in chunks"
    elif reason == "unified":
        named, rule = max(running, key=order.index), "the newest"
    elif scheduler.config.in_force.victim == "newest":
        named, rule = running[-1], "who decodes since last"
    else:
        ranks = {req: (len(req.output_ids), -len(req.prompt), -order.index(req)) for req in running}
        named = min(running, key=ranks.__getitem__)
        rule = f"with {len(named.output_ids)} outputs"
    victim = f"behind step {scheduler.step} {req.rid} has to give its memory back"
    if req is not named:
        yield f"{victim}, but the rule names {named.rid}, {rule}"
    leases = scheduler.leases
    need = sum(leases.pages_lacking(req.lease, req.reach) for req in ready if req.lease)
    if chunked is not None and chunked.req.lease and rules.chunk_lacks_pages == "preempt":
        left = min(chunked.req.extend_len, scheduler.config.prefill_budget - len(ready))
        need += leases.pages_lacking(chunked.req.lease, chunked.req.computed_len + left)
    if need <= leases.available_pages + leases.pages_returning:
        yield (
            f"{victim}, when the next step needs {need} pages: {leases.available_pages} can be had "
            f"and {leases.pages_returning} are on their way back"
        )
    if reason != "unified" and (ending := about_to_end(scheduler)):
        yield f"{victim}, when {words(ending)} will end with what is in flight"


def about_to_end(scheduler: Scheduler) -> list[Request]:
    """Who runs and has been launched as often as ever: the result in flight is the last."""
    most = scheduler.decode.overrun
    return [req for req in scheduler.running_batch if req.device_len >= req.max_device_len + most]


@dataclass
class Memory:
    """What can be had for a request of high priority, and what others would give back for it."""

    available: int  # pages
    returning: int  # pages
    has_row: bool  # or one is on its way back
    given_back: dict[Request, int]  # pages, by those who run

    @classmethod
    def now(
        cls, leases: LeasePool, running: Sequence[Request], pages: Mapping[Lease, int], taken: int
    ) -> Memory:
        """As it is; or was, before a step ``taken`` pages, and leases had ``pages``."""
        given_back = {
            req: leases.pages_given_back(req.lease) - len(req.lease.pages) + pages[req.lease]
            for req in running
            if req.lease is not None
        }
        has_row = bool(leases.table.available_size or leases.returning)
        return cls(leases.available_pages + taken, leases.pages_returning, has_row, given_back)


@dataclass
class Preemption:
    """What was true when the first had to make way for a request of higher priority."""

    head: Request
    asked_len: int  # what it had to compute, when it was asked last before that
    admitted: list[Request]  # before it, in the same decision
    memory: Memory
    places: Places  # as they were: who makes way gets another one
    victims: list[Request] = field(default_factory=list)


def new_tokens(req: Request) -> int:
    """What a request may still say."""
    return min(req.params.max_new_tokens - len(req.output_ids), CLIP_MAX_NEW_TOKENS)


def all_tokens(req: Request) -> int:
    """What a request is charged for when it comes, for the second time, too."""
    return min(req.params.max_new_tokens, CLIP_MAX_NEW_TOKENS)


def kept_back(req: Request, ratio: float, config: SchedulerConfig) -> float:
    """What is kept back of what one who runs may still say; or all of it and some of a page."""
    if config.in_force.reserves == "prompt":
        return 0
    if config.in_force.reserves == "rest":
        launches = req.max_device_len - req.device_len
        return launches + config.page_size - 1 if launches > 0 else 0
    is_whole = req.params.ignore_eos and config.in_force.ignore_eos_reserve == "whole"
    return new_tokens(req) * (1.0 if is_whole else ratio)


def who_gives_a_row(
    head: Request, asked_len: int, left: float, kept: Kept, running: Iterable[Request],
    config: SchedulerConfig, places: Places,
) -> list[list[Request]]:  # fmt: skip
    """Who has to make way for ``head`` where rows are lacking (SGLang ``preempt_to_schedule``).

    The same order and threshold, until what is kept back for those who go is what it asks for: what
    it had to compute when it was asked last, and all it may say.
    """
    line = sorted(running, key=lambda req: (req.priority, -places[req]))
    need = asked_len + all_tokens(head) - left
    answers = []
    for rounding in (0, -ROUNDING, ROUNDING):
        short, gone = need + rounding, list[Request]()
        for victim in line:
            is_low = (
                head.priority - victim.priority > config.priority_scheduling_preemption_threshold
            )
            if not is_low or (gone and short <= 0):
                break
            gone.append(victim)
            short -= kept[victim]
        answers.append(gone if short <= 0 else [])
    return answers


def who_makes_way(
    head: Request, left: float, kept: Kept, memory: Memory, config: SchedulerConfig,
    places: Places,
) -> list[list[Request]]:  # fmt: skip
    """Who has to make way for ``head``: all that is needed for it to come, or nobody.

    The lowest priority first, then the newest, and only those lower by more than the threshold.
    ``left`` are the tokens of memory that what is ``kept`` for the others leaves. Two answers where
    rounding decides.
    """
    line = sorted(memory.given_back, key=lambda req: (req.priority, -places[req]))
    need = head.known_len + new_tokens(head) + config.page_size + 1
    need -= memory.returning * config.page_size
    least = config.priority_scheduling_preemption_threshold
    answers = []
    for short in (need - left, need - left - ROUNDING, need - left + ROUNDING):
        gone: list[Request] = []
        for victim in line:
            if short <= 0 and (gone or memory.has_row):
                break
            gone.append(victim)
            short -= kept[victim] + memory.given_back[victim] * config.page_size
        enough = short <= 0 and (gone or memory.has_row)
        may = all(head.priority - victim.priority > least for victim in gone)
        answers.append(gone if enough and may else [])
    return answers


def words(reqs: Sequence[Request]) -> str:
    """Their ids."""
    return " and ".join(req.rid for req in reqs) or "nobody"
