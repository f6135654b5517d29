"""A random workload for a seed: over the product of all axes, by the standard library alone."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random

from ...core import Request
from ...devices.cost import MICROSECOND, NO_COST, CostModel
from ...devices.measured_cost import HostCost, MeasuredCost
from ...loops.registry import LOOPS
from ..case import Case
from ..workload import Workload
from .config import draw_config, for_deep, with_drafts, with_slack
from .designs import OFTEN, Design, all_designs
from .requests import FEW, PLAIN, WISHES, draw_odd, draw_requests

ALGORITHMS = ("", "", "NGRAM", "", "", "NGRAM_GPU", "", "STANDALONE")  # they go round, as loops do
ODD_SHARE = 1 / 3
LOOPS_EACH = 12  # how many loops a workload runs on
UNIT = 100 * MICROSECOND


@dataclass(frozen=True)
class Drawn:
    """What a seed gives: a workload, what steps cost, and the link of ``pd``."""

    seed: int
    workload: Workload
    cost: CostModel
    link: dict[str, int]
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


def draw(seed: int, odd: bool = True) -> Drawn:
    """The workload of a seed; the same one on every machine.

    Without ``odd`` no request of it is: a fault tells by its id whom it has to do with.
    """
    rng = Random(seed)
    algorithm = ALGORITHMS[seed % len(ALGORITHMS)]
    letters = FEW if algorithm else PLAIN
    wishes, logprobs = rng.choice(WISHES), rng.random() < 0.2
    requests = draw_requests(rng, letters, wishes, logprobs)
    config = draw_config(rng, requests)
    if algorithm:
        config = with_drafts(rng, config, algorithm)
    arrivals = [0, *(rng.randrange(9) for _ in requests[1:])]
    aborts = {rng.randrange(15): rng.choice(requests).rid for _ in range(rng.choice((0, 0, 1, 2)))}
    eos_ids = rng.choice(letters.eos)
    flushes = draw_flushes(beside(seed, "flushes"))
    workload = Workload(requests, arrivals, aborts, config, eos_ids, letters.vocab_size, flushes)
    cost, link = draw_cost(rng), draw_link(rng)
    if beside(seed, "measured").random() < 0.1:
        cost = draw_measured(beside(seed, "knots"), cost)
    by_host = bool(algorithm) and beside(seed, "built by host").random() < 0.5
    drawn = Drawn(seed, workload, cost, link, wishes, built_by_host=by_host)
    return with_odd(drawn, beside(seed, "odd")) if odd else drawn


def beside(seed: int, what: str) -> Random:
    """A source of its own for something that is drawn: the rest of a seed stays what it was."""
    return Random(f"{what} {seed}")


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


def designs_for(drawn: Drawn, device: str = "sim") -> list[Design]:
    """The loops that a workload runs on: with the seed they go round, and on each its variants.

    So any so many seeds in a row have every loop equally often, and all that belongs to one.
    """
    by_loop = designs_by_loop(drawn, device)
    loops = list(by_loop)
    chosen, earlier = [], like_before(drawn.seed)
    for number in range(min(LOOPS_EACH, len(loops))):
        turn, at = divmod(earlier * LOOPS_EACH + number, len(loops))
        designs = by_loop[loops[at]]
        chosen.append(designs[turn % len(designs)])
    return chosen


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
    rounds, at = divmod(seed, len(ALGORITHMS))
    algorithm = ALGORITHMS[at]
    return rounds * ALGORITHMS.count(algorithm) + ALGORITHMS[:at].count(algorithm)


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
