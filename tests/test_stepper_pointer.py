"""The stepper under the pointer: dragged, pointed at, clicked; a slice leads to a whole life."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from minisched.checks.overlap.overlap import forwards
from minisched.export.layout import boxes_of
from minisched.trace import Slice, Trace
from tests.browser import browser, folder
from tests.stepper_page import (
    check,
    golden,
    middle_of,
    per_pixel,
    point_at,
    press,
    settle,
    shown,
    stepper,
    time_of,
    x_of,
)

__all__ = ["browser", "folder"]


def test_the_cursor_is_dragged(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    with stepper(browser, folder, [trace]) as page:
        time, (_, y) = time_of(page), middle_of(page, "canvas.run")
        page.mouse.move(x_of(page, time) + 2, y)
        page.mouse.down()
        page.mouse.move(x_of(page, time) + 60, y)
        page.mouse.move(x_of(page, time) + 121, y)
        page.mouse.up()
        moved = time_of(page)
        view = page.evaluate("[page.view.start, page.view.end]")
        assert abs(moved - time - 121 * per_pixel(page)) < 3 * per_pixel(page)
        check(page, trace)
        page.mouse.move(x_of(page, moved) + 200, y)  # elsewhere a drag moves the picture
        page.mouse.down()
        page.mouse.move(x_of(page, moved) + 150, y)
        page.mouse.up()
        settle(page)
        assert time_of(page) == moved and page.evaluate("page.view.start") > view[0]
        x, y = middle_of(page, "#position")
        page.mouse.click(x, y)
        assert abs(time_of(page) - trace.end / 2) < trace.end / 500
        page.mouse.down()
        page.mouse.move(x + 100, y)
        page.mouse.up()
        width = page.evaluate("position.clientWidth")
        assert abs(time_of(page) - trace.end * (0.5 + 100 / width)) < trace.end / 500
        assert page.evaluate("isSeen(page.time)")
        check(page, trace)
        page.mouse.click(*middle_of(page, "canvas.axis"))
        assert abs(x_of(page, time_of(page)) - middle_of(page, "canvas.axis")[0]) < 1.1


def test_pointing_at_a_slice_shows_its_arrows(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    with stepper(browser, folder, [trace]) as page:
        press(page, "0")  # so small that no arrow is shown unless it is pointed at
        page.evaluate("""() => {
            const draw = arrow;
            window.drawn = [];
            arrow = (pen, edge, ...more) => {
              window.drawn.push([edge.src.id, edge.dst.id]);
              draw(pen, edge, ...more);
            };
        }""")
        item = forwards(trace)[20]
        settle(page)
        assert page.evaluate("drawn") == []
        page.mouse.move(*point_at(page, trace, item.id))
        settle(page)
        wanted = {(e.src, e.dst) for e in trace.edges if item.id in (e.src, e.dst)}
        drawn = {(src, dst) for src, dst in page.evaluate("drawn")}  # in however many frames
        assert drawn == wanted != set()
        assert f"forward, step {item.step}" in page.inner_text("#tip")
        page.mouse.move(5, 5)
        expect(page.locator("#tip")).to_be_hidden()


def test_a_slice_leads_to_its_requests_whole_life(browser: Browser, folder: Path) -> None:
    trace = golden("retraction")
    item = next(s for s in forwards(trace) if s.rids == ("c",) and s.duration)
    with stepper(browser, folder, [trace], f"#t={item.start / 1e6}") as page:
        page.mouse.click(*point_at(page, trace, item.id))
        settle(page)
        assert page.evaluate("[...page.chosen]") == ["c"]
        life = page.locator("#life a").evaluate_all(
            "(all) => all.map((a) => [+a.dataset.time, a.text])"
        )
        assert life == sorted(life, key=lambda moment: moment[0])
        steps = [[s.start, str(s.step)] for s in forwards(trace) if "c" in s.rids]
        assert [moment for moment in life if moment[1].isdecimal()] == steps
        told = " ".join(text for _, text in life)
        for word in ("arrives", "admitted", "retracted (memory)", "finishes"):
            assert word in told
        marks = [m for m in trace.marks if m.name == "retraction" and m.attrs["rid"] == "c"]
        assert told.count("retracted") == len(marks) > 0
        chosen = {place for place, *_ in shown(page)["set"] if place == "c"}
        assert {e.get_attribute("data-place") for e in page.query_selector_all(
            '[data-panel="set"] .chosen')} == chosen  # fmt: skip
        page.locator("#life a", has_text="finishes").click()
        finish = next(time for time, text in life if "finishes" in text)
        expect(page.locator("#cursor")).to_have_attribute("data-time", str(finish))
        check(page, trace)
        press(page, "Escape")
        expect(page.locator("#life")).to_be_hidden()


def test_a_selection_dims_the_others(browser: Browser, folder: Path) -> None:
    trace = golden("retraction")
    with stepper(browser, folder, [trace]) as page:
        alone = [s for s in forwards(trace) if len(s.rids) == 1]
        mine, other = alone[0], next(s for s in alone if s.rids != alone[0].rids)
        page.evaluate("show(0, longest)")

        def colour(item: Slice) -> list[int]:
            settle(page)
            x, y = point_at(page, trace, item.id)
            found: list[int] = page.evaluate(
                """([x, y]) => {
                  const c = document.querySelector("canvas.run"), box = c.getBoundingClientRect();
                  const pen = c.getContext("2d");
                  return [...pen.getImageData(x - box.x, y - box.y - 8, 1, 1).data];
                }""",
                [x, y],
            )
            return found

        before = colour(mine), colour(other)
        page.evaluate("(rid) => choose([rid])", mine.rids[0])
        assert colour(mine) == before[0] and colour(other) != before[1]
        page.evaluate("choose([])")
        assert (colour(mine), colour(other)) == before


def test_a_schedule_belongs_to_the_step_it_led_to(browser: Browser, folder: Path) -> None:
    trace = golden("retraction")
    named = {(s.lane, s.step): s.rids for s in trace.slices if s.name == "prepare"}
    with stepper(browser, folder, [trace]) as page:
        for rid in sorted({rid for rids in named.values() for rid in rids}):
            page.evaluate("(rid) => choose([rid])", rid)
            bright = page.evaluate("""() => runs[0].lanes.flatMap(({ slices }) => slices
              .filter(({ phase }) => phase === "schedule")
              .map(({ id, group }) => [id, page.bright[group]]))""")
            wanted = {
                box.slice.id: rid in named.get((box.slice.lane, box.step), ())
                for box in boxes_of(trace)
                if box.slice.name == "schedule"
            }
            assert dict(bright) == wanted
            assert len(set(wanted.values())) == 2


def named_at(trace: Trace, time: int) -> set[tuple[str, ...]]:
    """Whom the slices at a moment name; none at all where a schedule would name its step's."""
    now = [item for item in trace.slices if item.start <= time < item.end]
    is_clear = all(item.name != "schedule" for item in now)
    return {item.rids for item in now if item.rids} if is_clear else set()


