"""What the stepper says of its runs in words: header, table, units, legends."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import measure
from minisched.export.html import to_html
from minisched.export.html_data import page_data
from minisched.export.html_panel_legend import LOOKS, panel_legend
from minisched.export.html_runs import run_names, what_it_is
from minisched.export.html_state import units
from minisched.export.state import panels
from minisched.trace import Trace
from tests.stepper_page import golden, traces


def texts(html: str, tag: str) -> list[str]:
    """What stands in the elements of a kind."""
    found = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", html, re.S)
    return [unescape(re.sub("<.*?>", "", text)) for text in found]


def rows(html: str) -> list[dict[str, str]]:
    """The table of metrics, by column."""
    table = html[html.index('<div class="scroll">') :].split("</div>")[0]
    heads = texts(table, "th")
    cells = texts(table, "td")
    return [
        dict(zip(heads, cells[at : at + len(heads)], strict=True))
        for at in range(0, len(cells), len(heads))
    ]


@given(st.lists(st.sampled_from(["serial", "overlap", "pd"]), min_size=1, max_size=6))
def test_names_are_the_loops_and_never_the_same_twice(loops: list[str]) -> None:
    runs = [Trace(loop, "sim", "hash", "virtual", (), (), (), ()) for loop in loops]
    names = run_names(runs)
    assert len(set(names)) == len(loops)
    for name, loop in zip(names, loops, strict=True):
        assert name == loop if loops.count(loop) == 1 else re.fullmatch(rf"{loop} \d", name)


def test_runs_that_differ_say_what_each_ran_on() -> None:
    run = golden("overlap")
    html = to_html([run, replace(run, clock="wall", device="thread")])
    assert texts(html, "h1") == ["overlap 1 against overlap 2"]
    one, other = texts(html, "h2")
    assert "hash model on sim, simulated time" in one
    assert "hash model on thread, measured time" in other
    lead = texts(html, "p")[0]
    assert "on sim" not in lead and "simulated and measured times are not to be compared" in lead
    alike = to_html([run, golden("serial")])
    assert "hash model on sim, simulated time" in texts(alike, "p")[0]
    assert all("simulated" not in text for text in texts(alike, "h2"))
    assert what_it_is([run]) == "One run: hash model on sim, simulated time."


def fewer(run: Trace) -> Trace:
    """The same run, in which one more request ended."""
    mark = next(mark for mark in run.marks if mark.name == "finish")
    return replace(run, marks=(*run.marks, replace(mark, attrs={**mark.attrs, "rid": "z"})))


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (lambda run: replace(run, clock="wall"), "its time is measured, and the other's simulated"),
        (fewer, "they had different requests"),
    ],
)
def test_a_speedup_is_only_told_of_the_same_work_on_the_same_clock(
    second: Callable[[Trace], Trace], why: str
) -> None:
    serial, overlap = golden("serial"), golden("overlap")
    html = to_html([serial, second(overlap)])
    assert [row["speed-up"] for row in rows(html)] == ["–", "–"]
    assert f"No speed-up of overlap over serial: {why}." in texts(html, "p")
    assert "Ideal speed-up" not in html
    both = to_html([serial, overlap, second(overlap)])
    told = [row["speed-up"] for row in rows(both)]
    assert told == ["1.00×", f"{serial.end / overlap.end:.2f}×", "–"]
    assert "No speed-up of overlap 2 over serial: " in both
    assert "Ideal speed-up over serial" in both and "No speed-up of overlap 1" not in both


def test_a_column_that_nobody_fills_is_left_out() -> None:
    runs = [golden("serial"), golden("overlap")]
    assert "tokens" not in rows(to_html(runs))[0]
    known = to_html(runs, [measure(runs[0]), measure(runs[1], tokens=7)])
    assert [row["tokens"] for row in rows(known)] == ["–", "7"]
    alone = to_html(runs[:1])
    assert "speed-up" not in rows(alone)[0] and "Ideal" not in alone


def test_counters_have_units() -> None:
    told = units(golden("overlap"))
    assert told["kv used"] == ["kv used", "tokens"] and told["running"][1] == "requests"
    assert told["future slots"] == ["next future slot", ""]
    assert units(golden("pd"))["decode kv used"] == ["decode kv used", "tokens"]


@settings(max_examples=40, deadline=None)
@given(traces())
def test_a_legend_has_every_look_that_occurs(trace: Trace) -> None:
    check_legends(trace)


@pytest.mark.parametrize("topic", ["pd", "retraction", "radix_cache"])
def test_so_has_that_of_a_golden_run(topic: str) -> None:
    check_legends(golden(topic))


def check_legends(trace: Trace) -> None:
    """Each panel's legend has what the panel shows."""
    for panel in panels(trace):
        kinds = {stay.kind for stay in panel.stays}
        if panel.name == "queue":
            assert kinds <= {"queued"}
            continue
        assert kinds <= LOOKS[panel.name].keys()
        drawn = re.findall(r'<i class="(\w+)"', panel_legend(panel))
        if len(kinds) > 1:
            assert set(drawn) - {"nobody"} == kinds


def test_the_page_carries_the_names_it_shows() -> None:
    def names(runs: Sequence[Trace]) -> list[str]:
        return re.findall(r'"loop":"(.*?)"', page_data(runs, [panels(run) for run in runs]))

    run = golden("serial")
    assert names([run, run]) == ["serial 1", "serial 2"]
    assert names([run]) == ["serial"]
