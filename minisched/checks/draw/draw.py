"""A random workload for a seed: over the product of all axes, by the standard library alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, TypeVar

from ...core import Request
from ...devices.cost import MICROSECOND, NO_COST, CostModel, HostCost, MeasuredCost
from ...loops.design import LOOPS
from ...memory.radix_cache import POLICIES as EVICTION_POLICIES
from ...policy.rules import RULES, RUN_FIRST, Rules
from ...policy.waiting import POLICIES as SCHEDULE_POLICIES
from ...scheduler import SchedulerConfig
from ..case import Case
from ..workload import Workload
from .designs import OFTEN, Design, all_designs
from .requests import (
    FEW,
    PLAIN,
    WISHES,
    draw_aborts,
    draw_failures,
    draw_odd,
    draw_requests,
    follow_up,
    several,
)

DRAFTERS = ("", "", "NGRAM", "", "", "NGRAM_GPU", "", "STANDALONE")  # they go round, as loops do
THEMES = ("any", "any", "crowded", "urgent", "conversation")
"""What a workload is about: nothing, too little memory, priorities, prompts that go on from another
one's answer. By chance alone hardly a workload retracts, preempts, or finds an answer cached."""
ODD_SHARE = 1 / 3
CASES_EACH = 12  # of a workload, each on another loop, or with another relay or option of a loop
UNIT = 100 * MICROSECOND
PAGE_SIZES = (1, 1, 2, 4)
CHUNKS = (-1, 1, 1, 2, 3, 5)  # pages; -1: no limit
DRAFT_MODELS = {"NGRAM": ("",), "NGRAM_GPU": ("",), "STANDALONE": ("hash:10", "hash:7", "hash:0")}
CONTEXT_LEN = 32
POLICY_PAIRS = tuple((first, policy) for first in RUN_FIRST for policy in sorted(SCHEDULE_POLICIES))
NOT_CHANGED = (
    "run_first", "free_rule", "too_long_alone", "enters_cache", "prefix_cache", "prompt_pages",
)  # fmt: skip
CHANGES = tuple(  # of rules: one answer each
    f"{rule.name}={answer}"
    for rule in fields(Rules)
    if rule.name not in NOT_CHANGED
    for answer in rule.metadata["answers"]
    if (rule.name, answer) != ("reserves", "prompt")
)

Card = TypeVar("Card")


@dataclass(frozen=True)
class Drawn:
    """What a seed gives: a workload, what steps cost, and the link of ``pd``."""

    seed: int
    workload: Workload
    cost: CostModel
    link: dict[str, int]
    theme: str  # one of ``THEMES``
    wishes: str  # one of ``WISHES``
    odd: str = "none"  # or what is odd about the last request: its ``id``, or a ``field``
    built_by_host: bool = False  # on ``sim``; see ``Case``

    def on(self, design: Design, device: str = "sim") -> Case:
        """The case on one loop, without what the loop never takes.

        Of the requests that want a feature which it refuses, every other one still does. With more
        steps in flight than a loop has by itself, two workloads of three are made for that.
        """
        workload, rng = without_refused(self.workload, design), beside(self.seed, "deep")
        config = with_slack(workload.config, design.in_flight)
        if design.in_flight > LOOPS[design.loop].in_flight and rng.random() < 0.67:
            config = for_deep(rng, config)
        workload = replace(workload, config=config)
        options = self.link if design.loop == "pd" else design.options
        cost = self.cost if device == "sim" else NO_COST
        built_by_host = self.built_by_host and device == "sim"
        return Case(workload, design.loop, design.relay, options, cost, device, built_by_host)


# -- a seed ----------------------------------------------------------------------------------------


def draw(seed: int, odd: bool = True) -> Drawn:
    """The workload of a seed; the same one on every machine.

    Without ``odd`` no request of it is, and no step fails: whoever tries a fault wants that one
    alone, and it tells by its id whom it has to do with.
    """
    rng = Random(seed)
    algorithm = DRAFTERS[seed % len(DRAFTERS)]
    letters = FEW if algorithm else PLAIN
    wishes, logprobs = rng.choice(WISHES), rng.random() < 0.2
    requests = draw_requests(rng, letters, wishes, logprobs)
    config = draw_config(rng, requests)
    if algorithm:
        config = with_drafts(rng, config, algorithm, like_before(seed))
    arrivals = [0, *(rng.randrange(9) for _ in requests[1:])]
    eos_ids = rng.choice(letters.eos)
    cost, link = draw_cost(rng), draw_link(rng)
    flushes = draw_flushes(beside(seed, "flushes"))
    workload = Workload(requests, arrivals, {}, config, eos_ids, letters.vocab_size, flushes)
    theme = dealt(THEMES, seed, "theme")
    workload = ABOUT[theme](beside(seed, theme), workload)
    workload.config = with_rules(beside(seed, "rules"), workload.config)
    workload.aborts = draw_aborts(beside(seed, "aborts"), workload)
    if beside(seed, "measured").random() < 0.1:
        cost = draw_measured(beside(seed, "knots"), cost)
    by_host = bool(algorithm) and beside(seed, "built by host").random() < 0.5
    drawn = Drawn(seed, workload, cost, link, theme, wishes, built_by_host=by_host)
    if not odd:
        return drawn
    workload.failures = draw_failures(beside(seed, "failures"), workload)
    return with_odd(drawn, beside(seed, "odd"))


