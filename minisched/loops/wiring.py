"""Makes the engine that a loop turns: scheduler, relay, worker and device, as its spec says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..devices.sim import SimDevice
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..grammar import compile_grammar
from ..models.base import Model
from ..models.tokenizer import StopStrings, TextCodec, text_codec_of
from ..policy.rules import find_rules
from ..relay import Relay, RowRelay, UploadRelay
from ..relay.registry import RelayShape, make_relay
from ..scheduler import Scheduler, SchedulerConfig
from ..scheduler.verify import Propose
from ..speculative.registry import make_drafter, propose_from_history
from ..worker import Worker
from ..worker.failure import memory_for
from ..worker.verify import SpeculativeWorker
from .design import Design

# -- What speculation asks of a loop's wiring: a worker that verifies, a relay that carries drafts

CARRIERS = ("host", "pool")  # relays that bring drafts and lengths from step to step
TAKES = (
    "with speculation a relay that carries drafts and lengths: the host itself, or the "
    "pool-indexed FutureMap, which has a cell for each"
)


class Speculation(NamedTuple):
    """How a loop's worker is made, and how the host drafts; both None without speculation."""

    worker: Callable[..., Worker] | None = None
    propose: Propose | None = None


def relays_for(loop: str, spec: Design, config: SchedulerConfig) -> tuple[tuple[str, ...], str]:
    """The relays that fit a loop as it is configured, and what it wants of one.

    Raises:
        ValueError: the original does not speculate in this way; the sentence gives its reason.
    """
    algorithm = config.speculative_algorithm
    if not algorithm:
        return spec.relays, spec.refuses.get("other relays", "")
    if algorithm in spec.refuses:
        raise ValueError(
            f"loop {loop!r} does not speculate with {algorithm}: {spec.refuses[algorithm]}."
        )
    carriers = tuple(name for name in spec.relays if name in CARRIERS)
    if not carriers:  # the loop's name asks for another one
        raise ValueError(
            f"relay {spec.relays[0]!r} does not fit loop {loop!r}: the loop wants {TAKES}."
        )
    return carriers, TAKES


def speculate(config: SchedulerConfig, device: Device, model: Model) -> Speculation:
    """The parts that do it.

    Raises:
        ValueError: there is no such draft model, or it has another vocabulary.
    """
    if not config.speculative_algorithm:
        return Speculation()
    if config.speculative_algorithm == "NGRAM":
        worker = partial(SpeculativeWorker, num_draft_tokens=config.num_draft_tokens)
        return Speculation(worker, propose_from_history)
    drafter = make_drafter(config, device.name, model)
    return Speculation(
        partial(SpeculativeWorker, num_draft_tokens=config.num_draft_tokens, drafter=drafter)
    )


def fit_config(
    config: SchedulerConfig, spec: Design, relay: Relay, model: Model
) -> SchedulerConfig:
    """``config`` with what the loop, its relay and the model decide.

    A relay that two streams write row by row (the token pool) is no part of a system that frees
    memory at once: there a row has to wait for its steps, unless the user has said otherwise. And a
    loop whose own rules have one budget for all needs no mixed chunks: its steps mix by themselves.
    """
    both = isinstance(relay, UploadRelay) and isinstance(relay, RowRelay)
    waits = "lease" if both and not config.rules else ""
    first = config.run_first or find_rules(config.rules or spec.rules).run_first
    mixes = config.enable_mixed_chunk and (first == "prefill" or bool(config.rules))
    return replace(
        config,
        **{
            "rules": config.rules or spec.rules,
            "free_rule": config.free_rule or waits,
            "enable_mixed_chunk": mixes,
            **spec.settings,
        },
        run_ahead=relay.run_ahead,
        overrun=spec.overrun,
        refuses=spec.refusals(relay.name),
        draft_slack=draft_slack(config, spec, relay),
        context_len=min(config.context_len, model.context_len - draft_slack(config, spec, relay)),
        row_len=row_len_of(config, spec, model),
        vocab_size=model.vocab_size,
        eos_ids=model.eos_ids,
        has_logits=hasattr(model, "logprobs"),
        has_tokenizer=text_codec_of(model.name, model.tokenizer) is not None,
    )