def test_the_keyboard_reaches_the_slices(browser: Browser, folder: Path) -> None:
    runs = [golden("serial"), golden("overlap")]
    with stepper(browser, folder, runs) as page:
        moments = (step.start for step in forwards(runs[1]))
        time, here = next((at, here) for at in moments if len(here := named_at(runs[1], at)) > 1)
        page.evaluate("(time) => goTo(time)", time)
        seen = []
        for _ in range(len(here) + 1):
            press(page, "Enter")
            seen.append(tuple(page.evaluate("[...page.chosen]")))
        assert set(seen) == here and seen[0] == seen[-1]
        expect(page.locator("#life")).to_contain_text("overlap")
        press(page, "Escape", "End", "Enter")
        assert page.evaluate("page.chosen.size") == 0, "nobody runs at the end"
        page.focus('[data-do="first"]')
        assert press(page, "Enter") == 0
        assert page.evaluate("page.chosen.size") == 0, "on a button, Enter presses it"
        press(page, "?")
        expect(page.locator("#keys")).to_contain_text("Enter")
        page.keyboard.press("Escape")


def test_panels_lead_to_a_life_too(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    with stepper(browser, folder, [trace]) as page:
        for panel, selector in (("set", '[data-place="b"]'), ("rows", '[data-place="row 4"]')):
            page.click(f'[data-panel="{panel}"] {selector}')
            rid = next(text for place, _, text in shown(page)[panel] if f'"{place}"' in selector)
            assert page.evaluate("[...page.chosen]") == [rid.lstrip("0123456789")]
        x, y, rid = page.evaluate("""() => {
          const canvas = document.querySelector('[data-panel="pages"] canvas');
          const stay = canvas.state.stays.find((stay) => stay.kind === "admitted");
          const [x, y] = corner(canvas.grid, pageNumber(stay.place) - 1);
          const box = canvas.getBoundingClientRect();
          return [box.x + x + 3, box.y + y + 3, stay.label];
        }""")
        page.mouse.click(x, y)
        assert page.evaluate("[...page.chosen]") == [rid]
