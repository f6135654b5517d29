"""A run's results: no request is lost, whatever the ids are."""

from __future__ import annotations

import pytest

import minisched as ms
from minisched.core import Request, SamplingParams
from minisched.core.text import distinct
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["a", "a", "a (2)"], ["a", "a (3)", "a (2)"]),
        (["a (2)", "a", "a"], ["a (2)", "a", "a (3)"]),
        (["a", "a", "a", "b"], ["a", "a (2)", "a (3)", "b"]),
        (["a", "a", "a (2)", "a (2)"], ["a", "a (3)", "a (2)", "a (2) (2)"]),
        ([], []),
    ],
)
def test_results_have_one_entry_for_each_request(names: list[str], keys: list[str]) -> None:
    assert list(distinct(names)) == keys
    few = SamplingParams(max_new_tokens=3)
    reqs = [Request(name, [1 + at], few, arrival_time=at * 10**9) for at, name in enumerate(names)]
    run = run_loop("serial", SimDevice(), HashModel(), reqs)
    assert list(run.outputs) == keys and all(map(len, run.outputs.values()))


def test_every_error_keeps_its_entry() -> None:
    bad = [Request(name, [], arrival_time=at) for at, name in enumerate(["a", "a", "a (2)"])]
    run = run_loop("serial", SimDevice(), HashModel(), bad)
    assert list(run.errors) == ["a", "a (3)", "a (2)"]


def test_a_trace_prints_as_one_short_line() -> None:
    trace = ms.run(ms.requests(2), "overlap").trace
    said = repr(trace)
    assert said.startswith("<trace of overlap on sim with hash: ") and said.endswith(" ms>")
    assert len(said) < 80 and str(len(trace.slices)) in said