def beside(seed: int, what: str) -> Random:
    """A source of its own for something that is drawn: the rest of a seed stays what it was."""
    return Random(f"{what} {seed}")


def dealt(cards: Sequence[Card], number: int, what: str) -> Card:
    """The ``number``-th card from packs that are shuffled one by one.

    Each comes up once in so many in a row, and in no fixed order: two axes that are dealt do not
    keep step with each other.
    """
    pack, at = divmod(number, len(cards))
    return Random(f"{what} {pack}").sample(list(cards), len(cards))[at]


def with_odd(drawn: Drawn, rng: Random) -> Drawn:
    """Every third workload has one request more, whose end is nobody else's affair."""
    if rng.random() > ODD_SHARE:
        return drawn
    old = drawn.workload
    kind, odd = draw_odd(rng, old.requests)
    requests, arrivals = [*old.requests, odd], [*old.arrivals, rng.randrange(15)]
    return replace(drawn, workload=replace(old, requests=requests, arrivals=arrivals), odd=kind)


def draw_flushes(rng: Random) -> frozenset[int]:
    """In one workload of four, turns in which the cache is to be forgotten, some after the end."""
    return frozenset(rng.randrange(30) for _ in range(rng.choice((0, 0, 0, 3))))


# -- settings --------------------------------------------------------------------------------------


def draw_config(rng: Random, requests: Sequence[Request]) -> SchedulerConfig:
    """Settings under which the longest of the requests just fits, or a little more does.

    One in ten has a page less, so that the longest one is refused. Memory goes back by the rule
    ``lease``: each of the others is healthy on some loops only.
    """
    page_size = rng.choice(PAGE_SIZES)
    longest = pages_of_longest(requests, page_size)
    num_pages = longest - 1 if rng.random() < 0.1 else longest + rng.choice((0, 0, 1, 2, 4, 8, 12))
    chunk = rng.choice(CHUNKS)
    run_first = rng.choice(RUN_FIRST)
    return SchedulerConfig(
        kv_tokens=max(1, num_pages) * page_size,
        page_size=page_size,
        max_running_requests=rng.randint(1, 5),
        disable_radix_cache=rng.random() < 0.25,
        radix_eviction_policy=rng.choice(sorted(EVICTION_POLICIES)),
        chunked_prefill_size=chunk if chunk == -1 else chunk * page_size,
        max_prefill_tokens=rng.choice((3, 8, 99)),
        schedule_policy=rng.choice(sorted(SCHEDULE_POLICIES)),
        priority_scheduling_preemption_threshold=rng.randrange(3),
        schedule_conservativeness=rng.choice((0.0, 0.0, 0.4, 2.0)),
        random_seed=rng.randrange(10),
        run_first=run_first,
        enable_mixed_chunk=run_first == "prefill" and chunk != -1 and rng.random() < 0.5,
        cuda_graph_max_bs=rng.choice((None, None, 0, 2)),
        late_penalties=rng.random() < 0.25,
        late_stop_strings=rng.random() < 0.25,
        context_len=CONTEXT_LEN,
    )


