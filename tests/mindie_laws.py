"""What the tests of MindIE's loops share: their books watched at every turn, and wasted rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from minisched.core import NoBatch, Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops import mindie_placeholder_ledger, mindie_plugin_context
from minisched.loops.mindie_placeholder_ledger import PlaceholderLedger
from minisched.loops.mindie_plugin_context import PluginContext
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import VOCAB, Workload, play

ROOMY = SchedulerConfig(kv_tokens=400, chunked_prefill_size=-1, context_len=64)


class Books:
    """The books that a loop keeps, caught as it makes them."""

    ledger: PlaceholderLedger | None = None
    context: PluginContext | None = None


@contextmanager
def watched(loop: str, at_turn: Callable[[Engine, Books], None]) -> Iterator[Books]:
    """While this lasts, ``at_turn`` sees engine and books after every turn of the loop."""
    books, spec = Books(), LOOPS[loop]

    def keep(kind: type, name: str) -> Callable[..., Any]:
        def init(self: Any, *args: Any) -> None:
            made(self, *args)
            setattr(books, name, self)

        made = kind.__init__
        return init

    def run(engine: Engine, **options: Any) -> Iterator[ScheduleBatch | NoBatch]:
        for batch in spec.run(engine, **options):
            at_turn(engine, books)
            yield batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LOOPS, loop, replace(spec, run=run))
        for module, kind, name in (
            (mindie_placeholder_ledger, PlaceholderLedger, "ledger"),
            (mindie_plugin_context, PluginContext, "context"),
        ):
            assert getattr(module, kind.__name__) is kind
            patch.setattr(kind, "__init__", keep(kind, name))
        yield books


def check_ledger(engine: Engine, books: Books) -> None:
    """At the end of a turn the ledger is what the core derives, for everybody who has a lease."""
    ledger = books.ledger
    assert ledger is not None
    for req in engine.scheduler.live.values():
        data = ledger.sequences.get(req.rid)
        if data is None:
            assert req.num_output_placeholders == 0 and not req.output_ids
            continue
        count = data.trailing_placeholder_count
        assert count == req.num_output_placeholders
        assert data.output_token_ids == req.output_ids + [-1] * count
        if req.lease is data.lease:
            assert data.num_computed_tokens == req.computed_len
    assert ledger.sequences.keys() <= engine.scheduler.live.keys()


def lists_of(trace: Trace) -> list[tuple[str, str]]:
    """What the ledger's marks say, one after the other."""
    marks = [mark for mark in trace.marks if mark.name == "ledger"]
    return [(str(mark.attrs["after"]), str(mark.attrs["lists"])) for mark in marks]


def wasted_rows(workload: Workload, loop: str, relay: str, options: dict[str, Any]) -> Counter[str]:
    """Wasted rows by request."""
    device = SimDevice()
    play(workload, loop, relay, options, device, HashModel(VOCAB, eos_ids=workload.eos_ids))
    marks = device.recorder.trace("", "", "", "virtual").marks
    return Counter(str(mark.attrs["rid"]) for mark in marks if mark.name == "wasted row")


def together(workload: Workload) -> Workload:
    """The same requests, all there at first, in a pool where all of them start in one step."""
    config = replace(ROOMY, max_running_requests=len(workload.requests))
    return replace(workload, config=config, arrivals=[0] * len(workload.requests))


def settled_trace(
    loop: str, relay: str, cost: CostModel, regex: str | None = None, **options: Any
) -> Trace:
    """One request's run of 64 decode steps."""
    params = SamplingParams(max_new_tokens=64, ignore_eos=True, regex=regex)
    request = Request("r", [1, 2, 3], params)
    run = run_loop(loop, SimDevice(), HashModel(), [request], cost=cost, relay=relay, **options)
    assert len(run.outputs["r"]) == 64
    return run.trace
