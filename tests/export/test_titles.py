"""The kinds of untrue titles and windows that a reader once found: none may come back."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from minisched.checks.overlap import measure
from minisched.export.by_step import by_step
from minisched.export.layout import shown, steady_views
from minisched.export.pictures.compare import DESIGNS
from minisched.export.poster import settled_in
from minisched.export.runs import TIE, compare, timing
from minisched.export.views import MORE_STEPS, STEPS
from minisched.recipes import run_of, trace_of
from minisched.topics import TOPICS
from minisched.trace import Trace

LOOPS = (*DESIGNS, "vllm_pp4")
OF_LOOPS = [topic for topic, code in TOPICS.items() if code.startswith("loops/")]


def stretched(trace: Trace, factor: float) -> Trace:
    """The same run, with all its slices longer."""
    return replace(trace, slices=tuple(
        replace(item, start=round(item.start * factor), end=round(item.end * factor))
        for item in trace.slices
    ))  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
def test_no_slower_run_is_praised_for_a_device_that_never_idles(loop: str) -> None:
    trace, serial = run_of(loop), run_of("serial")
    title = timing(trace, 4).title
    if measure(trace).makespan_ns > measure(serial).makespan_ns:
        assert "never idles" not in title or ", but" in title, title
    if "but a request is in only one of" in title:
        turns = int(re.findall(r"one of (\d+) steps", title)[0])
        settled = settled_in(trace)
        assert settled and settled.kind.turns == turns > 1


@pytest.mark.parametrize("topic", OF_LOOPS)
@pytest.mark.parametrize("part", ["by_step", "timing"])
def test_a_window_of_a_loop_spans_whole_periods(topic: str, part: str) -> None:
    trace = trace_of(topic)
    settled = settled_in(trace)
    if topic == "pd" or settled is None:  # two schedulers: the transfer, not a period
        return
    count = {**STEPS, **MORE_STEPS.get(topic, {})}[part]
    period = settled.kind.turns * settled.kind.burst
    assert count % period == 0, f"{count} steps, but {period} are a period"
    view = shown(trace, count)
    assert view.last_step - view.first_step + 1 == count


def test_a_title_states_no_figures_of_a_single_measured_run() -> None:
    runs = [trace_of("serial"), trace_of("overlap")]
    measured = [replace(run, clock="wall") for run in runs]
    assert "instead of" in compare(runs).title
    for title in (compare(measured).title, by_step(measured).title):
        assert not re.search(r"\d ms|×|times as", title), title


@pytest.mark.parametrize(("factor", "is_tie"), [(1.005, True), (1.05, False)])
def test_a_difference_below_1_percent_is_a_tie(factor: float, is_tie: bool) -> None:
    runs = [trace_of("serial"), stretched(trace_of("serial"), factor)]
    base, last = steady_views(runs, 3)
    assert (last.duration < TIE * base.duration) == is_tie
    assert ("instead of" not in compare(runs).title) == is_tie
