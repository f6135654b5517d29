"""The law *crash* for the set-up of an engine: its settings fit, and it owns its model.

An engine takes settings from its loop, its relay and its model. They are computed here a second
time, with a model that has a shorter context than the settings. Loops, depths and models that
do not fit are refused. So is a device without memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..core import Request
from ..devices.sim import SimDevice, SimMemory
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..engine.owner import release
from ..loops.design import LOOPS, Design, find_loop
from ..loops.run import make_engine
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..scheduler.config import ALGORITHMS
from ..trace.recorder import NullRecorder
from .case import Case
from .refusals import is_accepted

CONTEXT = 24  # tokens of the model's context, fewer than a drawn case has in its settings
VOCAB, EOS = 7, frozenset({3})  # of the model; the settings have others by default


def find_unfit(case: Case) -> Iterator[str]:
    """Yield what does not fit, and is not refused, when the engine of a case is made.

    A loop with two engines is not judged. Neither is one with a scheduler of its own.
    """
    spec = find_loop(case.loop, case.options)
    if spec.whole_run is not None or spec.source is not None:
        return
    model = HashModel(VOCAB, CONTEXT, EOS)
    config = case.workload.config
    drafts = config.num_draft_tokens * (spec.in_flight - 1)
    try:
        engine = engine_for(case, config, model)
    except ValueError as error:
        if drafts < min(CONTEXT, config.num_slots):
            yield f"{case.loop} is refused, but it fits: {error}"
        return
    ahead = engine.worker.relay.run_ahead
    slack = drafts if ahead else 0
    if slack >= min(CONTEXT, config.num_slots):
        yield f"drafts in flight reach {slack} positions, past {CONTEXT}, and are not refused"
    expected: dict[str, Any] = {
        "context_len": min(config.context_len, CONTEXT - slack),
        "row_len": min(config.context_len + max(0, spec.overrun - 1) + drafts, CONTEXT),
        "vocab_size": VOCAB, "eos_ids": EOS, "draft_slack": slack, "run_ahead": ahead,
        "overrun": spec.overrun, "has_logits": True, "has_tokenizer": True,
        "rules": config.rules or spec.rules, **spec.settings,
    }  # fmt: skip
    for name, value in expected.items():
        if (found := getattr(engine.scheduler.config, name)) != value:
            yield f"{case.loop} has {name} {found!r}, but {value!r} follows from its set-up"
    texts = [f"{name}={str(value).lower()}" for name, value in case.options.items()]
    is_named = {*case.options} <= {*inspect.signature(spec.run).parameters}  # a lesson's is not
    if is_named and (found := find_loop(":".join([case.loop, *texts])).options) != spec.options:
        yield f"{case.loop} with {texts} gets the options {found}"
    if slack:
        yield from find_full_of_drafts(case)
    yield from find_not_refused(case, spec, engine)
    yield from find_no_memory(case, spec)
    if case.loop == "serial":  # it depends on no loop, and collects garbage
        yield from find_bad_owner(case, engine, model)


def find_full_of_drafts(case: Case) -> Iterator[str]:
    """Yield a sentence if drafts in flight may fill the context or the pool to the last place."""
    config = case.workload.config
    slots = config.num_slots
    for most, context, what in (
        (CONTEXT, CONTEXT, f"the context of {CONTEXT} tokens"),
        (slots, slots + 1, f"the pool of {slots} slots"),
    ):
        full = replace(config, speculative_num_draft_tokens=most)
        if is_accepted(engine_for, case, full, HashModel(VOCAB, context, EOS)):
            yield f"{most} drafts of a step in flight leave nothing of {what}, and are not refused"


class PoorDevice(SimDevice):
    """A device without memory for arrays with names that begin with ``lacks``."""

    def __init__(self, lacks: str) -> None:
        super().__init__(NullRecorder())
        self.lacks = lacks

    def memory(self, name: str, size: int) -> SimMemory:
        """Return device memory.

        Raises:
            MemoryError: there is none for this name.
        """
        if name.startswith(self.lacks):
            raise MemoryError(name)
        return super().memory(name, size)


def find_no_memory(case: Case, spec: Design) -> Iterator[str]:
    """Yield a sentence if a device without memory is not refused, or with other words."""
    config = case.workload.config
    for lacks, what in (
        ("", f"a KV pool of {config.num_slots} slots and {config.max_running_requests} rows"),
        ("output", f"the outputs of {spec.in_flight} steps in flight"),
    ):
        try:
            engine_for(case, config, HashModel(), PoorDevice(lacks))
            error = ""
        except (ValueError, MemoryError) as raised:
            error = str(raised)
        if not error.startswith(f"device 'sim' has no memory for {what}"):
            yield f"a device has no memory for {what}, but the error of {case.loop} is {error!r}"


def engine_for(
    case: Case, config: SchedulerConfig, model: HashModel, device: SimDevice | None = None
) -> Engine:
    """Return an engine of the case's design, on a device of its own without a recorder."""
    parts = device or SimDevice(NullRecorder()), model, config, Frontend()
    return make_engine(case.loop, *parts, case.cost, case.relay, **case.options)


def find_not_refused(case: Case, spec: Design, engine: Engine) -> Iterator[str]:
    """Yield the depths and settings that a loop can't take, and does not refuse."""
    depth = engine.worker.depth + 1
    deeper = {**case.options, "depth": depth}
    has_depth = "depth" in inspect.signature(spec.run).parameters
    if has_depth and is_accepted(LOOPS[case.loop].start, engine, **deeper):
        yield f"{case.loop} starts with {depth} steps in flight, one more than its worker has"
    wrong: list[dict[str, Any]] = [
        {"speculative_algorithm": name} for name in ALGORITHMS if name in spec.refuses
    ]
    if "beam search" in spec.refusals(engine.worker.relay.name):
        wrong.append({"beam_width": 2})
    for change in wrong:
        config = SchedulerConfig(kv_tokens=64, max_running_requests=2, **change)
        try:
            engine_for(case, config, HashModel())
        except ValueError as error:
            if repr(case.loop) not in str(error):
                yield f"{change} is refused, but {case.loop} is not named: {error}"
            continue
        yield f"{case.loop} does not refuse {change}"


def find_bad_owner(case: Case, engine: Engine, model: HashModel) -> Iterator[str]:
    """Yield a violation if two engines compute with one model.

    An idle engine loses its model to the next one. A busy one keeps it until it is released.
    """
    config = case.workload.config
    other = engine_for(case, config, model)
    try:
        engine.worker.model.allocate(engine.device, 1, 1)
        yield "an engine still computes with a model that the next engine has taken"
    except RuntimeError:
        pass
    other.frontend.push(Request("r0", (1,)))
    if is_accepted(engine_for, case, config, model):
        yield "a model is given to a second engine while the first one has a request"
    release(model, engine.device)
    if is_accepted(engine_for, case, config, model):
        yield "the end of an engine releases the model of another one"
    release(model, other.device)
    if not is_accepted(engine_for, case, config, model):
        yield "a released model is refused"
