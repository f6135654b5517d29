"""The stepper in a real browser: what it shows at a moment is what the trace says, all over.

Every page here is watched (``browser.py``): an error in the console or a request that leaves the
page fails the test.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser

from minisched.checks.overlap.overlap import forwards
from minisched.trace import Mark, Trace
from tests.browser import browser, folder
from tests.stepper_page import (
    check,
    golden,
    press,
    shown,
    stepper,
    time_of,
    traces,
)
from tests.stepper_truth import events

__all__ = ["browser", "folder"]


# A page takes a second, so what fails is not made smaller.
@settings(max_examples=5, deadline=None, phases=(Phase.reuse, Phase.generate))
@given(traces(), st.lists(st.integers(0, 10**9), min_size=3, max_size=3))
def test_at_any_moment_it_shows_the_state_of_any_run(
    browser: Browser, folder: Path, trace: Trace, places: list[int]
) -> None:
    with stepper(browser, folder, [trace]) as page:
        check(page, trace)
        for place in places:
            page.evaluate("(time) => goTo(time)", place % (trace.end + 1))
            assert time_of(page) == place % (trace.end + 1)
            check(page, trace)
            press(page, *["ArrowRight"] * (1 + place % 3))
            check(page, trace)
            press(page, "Shift+ArrowLeft" if place % 2 else "ArrowLeft")
            check(page, trace)


@pytest.mark.parametrize("topic", ["radix_cache", "retraction", "pd"])
def test_it_shows_the_state_of_a_golden_run(browser: Browser, folder: Path, topic: str) -> None:
    trace = golden(topic)
    with stepper(browser, folder, [trace]) as page:
        for share in (0.1, 0.35, 0.6, 0.85):
            page.evaluate("(time) => goTo(time)", share * trace.end)
            check(page, trace)


def test_keys_and_buttons_go_through_every_event_and_step(browser: Browser, folder: Path) -> None:
    run = golden("future_map")
    flag = Mark("flush cache", 17, {"done": True})  # a moment of its own
    trace = replace(run, marks=tuple(sorted([*run.marks, flag], key=lambda mark: mark.time)))
    times, starts = events(trace), sorted({item.start for item in forwards(trace)})
    with stepper(browser, folder, [trace]) as page:
        assert press(page, "Home") == 0
        assert [press(page, "ArrowRight") for _ in times[1:20]] == times[1:20]
        assert [press(page, "ArrowLeft") for _ in times[1:20]] == times[18::-1]
        assert [press(page, "Shift+ArrowRight") for _ in starts] == starts
        assert press(page, "Shift+ArrowLeft") == starts[-2]
        assert press(page, "End") == trace.end == press(page, "ArrowRight")
        for name, key in (("back", "ArrowLeft"), ("step-back", "Shift+ArrowLeft")):
            before = press(page, "End")
            page.click(f'[data-do="{name}"]')
            assert time_of(page) < before and (clicked := time_of(page))
            press(page, "End")
            assert press(page, key) == clicked
        check(page, trace)


def test_it_begins_in_a_settled_step(browser: Browser, folder: Path) -> None:
    serial, overlap = golden("serial"), golden("overlap")
    with stepper(browser, folder, [serial, overlap]) as page:
        time = time_of(page)
        running = [item for item in overlap.slices if item.start <= time < item.end]
        assert {"process", "forward"} <= {item.name for item in running}
        assert shown(page, 1)["set"] and shown(page, 1)["pages"] and shown(page, 1)["tree"]
        assert "ring" in shown(page, 1) and "ring" not in shown(page, 0)
        check(page, serial, 0)
        check(page, overlap, 1)


def test_a_run_that_has_ended_keeps_its_last_moment(browser: Browser, folder: Path) -> None:
    serial, overlap = golden("serial"), golden("overlap")
    assert overlap.end < serial.end
    with stepper(browser, folder, [serial, overlap]) as page:
        for time in (overlap.end - 1, overlap.end, overlap.end + 1, serial.end - 1, serial.end):
            page.evaluate("(time) => goTo(time)", time)
            check(page, serial, 0)
            check(page, overlap, 1)
            ended = [
                text.startswith("has ended") for text in page.locator(".doing").all_inner_texts()
            ]
            assert ended == [time >= serial.end, time >= overlap.end]
        for number in (0, 1):
            state = shown(page, number)
            assert state["pages"] and state["tree"], "the prefix cache outlives the requests"
        assert press(page, "End") == overlap.end
        check(page, overlap, 1)
        tip = page.evaluate("aboutStay(runs[1].panels.get('tree').stays.at(-1))")
        assert tip[-1].endswith("up to the end of the run")


def test_playing_advances_and_stops_at_the_end(browser: Browser, folder: Path) -> None:
    trace = golden("future_map")
    with stepper(browser, folder, [trace]) as page:
        page.select_option("#speed", "0.25")  # a minute and more: nobody is late for the end
        page.locator("#speed").blur()
        before = press(page, "Home", " ")
        page.wait_for_function("(before) => page.time > before", arg=before)
        assert before < press(page, " ") < trace.end
        paused = time_of(page)
        page.wait_for_timeout(100)
        assert time_of(page) == paused
        check(page, trace)
        page.select_option("#speed", "16")
        page.evaluate("goTo(runs[0].end - 3e6)")
        page.click('[data-do="play"]')
        page.wait_for_function("!playing")
        assert time_of(page) == trace.end
        assert page.inner_text('[data-do="play"]') == "▶ play"


def test_who_wants_little_motion_gets_events_only(browser: Browser, folder: Path) -> None:
    trace = golden("future_map")
    with stepper(browser, folder, [trace], reduced_motion="reduce") as page:
        seen = page.evaluate("""async () => {
            const seen = [];
            goTo(0);
            togglePlay();
            while (page.time < 25e6) {
              seen.push(page.time);
              await new Promise(requestAnimationFrame);
            }
            pause();
            return seen;
        }""")
        assert len(set(seen)) > 3 and set(seen) <= set(events(trace))


def test_a_link_leads_to_a_moment(browser: Browser, folder: Path) -> None:
    both = [golden("serial"), golden("overlap")]
    state = "[page.time, page.view.start, page.view.end, page.run, [...page.chosen].join()]"
    with stepper(browser, folder, both, "#t=12.5&view=0-60&run=0&rid=a,c") as page:
        assert page.evaluate(state) == [12_500_000, 0, 60_000_000, 0, "a,c"]
        check(page, both[0], 0)
        press(page, "ArrowRight", "ArrowRight")
        now = page.evaluate(state)
        page.wait_for_function("location.hash === addressOf(page)")
        link = page.evaluate("location.hash")
    with stepper(browser, folder, both, link) as page:
        assert page.evaluate(state) == now
        page.evaluate("location.hash = '#t=99.25'")
        page.wait_for_function("page.time === 99.25e6")
        page.evaluate("location.hash = '#20-60'")  # the first form: a view alone
        page.wait_for_function("page.view.start === 20e6 && page.view.end === 60e6")
        assert page.evaluate("isSeen(page.time)")
    with stepper(browser, folder, both, "#t=abc&view=1-0") as page:
        before = page.evaluate("[data.now, page.view]")
        page.evaluate("show(...few)")
        assert [time_of(page), page.evaluate("page.view")] == before
        for wrong in ("#t=&view=5-5", "#view=1.2.3-4", "#t=Infinity&view=a-b", "#7-7", "#run=1.5"):
            assert page.evaluate("(hash) => fromAddress(hash)", wrong) == {}
    with stepper(browser, folder, both, "#t=soon&view=9&run=7&rid=%,nobody&%%") as page:
        assert page.evaluate("[page.run, page.chosen.size]") == [1, 0]
        check(page, both[1], 1)