def row_len_of(config: SchedulerConfig, spec: Design, model: Model) -> int:
    """Positions in a row of the page table: the context, and what a loop runs past it."""
    past = max(0, spec.overrun - 1) + config.num_draft_tokens * (spec.in_flight - 1)
    return min(config.context_len + past, model.context_len)


def draft_slack(config: SchedulerConfig, spec: Design, relay: Relay) -> int:
    """Positions that drafts may reach past a request's length: those of the steps in flight.

    Until these are back, nobody knows how many of their drafts count.
    """
    return config.num_draft_tokens * (spec.in_flight - 1) if relay.run_ahead else 0


def check_slack(config: SchedulerConfig, slack: int, model: Model) -> None:
    """Whether there is room for so many drafts behind the requests themselves.

    Raises:
        ValueError: they would fill the model's context, or the KV pool.
    """
    for limit, what in (
        (model.context_len, f"the context of {model.context_len} tokens"),
        (config.num_slots, f"the KV pool of {config.num_slots} slots"),
    ):
        if slack >= limit:
            raise ValueError(
                f"speculative_num_draft_tokens is {config.num_draft_tokens}, but then drafts in "
                f"flight could reach {slack} positions past a request, and leave nothing of {what}."
            )


def listen(codec: TextCodec, strings: Sequence[str], late: bool) -> Callable[[int], bool]:
    """Something that hears a request's tokens, and says when one of the stop strings was said."""
    return StopStrings(codec, strings, late).accept_token


def wire(
    loop: str,
    spec: Design,
    device: Device,
    model: Model,
    config: SchedulerConfig,
    frontend: Frontend,
    cost: CostModel = NO_COST,
    relay: str = "",
) -> Engine:
    """Everything a loop needs, wired. ``config`` gets the loop's run-ahead and the model's limits.

    Raises:
        ValueError: device or relay do not fit it, or the device has no memory for it.
    """
    spec.check_device(loop, device.name)
    cost = cost.of_loop(loop)
    if isinstance(device, SimDevice):
        device.keep_pace(cost.pace)
    row_len = row_len_of(config, spec, model) + config.page_size  # the last page may stick out
    shape = RelayShape(config.max_running_requests, row_len, config.num_draft_tokens)
    relays, takes = relays_for(loop, spec, config)
    rows = config.max_running_requests
    what = f"a KV pool of {config.num_slots} slots and {rows} rows of {row_len} positions"
    with memory_for(what, device.name):
        made = make_relay(loop, relays, relay, device, shape, takes)
        check_slack(config, draft_slack(config, spec, made), model)
        config = fit_config(config, spec, made, model)
        if config.run_ahead and config.in_force.reserves == "prompt":
            raise ValueError(
                f"loop {loop!r} runs ahead, but rules that keep memory for a prompt alone "
                "(reserves is 'prompt', as in nano-vllm) need a loop that waits for each step, "
                "such as 'serial'."
            )
        speculation = speculate(config, device, model)
        worker = (speculation.worker or spec.worker)(
            device,
            model,
            made,
            num_slots=config.num_slots + config.page_size,  # page 0 is padding
            max_running_requests=config.max_running_requests,
            max_len=row_len,
            page_size=config.page_size,
            depth=spec.in_flight,
            cost=cost,
            late_penalties=config.late_penalties,
            cuda_graph_max_bs=config.cuda_graph_max_bs,
        )
        scheduler = spec.scheduler(config, device.recorder)
    scheduler.propose = speculation.propose
    if config.in_force.free_rule == "lease":  # under the others what is freed may still be written
        scheduler.allocator.on_free = worker.touches.free_pages
        scheduler.table.on_free = worker.touches.free_row
    teach(scheduler, model)
    return spec.engine(scheduler, worker, device, frontend, cost)


def teach(scheduler: Scheduler, model: Model) -> None:
    """Give the scheduler what it needs of a model to read texts: grammars, and stop strings."""
    scheduler.compile_grammar = partial(
        compile_grammar,
        vocab_size=model.vocab_size,
        eos_ids=model.eos_ids,
        tokenizer=model.tokenizer,
    )
    codec = text_codec_of(model.name, model.tokenizer)
    if codec is not None:
        scheduler.listen = partial(listen, codec)
