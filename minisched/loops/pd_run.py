"""Makes the two sides of PD separation, and runs them as one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, count, groupby
from typing import Any, cast

from ..core import Request
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..devices.sim import SimDevice
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..engine.metrics import Metrics
from ..models.base import Model
from ..scheduler import SchedulerConfig
from ..scheduler.prealloc import DecodeScheduler
from ..scheduler.transfer import PrefillScheduler
from ..trace.side import SideRecorder
from . import refused
from .pd import Pair
from .pd_decode import DecodeEngine, pd_decode
from .pd_kv_transfer import KVModel, KVSender, KVTransfer, Link
from .pd_prefill import PrefillEngine, pd_prefill
from .spec import LoopSpec, Turns
from .wiring import wire

RELAYS = ("pool", "ring", "prev_sampled", "fill_device")
TAKES = (
    "a relay that runs ahead on a buffer of sampled tokens alone: a request comes to the decode "
    "side with its KV, and nothing copies its prompt there"
)
PREFILL = LoopSpec(
    pd_prefill,
    depth=2,
    relays=RELAYS,
    takes=TAKES,
    scheduler=PrefillScheduler,
    engine=PrefillEngine,
    refuses=refused.PD,
)
DECODE = LoopSpec(
    pd_decode, depth=2, relays=RELAYS, takes=TAKES, overrun=1,
    scheduler=DecodeScheduler, engine=DecodeEngine, refuses=refused.PD,
    settings={"disable_radix_cache": True},  # as in the original, unless it is told otherwise
)  # fmt: skip


def make_pair(
    device: Device,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    frontend: Frontend,
    cost: CostModel = NO_COST,
    relay: str = "",
    prealloc_first: bool = True,
    **link: int,
) -> Pair:
    """Two engines on two devices, wired; ``device`` is the decode side's.

    Each side has all the memory that ``config`` says.

    Raises:
        ValueError: the model's KV can't be copied, or an option is outside its limits.
    """
    if not hasattr(model, "read_kv"):
        raise ValueError(
            f"loop 'pd' copies KV, but model {model.name!r} has none that can be read."
        )
    there = cast(Device, SimDevice(SideRecorder(device.recorder, "prefill")))
    device.recorder = SideRecorder(device.recorder, "decode")
    device.recorder.now = device.now
    decode = cast(DecodeEngine, wire("pd", DECODE, device, model, config, frontend, cost, relay))
    taken = accepted(requests, decode.scheduler.config)
    give_rooms(requests, taken)
    sent = [for_prefill(req) for req in taken]
    theirs = wire("pd", PREFILL, there, copy(model), config, Frontend(sent), cost, relay)
    prefill = cast(PrefillEngine, theirs)
    connect(prefill, decode, Link(**link))
    prefill.senders = {req.rid: KVSender() for req in sent}
    prefill.scheduler.prealloc_first = decode.scheduler.prealloc_first = prealloc_first
    return Pair(prefill, decode)


def connect(prefill: PrefillEngine, decode: DecodeEngine, link: Link) -> None:
    """Give each side the other's mailbox, and the prefill side the way to the other's memory."""
    prefill.other, decode.other = decode.mailbox, prefill.mailbox
    prefill.latency = decode.latency = link.latency
    models = [cast(KVModel, side.worker.model) for side in (prefill, decode)]
    prefill.transfer = KVTransfer(
        link, prefill.sim, models[0], decode.sim, models[1], decode.mailbox
    )


def accepted(requests: Sequence[Request], config: SchedulerConfig) -> list[Request]:
    """Those that the decode side will take: the load balancer sends nobody else to the other.

    One that comes twice counts once.
    """
    each = {id(req): req for req in requests}.values()
    return [req for req in each if not config.refusal(req)]


def give_rooms(requests: Sequence[Request], taken: Sequence[Request]) -> None:
    """Each that is taken a room of its own: its id, which has a number behind it if it is back.

    Nobody else has one, whatever room a client, or a run before this one, has given it.
    """
    for req in requests:
        req.bootstrap_room = ""
    rids = {req.rid for req in taken}
    for rid, same in groupby(sorted(taken, key=lambda req: req.rid), key=lambda req: req.rid):
        numbered = (f"{rid} ({number})" for number in count(2))
        free = (room for room in numbered if room not in rids)
        for req, room in zip(same, chain([rid], free), strict=False):
            req.bootstrap_room = room


def for_prefill(req: Request) -> Request:
    """The same request as the prefill side sees it: it ends with its first token."""
    params, room = replace(req.params, max_new_tokens=1), req.bootstrap_room
    prompt = Request(room, req.prompt, params, req.arrival_time, priority=req.priority)
    prompt.sampling_key = req.sampling_key  # its own, also where its id has come back
    return prompt


def whole_run(
    spec: LoopSpec,
    device: Device,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    frontend: Frontend,
    cost: CostModel = NO_COST,
    relay: str = "",
    **options: Any,
) -> Metrics:
    """Run requests through both sides until the last one has ended (``LoopSpec.whole_run``)."""
    pair = make_pair(
        device, model, requests, config, frontend, cost, relay or spec.relays[0], **options
    )
    while not pair.is_done:
        pair.turn()
    pair.self_check()
    return joined(pair)


def joined(pair: Pair) -> Metrics:
    """What clients saw, and what the prefill side knows of when their prompts were computed."""
    metrics, prompts = pair.decode.metrics, pair.prefill.metrics
    by_room = {item.rid: item for item in prompts.ended}
    for item in metrics.ended:
        if item.room in by_room:
            item.scheduled = by_room[item.room].scheduled
            item.cached_tokens = by_room[item.room].cached_tokens
    metrics.admitted_tokens, metrics.cached_tokens = prompts.admitted_tokens, prompts.cached_tokens
    return metrics


def no_turns(engine: Engine, **options: Any) -> Turns:
    """What ``pd`` has in the place of a generator.

    Raises:
        ValueError: always; one engine is not enough.
    """
    raise ValueError("loop 'pd' is two engines, so it runs only as a whole: with compare or run.")
