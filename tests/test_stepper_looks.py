"""How the stepper looks: colours, narrow screens, dark paper, few slices and many; its command."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from minisched.export.html import to_html
from minisched.export.native import to_json
from minisched.export.state import panels
from minisched.trace import Mark, Trace
from tests.browser import browser, folder
from tests.stepper_page import check, golden, large_trace, press, settle, shown, stepper

__all__ = ["browser", "folder"]

PAGES = {
    "admitted": "own",
    "wasted": "zombie",
    "protected": "cached, in use",
    "evictable": "cached, evictable",
}
OWNER = '[data-panel="pages"] .chip'
# The pixels of the first cell of a kind, in terms of its owner's colour.
CELL = """(kind) => {
  const canvas = document.querySelector('[data-panel="pages"] canvas');
  const stay = canvas.state.stays.find((stay) => stay.kind === kind), { size } = canvas.grid;
  const [x, y] = corner(canvas.grid, pageNumber(stay.place) - 1);
  const pen = canvas.getContext("2d"), plain = [];
  for (const [dx, dy] of [[1, 1], [0.3, 0.3], [0.5, 0.1]]) {
    const at = (share) => share >= 1 ? 1 : Math.round(share * (size - 1));
    plain.push([...pen.getImageData(x + at(dx), y + at(dy), 1, 1).data].join());
  }
  const fill = owners.get(stay.label)[0].match(/[0-9A-F]{2}/gi).map((n) => parseInt(n, 16));
  const name = (colour) => colour === "255,255,255,255" ? "paper" : "mixed";
  return plain.map((colour) => colour.startsWith(fill.join()) ? "fill" : name(colour)).join();
}"""
COLOUR = """(style) => css(style.match(/--([a-z]+)/)[1])"""


def test_pages_have_their_owners_colours(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    with stepper(browser, folder, [trace]) as page:
        wrong = page.evaluate("""() => {
          const canvas = document.querySelector('[data-panel="pages"] canvas'), wrong = [];
          const pen = canvas.getContext("2d");
          for (const stay of canvas.state.stays.filter((stay) => stay.kind === "admitted")) {
            const [x, y] = corner(canvas.grid, pageNumber(stay.place) - 1);
            const [r, g, b] = pen.getImageData(x + 1, y + 1, 1, 1).data;
            const hex = "#" + [r, g, b].map((n) => n.toString(16).padStart(2, "0")).join("");
            if (hex !== owners.get(stay.label)[0].toLowerCase()) wrong.push([stay, hex]);
          }
          return wrong;
        }""")
        assert wrong == []


@pytest.mark.parametrize("width", [700, 390])
def test_a_narrow_screen_has_tabs(browser: Browser, folder: Path, width: int) -> None:
    runs = [golden(name) for name in ("serial", "overlap", "mlx_async")]
    with stepper(browser, folder, runs, viewport={"width": width, "height": 900}) as page:
        expect(page.locator(".moment:visible")).to_have_count(1)
        page.locator("#tabs").get_by_role("button", name="mlx_async").click()
        expect(page.locator(".moment:visible")).to_have_attribute("data-run", "2")
        check(page, runs[2], 2)
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) == 0
        page.set_viewport_size({"width": 1400, "height": 900})
        expect(page.locator(".moment:visible")).to_have_count(3)


def test_dark_paper_is_drawn_again(browser: Browser, folder: Path) -> None:
    corner = 'document.querySelector("canvas.run").getContext("2d").getImageData(300, 4, 1, 1).data'
    with stepper(browser, folder, [golden("overlap")]) as page:
        light = page.evaluate(f"[...{corner}]")
        page.emulate_media(color_scheme="dark")
        settle(page)
        assert sum(page.evaluate(f"[...{corner}]")[:3]) < sum(light[:3]) / 3


def test_every_button_says_what_it_does(browser: Browser, folder: Path) -> None:
    with stepper(browser, folder, [golden("overlap")]) as page:
        for button in page.locator("nav button").all():
            assert button.get_attribute("title") and button.get_attribute("aria-label")
        press(page, "?")
        assert "shift" in page.inner_text("#keys")
        page.keyboard.press("Escape")
        expect(page.locator("#keys")).to_be_hidden()
        page.keyboard.press("Tab")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) == "solid"


def test_the_map_tells_own_cached_and_zombie_pages_apart(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    state = next(panel for panel in panels(trace) if panel.name == "pages")
    kinds = {stay.kind for stay in state.stays}
    assert kinds == {"admitted", "protected", "evictable", "wasted"}
    moments = {kind: next(s.start for s in state.stays if s.kind == kind) for kind in kinds}
    with stepper(browser, folder, [trace]) as page:
        drawn = dict[str, str]()
        for kind, time in moments.items():
            page.evaluate("(time) => goTo(time)", time)
            settle(page)
            count = Counter(stay.kind for stay in state.at(time).values())
            line = page.inner_text('[data-panel="pages"] .count')
            told = dict(part.split(" ", 1)[::-1] for part in line.split(": ")[1].split("; "))
            assert told == {PAGES[kind]: str(n) for kind, n in count.items()}
            assert line.startswith(f"{count.total()} of 1024 pages")
            drawn[kind] = page.evaluate(CELL, kind)
            chips = Counter(
                page.locator(OWNER).evaluate_all("(all) => all.map((e) => e.classList[1])")
            )
            assert chips.keys() == count.keys()
        assert len(set(drawn.values())) == 4, "each looks its own way"
        page.evaluate("(time) => goTo(time)", moments["wasted"])
        settle(page)
        for chip in page.locator(".chip.wasted").all():
            expect(chip).to_have_css("text-decoration-line", "line-through")
        assert page.locator('[data-panel="pages"] .chip.wasted').count() > 0


def test_both_sides_of_a_pair_are_shown(browser: Browser, folder: Path) -> None:
    trace = golden("pd")
    with stepper(browser, folder, [trace]) as page:
        assert page.locator("h4.side").all_inner_texts() == ["Prefill side", "Decode side"]
        wanted = [panel for panel in panels(trace) if panel.stays]
        found = page.locator("[data-side]").evaluate_all(
            "(all) => all.map((e) => [e.dataset.side, e.dataset.panel])"
        )
        assert sorted(found) == sorted([panel.side, panel.name] for panel in wanted)
        for number, side in enumerate(("prefill", "decode")):
            column = page.locator(".groups > div", has=page.locator("h4.side")).nth(number)
            sides = column.locator("[data-side]").evaluate_all(
                "(all) => all.map((e) => e.dataset.side)"
            )
            assert sides and set(sides) == {side}


def test_live_slots_stand_out_from_stale_ones(browser: Browser, folder: Path) -> None:
    trace = golden("overlap")
    with stepper(browser, folder, [trace]) as page:
        kinds = Counter(kind for _, kind, _ in shown(page)["ring"])
        assert kinds["stale"] and len(kinds) > 1
        visible = page.locator('[data-panel="ring"] [data-place]:visible')
        expect(visible).to_have_count(kinds.total() - kinds["stale"])
        page.get_by_role("button", name=f"show {kinds['stale']} stale").click()
        expect(visible).to_have_count(kinds.total())
        many = "[...Array(300).fill({ kind: 'stale' }), { kind: 'promised' }]"
        assert page.evaluate(f"mostOf({many})") == [{"kind": "promised"}], "live ones go first"
        page.get_by_role("button", name=f"hide {kinds['stale']} stale").click()
        expect(visible).to_have_count(kinds.total() - kinds["stale"])


def test_flags_have_the_colours_of_their_legend(browser: Browser, folder: Path) -> None:
    trace = golden("retraction")
    with stepper(browser, folder, [trace]) as page:
        legend = {
            name: page.evaluate(COLOUR, item.locator("b").get_attribute("style"))
            for item in page.locator(".legend .mark").all()
            for name in item.inner_text().removeprefix("▼ ").split(", ")
        }
        flags = page.evaluate("runs[0].marks.map((mark) => [mark.text, flagColour(mark)])")
        for text, colour in flags:
            name = next(name for name in legend if text.startswith(name))
            assert colour == legend[name]
        assert len({colour for _, colour in flags}) > 1


def test_every_canvas_says_what_it_is(browser: Browser, folder: Path) -> None:
    runs = [golden("serial"), golden("overlap")]
    with stepper(browser, folder, runs, viewport={"width": 700, "height": 900}) as page:
        for canvas in page.locator("canvas").all():
            assert canvas.get_attribute("role") == "img" and canvas.get_attribute("aria-label")
        said = page.locator('[data-panel="pages"] canvas').nth(1).get_attribute("aria-label") or ""
        assert " own" in said and " cached" in said
        assert page.locator("[role=tab], [role=tablist]").count() == 0
        expect(page.locator("#tabs [aria-pressed=true]")).to_have_text("overlap")


@pytest.mark.parametrize("width", [1400, 700])
def test_no_node_of_the_tree_is_clipped(browser: Browser, folder: Path, width: int) -> None:
    runs = [golden("serial"), golden("overlap")]
    with stepper(browser, folder, runs, viewport={"width": width, "height": 900}) as page:
        assert page.locator(".node:visible").count() > 3
        clipped = (
            "(all) => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText)"
        )
        assert page.locator(".node:visible, .node:visible *").evaluate_all(clipped) == []
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


@pytest.mark.parametrize("count", [1, 10])
def test_it_works_for_a_few_slices(browser: Browser, folder: Path, count: int) -> None:
    whole = golden("serial")
    kept = whole.slices[:count]
    ids, end = {item.id for item in kept}, max(item.end for item in kept)
    trace = Trace(
        "serial", "sim", "hash", "virtual", kept,
        tuple(e for e in whole.edges if e.src in ids and e.dst in ids),
        tuple(c for c in whole.counters if c.time <= end),
        tuple(m for m in whole.marks if m.time <= end and m.name != "future slots"),
    )  # fmt: skip
    with stepper(browser, folder, [trace]) as page:
        check(page, trace)
        assert press(page, "Home", "End") == end
        check(page, trace)


def test_it_works_for_ten_thousand_slices(browser: Browser, folder: Path) -> None:
    trace = large_trace()
    assert len(trace.slices) > 10_000
    assert len(to_html([trace])) < 6e6
    with stepper(browser, folder, [trace]) as page:
        page.evaluate("""() => {
          const draw = drawSlice;
          window.count = 0;
          drawSlice = (...all) => { count++; draw(...all); };
        }""")
        for keys in (
            ["ArrowRight"] * 5,
            ["Shift+ArrowRight"] * 5,
            ["End"],
            ["Shift+ArrowLeft"] * 3,
        ):
            press(page, *keys)
            check(page, trace)
        page.evaluate("goTo(longest / 2)")
        settle(page)
        page.evaluate("count = 0; redraw('lanes')")
        settle(page)
        assert 0 < page.evaluate("count") < 200, "only what is visible is drawn"
        page.evaluate("count = 0")
        press(page, "0")
        lanes, width = page.evaluate("[runs[0].lanes.length, axis.clientWidth]")
        assert page.evaluate("count") < lanes * width < len(trace.slices), "once a pixel"


def test_only_notable_marks_are_flags() -> None:
    found = re.search(
        r'<script id="data"[^>]*>(.*?)</script>', to_html([golden("retraction")]), re.S
    )
    assert found
    names = {text.split(" rid ")[0] for _, text in json.loads(found[1])["runs"][0]["marks"]}
    assert names == {"retraction", "finish", "wasted row"}


def test_the_command_writes_the_page(cli: Any, tmp_path: Path) -> None:
    runs = [golden("serial"), golden("overlap")]
    for run in runs:
        (tmp_path / f"{run.loop}.json").write_text(to_json(run), encoding="utf-8")
    code, out, err = cli("stepper serial.json overlap.json")
    assert (code, out.strip(), err) == (0, str(Path("out/stepper.html")), "")
    assert (tmp_path / "out" / "stepper.html").read_text(encoding="utf-8") == to_html(runs)
    assert cli("stepper overlap.json --out one.html")[0] == 0
    assert (tmp_path / "one.html").read_text(encoding="utf-8") == to_html(runs[1:])


def test_the_command_says_what_is_wrong_in_a_sentence(cli: Any, tmp_path: Path) -> None:
    odd = Trace("serial", "sim", "hash", "virtual", (), (), (), (Mark("radix add", 1, {}),))
    (tmp_path / "odd.json").write_text(to_json(odd), encoding="utf-8")
    (tmp_path / "text.json").write_text("no", encoding="utf-8")
    for line, words in (
        ("stepper none.json", "none.json can't be read"),
        ("stepper text.json", "text.json is not a minisched trace"),
        (
            "stepper odd.json",
            "odd.json is a damaged minisched trace: marks[0], a 'radix add', lacks 'node'.",
        ),
        ("stepper", "Missing argument"),
    ):
        code, out, err = cli(line)
        assert (code, out) == (2, "") and words in err
        assert err.count("\n") == 1 and "Traceback" not in err