def pages_of_longest(requests: Sequence[Request], page_size: int) -> int:
    """Pages of the longest request."""
    return -(-max(req.max_device_len for req in requests) // page_size)


def with_drafts(
    rng: Random, config: SchedulerConfig, algorithm: str, number: int
) -> SchedulerConfig:
    """The settings with speculation; ``with_slack`` adds the room for drafts in flight.

    It is the ``number``-th workload with that algorithm: with each, every policy comes up.
    """
    count = rng.randint(1, 4)
    run_first, schedule_policy = dealt(POLICY_PAIRS, number, algorithm)
    changes: dict[str, Any] = {
        "speculative_algorithm": algorithm,
        "speculative_num_draft_tokens": count,
        "speculative_draft_model_path": rng.choice(DRAFT_MODELS[algorithm]),
        "run_first": run_first,
        "schedule_policy": schedule_policy,
        "enable_mixed_chunk": False,
        "late_penalties": False,
    }
    return replace(config, **changes)


def with_rules(rng: Random, config: SchedulerConfig) -> SchedulerConfig:
    """In every second workload, the loop's own rules; else one system's, with one answer changed.

    Who runs first is a setting, and is drawn with them. Memory goes back by the rule ``lease``:
    each of the others is healthy on some loops only. Nobody is refused for ever, and a radix tree
    shares nothing that a failing step may not have written. Memory for the prompt alone is for
    loops that wait for each step: where steps run ahead, whoever was retracted can come back for
    ever.
    """
    if rng.random() < 0.5:
        return config
    system = rng.choice([name for name, rules in RULES.items() if rules.reserves != "prompt"])
    return replace(config, rules=f"{system},free_rule=lease,{rng.choice(CHANGES)}")


def with_slack(config: SchedulerConfig, in_flight: int) -> SchedulerConfig:
    """The settings with just the room that drafts take, where so many steps are in flight."""
    pages = -(-config.num_draft_tokens * (in_flight - 1) // config.page_size)
    return replace(config, kv_tokens=config.kv_tokens + pages * config.page_size)


def for_deep(rng: Random, config: SchedulerConfig) -> SchedulerConfig:
    """Settings in which tokens stay unread for long: chunk upon chunk goes before who decodes.

    There are few rows and there is memory for all of them. Without this few workloads ever leave a
    row out while steps are in flight, and a relay that forgets its token is not found out.
    """
    return replace(
        config,
        run_first="prefill",
        enable_mixed_chunk=False,
        page_size=1,
        chunked_prefill_size=rng.choice((1, 2)),
        max_running_requests=rng.randint(2, 3),
        kv_tokens=config.kv_tokens + 40,
    )


# -- themes ----------------------------------------------------------------------------------------


def as_it_is(rng: Random, workload: Workload) -> Workload:
    """About nothing."""
    return workload


def crowded(rng: Random, workload: Workload) -> Workload:
    """At least three requests at about the same time, whose answers have no room beside each other.

    Nothing is kept back for those who run, so that some of them are retracted: nobody says that it
    ignores EOS, for whom SGLang's rules keep everything back, but there is no EOS that could come.
    """
    config, requests = workload.config, []
    for req in several(workload.requests, 3):
        prompt = req.prompt[-rng.randint(1, 6) :]
        params = replace(
            req.params,
            max_new_tokens=rng.randint(6, 12),
            ignore_eos=False,
            stop_token_ids=frozenset(),
            logprob_start_len=min(req.params.logprob_start_len, len(prompt) - 1),
        )
        requests.append(Request(req.rid, prompt, params, priority=req.priority))
    pages = pages_of_longest(requests, config.page_size) + rng.randrange(4)
    config = replace(
        config,
        kv_tokens=pages * config.page_size,
        max_running_requests=rng.randint(3, 5),
        schedule_conservativeness=0.0,
    )
    arrivals = [rng.randrange(4) for _ in requests]
    return replace(
        workload, requests=requests, arrivals=arrivals, config=config, eos_ids=frozenset()
    )


def urgent(rng: Random, workload: Workload) -> Workload:
    """Who comes later is more urgent, by more than the threshold, and there is little room."""
    step, requests = rng.choice((1, 1, 2, 3)), several(workload.requests, 3)
    arrivals = sorted(rng.randrange(12) for _ in requests)
    requests = [
        Request(req.rid, req.prompt, req.params, priority=step * number)
        for number, req in enumerate(requests)
    ]
    config = replace(
        workload.config,
        schedule_policy="priority",
        priority_scheduling_preemption_threshold=rng.choice((0, 0, 1, 2)),
        max_running_requests=rng.randint(1, 3),
    )
    return replace(workload, requests=requests, arrivals=arrivals, config=config)


def conversation(rng: Random, workload: Workload) -> Workload:
    """Prompts that go on where another one's answer ended, and come when it has, or nearly so."""
    config, before = workload.config, workload.requests
    requests, arrivals = several(before, 3), [0]
    for at in range(1, len(requests)):
        earlier = rng.randrange(at)
        more = follow_up(rng, workload, requests[earlier], requests[at], config.context_len)
        arrivals.append(arrivals[earlier] + rng.randint(2, 12) if more else rng.randrange(9))
        requests[at] = more or requests[at]
    spare = config.num_pages - pages_of_longest(before, config.page_size) + rng.randrange(8)
    pages = pages_of_longest(requests, config.page_size) + max(0, spare)
    config = replace(config, kv_tokens=pages * config.page_size, disable_radix_cache=False)
    return replace(workload, requests=requests, arrivals=arrivals, config=config)


ABOUT = {"any": as_it_is, "crowded": crowded, "urgent": urgent, "conversation": conversation}


# -- costs -----------------------------------------------------------------------------------------


def draw_measured(rng: Random, cost: CostModel) -> MeasuredCost:
    """The same costs as a profile has them: measured knots, as steep as may be, up or down."""
    tokens = sorted(rng.sample(range(1, 17), rng.randint(1, 3)))
    knots = tuple((at, rng.choice((0, 1, 10, 60)) * UNIT) for at in tokens)
    return MeasuredCost(
        **{item.name: getattr(cost, item.name) for item in fields(CostModel)},
        forward_knots=knots,
        host_side=HostCost(base=cost.host),
        pad_to=rng.choice((1, 1, 4)),
    )


def draw_cost(rng: Random) -> CostModel:
    """Costs with which now the host is the slower one, now the device, and now nothing costs."""
    schedule, small, mask, late = (
        rng.choice(values) * UNIT for values in ((0, 1, 5, 30), (0, 1), (0, 3, 25), (0, 2))
    )
    host = dict.fromkeys(("receive", "prepare", "launch", "output"), small)
    host |= {"schedule": schedule, "process": schedule, "mask": mask, "launch sample": late}
    return CostModel(
        host,
        forward_base=rng.choice((0, 1, 10, 60)) * UNIT,
        forward_per_token=rng.choice((0, 1)) * UNIT,
        sample=rng.choice((0, 2)) * UNIT,
        copy=rng.choice((0, 1, 9)) * UNIT,
        verify=rng.choice((0, 1)) * UNIT,
        draft=rng.choice((0, 3)) * UNIT,
        recv=rng.choice((0, 2)) * UNIT,
        logprobs=rng.choice((0, 2)) * UNIT,
    )


def draw_link(rng: Random) -> dict[str, int]:
    """From a network that costs nothing to one that is slower than everything else."""
    return {
        "latency": rng.choice((0, 1, 20, 300)) * UNIT,
        "bytes_per_second": 10**9,
        "slot_bytes": rng.choice((0, 1, 15)) * UNIT,
        "prealloc_first": rng.random() < 0.5,
    }


# -- the loops it runs on --------------------------------------------------------------------------


def designs_for(drawn: Drawn, device: str = "sim") -> list[Design]:
    """What a workload runs on: with the seed the loops go round, and on each its variants.

    So any so many seeds in a row have every loop equally often, and all that belongs to one. Of a
    kind that few loops take, it runs on several variants of each.
    """
    by_loop = designs_by_loop(drawn, device)
    loops = list(by_loop)
    chosen, earlier = [], like_before(drawn.seed)
    kind = drawn.workload.config.speculative_algorithm
    for number in range(earlier * CASES_EACH, (earlier + 1) * CASES_EACH):
        turn, at = divmod(number, len(loops))
        chosen.append(dealt(by_loop[loops[at]], turn, f"{kind} {loops[at]}"))
    return list({design.name: design for design in chosen}.values())


def designs_by_loop(drawn: Drawn, device: str) -> dict[str, list[Design]]:
    """Whatever takes a workload of its kind, by loop."""
    algorithm = drawn.workload.config.speculative_algorithm
    by_loop: dict[str, list[Design]] = {}
    for design in all_designs():
        if device in LOOPS[design.loop].devices and algorithm not in design.refuses():
            by_loop.setdefault(design.loop, []).extend([design] * OFTEN.get(design.name, 1))
    return by_loop


def loops_that_refuse(drawn: Drawn, device: str = "sim") -> set[str]:
    """Loops that take no workload of its kind: their originals do not combine with it."""
    every = {design.loop for design in all_designs() if device in LOOPS[design.loop].devices}
    return every - designs_by_loop(drawn, device).keys()


def like_before(seed: int) -> int:
    """How many seeds below this one draw the same kind of speculation."""
    rounds, at = divmod(seed, len(DRAFTERS))
    algorithm = DRAFTERS[at]
    return rounds * DRAFTERS.count(algorithm) + DRAFTERS[:at].count(algorithm)


def without_refused(workload: Workload, design: Design) -> Workload:
    """The workload as a loop takes it: no speculation that it refuses, and chunks if it needs any.

    A request is refused for a wish; so only every other one loses it.
    """
    refused, config = design.refuses(), workload.config
    if config.speculative_algorithm in refused:
        config = replace(config, speculative_algorithm="", speculative_draft_model_path="")
    if LOOPS[design.loop].settings.get("enable_mixed_chunk") and config.chunked_prefill_size == -1:
        config = replace(config, chunked_prefill_size=2 * config.page_size)
    requests = [
        request if at % 2 else without_wishes(request, refused)
        for at, request in enumerate(workload.requests)
    ]
    return replace(workload, requests=requests, config=config)


def without_wishes(request: Request, refused: set[str]) -> Request:
    """The request without what a loop refuses; one that is refused everywhere stays as it is."""
    params = request.params
    if request.problem():
        return request
    if "grammar" in refused:
        params = replace(params, regex=None)
    if "penalties" in refused:
        params = replace(
            params, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0
        )
    return Request(request.rid, request.prompt, params, priority=request.priority)
