"""The advice: its figures, its verdicts, and that it names options which exist."""

from __future__ import annotations

import re
from array import array
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND
from minisched.engine.advise import FINE, Advice, advise
from minisched.engine.load import Load
from minisched.engine.metrics import Metrics, RequestMetrics
from minisched.scheduler import SchedulerConfig
from tests.support import Workload, play_timed

OPTIONS = {f"--{field.name.replace('_', '-')}" for field in fields(SchedulerConfig)}
SIZES = SchedulerConfig(kv_tokens=100, max_running_requests=100)


def ran(
    usage: int = 70, running: int = 75, waiting: int = 0, queue_ms: int = 0, ttft_ms: int = 500,
    itl_ms: int = 20, retractions: int = 0,
) -> Metrics:  # fmt: skip
    """Metrics of a run with those figures; loads in percent of ``SIZES``."""
    load = Load()
    load.observe(0, usage, running, waiting)
    load.observe(1000, 0, 0, 0)
    request = RequestMetrics(
        "r0", 0, 10,
        scheduled=queue_ms * MILLISECOND,
        first_token=ttft_ms * MILLISECOND,
        itls=array("q", [itl_ms * MILLISECOND]),
        retractions=retractions,
    )  # fmt: skip
    return Metrics(load=load, ended=[request])


def by_name(metrics: Metrics, config: SchedulerConfig = SIZES) -> dict[str, Advice]:
    return {item.name: item for item in advise(metrics, config)}


figures = st.builds(
    ran,
    usage=st.integers(1, 100), running=st.integers(0, 100), waiting=st.integers(0, 3),
    queue_ms=st.integers(0, 2000), ttft_ms=st.integers(0, 3000), itl_ms=st.integers(0, 100),
    retractions=st.integers(0, 2),
)  # fmt: skip
configs = st.builds(
    lambda first, mixed: replace(
        SIZES, run_first=first, enable_mixed_chunk=mixed and first == "prefill"
    ),
    st.sampled_from(["prefill", "decode", "unified"]),
    st.booleans(),
)


@given(metrics=figures, config=configs)
def test_a_verdict_is_where_the_value_lies_and_the_sentence_says_what_to_do(
    metrics: Metrics, config: SchedulerConfig
) -> None:
    found = by_name(metrics, config)
    assert list(found) == ["token usage", "running requests", "TTFT", "ITL"]
    limits = {"token usage": (60, 80), "running requests": (70, 80), "TTFT": (0, 1000),
              "ITL": (0, 50)}  # fmt: skip
    for name, item in found.items():
        least, most = limits[name]
        assert item.target == (f"{least} to {most}" if least else f"at most {most}")
        assert item.unit == ("%" if least else "ms")
        expected = "below" if item.value < least else "above" if item.value > most else "met"
        assert item.verdict == expected
        assert (item.sentence == FINE) == (item.verdict == "met")
        named = set(re.findall(r"--[a-z-]+", item.sentence))
        assert named <= OPTIONS and bool(named) == (item.verdict != "met")
        assert item.sentence.endswith(".") and item.sentence.count(".") == 1, "one sentence"
    assert found["token usage"].value == pytest.approx(metrics.load.used_tokens)
    assert found["running requests"].value == pytest.approx(metrics.load.running)


@pytest.mark.parametrize(
    ("metrics", "name", "wanted"),
    [
        (ran(usage=90, retractions=3), "token usage", "Raise --schedule-conservativeness"),
        (ran(usage=90), "token usage", "Raise --kv-tokens"),
        (ran(usage=30), "token usage", "Lower --kv-tokens"),
        (ran(usage=30, running=95, waiting=9), "token usage", "Raise --max-running-requests"),
        (ran(usage=30, running=20, waiting=9), "token usage", "Lower --schedule-conservativeness"),
        (ran(usage=90, running=90, waiting=9), "running requests", "Raise --kv-tokens"),
        (ran(usage=70, running=90, waiting=9), "running requests", "Raise --max-running-requests"),
        (ran(running=90), "running requests", "Raise --max-running-requests before more come"),
        (ran(usage=70, running=20), "running requests", "Lower --max-running-requests"),
        (ran(usage=70, running=20, waiting=9), "running requests", "Raise --kv-tokens"),
        (ran(usage=20, running=20, waiting=9), "running requests", "Lower --schedule-conserv"),
        (ran(ttft_ms=3000, queue_ms=2500), "TTFT", "Raise --max-running-requests"),
        (ran(ttft_ms=3000, queue_ms=100), "TTFT", "Raise --chunked-prefill-size"),
        (ran(itl_ms=80), "ITL", "Turn on --enable-mixed-chunk"),
    ],
)
def test_which_option_depends_on_the_cause(metrics: Metrics, name: str, wanted: str) -> None:
    assert by_name(metrics)[name].sentence.startswith(wanted)


def test_advice_never_asks_for_what_is_on_already() -> None:
    mixed = SchedulerConfig(enable_mixed_chunk=True)
    assert "--enable-mixed-chunk" not in by_name(ran(itl_ms=80), mixed)["ITL"].sentence
    whole = SchedulerConfig(chunked_prefill_size=-1)
    assert by_name(ran(ttft_ms=3000), whole)["TTFT"].sentence.startswith("Set --chunked-prefill")


def test_a_figure_that_a_run_does_not_have_is_left_out() -> None:
    assert advise(Metrics(), SIZES) == []
    one_token = Request("r0", [1], SamplingParams(max_new_tokens=1))
    run = play_timed(Workload([one_token], [], {}, SchedulerConfig()), "serial", "host", {})
    assert list(by_name(run.engine.metrics)) == ["token usage", "running requests", "TTFT"]


def test_a_run_that_fills_a_small_pool_is_told_so() -> None:
    params = SamplingParams(max_new_tokens=30, ignore_eos=True)
    requests = [Request(f"r{i}", [i] * 9, params) for i in range(12)]
    config = SchedulerConfig(kv_tokens=180, max_running_requests=4, disable_radix_cache=True)
    run = play_timed(Workload(requests, [], {}, config), "overlap", "ring", {})
    found = by_name(run.engine.metrics, config)
    assert found["running requests"].verdict == "above"
    assert found["TTFT"].verdict == found["ITL"].verdict == "met"
