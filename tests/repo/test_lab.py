"""The lab in a real browser: the same numbers as in this Python, and nothing from outside.

The browser's Python is Pyodide, from the npm package; the pages are served from this machine.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page

from minisched.checks.overlap.overlap import step_intervals
from minisched.comparison import compare_loops
from minisched.export.native import to_json
from minisched.models.hash import HashModel
from tests.support import FAR, browser, served, watch

SITE = Path(__file__).resolve().parents[1] / "lessons" / "site"
sys.path[:0] = [str(SITE), str(SITE / "lab")]

from experiment import HOST_STEP, Settings, loop_names, run, settled_step  # noqa: E402
from pages import lab  # noqa: E402
from report import report  # noqa: E402

assert browser  # the fixture
READY = "#results:not([hidden]):not(.stale)"
NUMBERS = ("host", "forward", "copy", "requests", "prompt", "tokens")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pyodide: Path) -> Path:
    """The lab as a build leaves it."""
    assert lab.has_python(pyodide)
    out = tmp_path_factory.mktemp("site")
    lab.write(out)
    return out


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Where the lab is served."""
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The lab, ready; at the end there was no error, and no request went elsewhere."""
    with watch(browser, allowed=(address, "blob:", "data:"), viewport=WIDE) as watched:
        watched.page.goto(f"{address}lab/index.html")
        watched.page.wait_for_selector(READY)
        yield watched.page


WIDE = {"width": 1280, "height": 1000}


def makespans(page: Page) -> dict[str, int]:
    """Nanoseconds by loop, as the table has them."""
    rows = page.locator("#rows tr")
    cells = rows.evaluate_all("rows => rows.map(r => [r.dataset.loop, r.cells[1].dataset.ns])")
    return {loop: int(ns) for loop, ns in cells}


def expected(asked: Settings) -> dict[str, int]:
    """The same of ``minisched.compare`` here."""
    found = compare_loops(asked.loops, "sim", HashModel(), asked.workload, asked.config, asked.cost)
    assert found.identical
    return {item.loop: item.makespan_ns for item in found.reports}


def asked(page: Page) -> Settings:
    """What the controls say."""
    values = {name: page.locator(f"#{name}").evaluate("it => it.valueAsNumber") for name in NUMBERS}
    return Settings(
        loops=(page.locator("#first").input_value(), page.locator("#second").input_value()),
        needs=page.locator("#needs").input_value(),
        stops=page.locator("#stops").is_checked(),
        **values,
    )


def settle(page: Page, wanted: Settings) -> None:
    """Wait for the table of these settings, however many changes were on their way."""
    page.wait_for_function(
        """ns => [...document.querySelectorAll("#rows tr")]
            .map((row) => Number(row.cells[1].dataset.ns)).join() === ns.join()""",
        arg=list(expected(wanted).values()),
    )


def start(page: Page, **values: Any) -> None:
    """Set the form by its address, as a shared link does.

    The table is emptied, so that ``settle`` waits for the run of these settings, and not for the
    same numbers of an earlier one; the page has heard of them when this returns.
    """
    pairs = "&".join(f"{name}={value}" for name, value in values.items())
    page.evaluate(
        """hash => new Promise((heard) => {
            document.getElementById("rows").replaceChildren();
            window.addEventListener("hashchange", heard, { once: true });
            if (location.hash === hash) window.dispatchEvent(new HashChangeEvent("hashchange"));
            else location.hash = hash;
        }).then(() => null)""",
        "#" + pairs,
    )


DEFAULTS = {
    "loops": "serial,overlap", "needs": "nothing", "host": 6.7, "forward": 8, "copy": 0.5,
    "requests": 4, "prompt": 24, "tokens": 16, "stops": "false", "whole": "false",
}  # fmt: skip


# -- in this Python --------------------------------------------------------------------------------

tenths = st.integers(1, 150).map(lambda value: value / 10)


@given(host=tenths, forward=tenths, copy=tenths, requests=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_a_settled_step_takes_what_the_page_says(
    host: float, forward: float, copy: float, requests: int
) -> None:
    """Read off the runs' traces, as a mean: long and short steps may alternate."""
    device = forward + 0.05 * requests + 1
    together = device + host + copy
    expected = (together, max(device, host, copy, together / 2))
    wanted = Settings(host=host, forward=forward, copy=copy, requests=requests, tokens=24)
    found = run(wanted)
    assert settled_step(wanted) == pytest.approx(expected)
    for item, step in zip(found.runs, expected, strict=True):
        assert mean(step_intervals(item.trace)[6:16]) == pytest.approx(step * 1e6, abs=5_000)


def test_the_settings_of_the_page_are_those_of_the_module() -> None:
    """The form's starting values are the module's defaults."""
    html = (SITE / "lab" / "index.html").read_text(encoding="utf-8")
    start = dict(re.findall(r'type="range" id="(\w+)".* value="([\d.]+)"', html))
    assert {name: float(value) for name, value in start.items()} == {
        name: getattr(Settings(), name) for name in NUMBERS
    }
    assert HOST_STEP == 6_700_000


def test_every_loop_can_be_chosen_and_a_report_is_plain_data() -> None:
    for loop in loop_names():
        wanted = Settings(loops=("serial", loop), tokens=3, requests=2)
        said = json.loads(json.dumps(report(wanted, run(wanted), whole=True)))
        assert said["identical"] and said["svg"].startswith("<svg")
        assert [row["loop"] for row in said["rows"]] == list(dict.fromkeys(["serial", loop]))


def test_what_the_archive_leaves_out_is_not_needed(folder: Path) -> None:
    """The same files give the same bytes, and the folders left out are there to leave out."""
    assert all((SITE.parents[1] / "minisched" / name).is_dir() for name in lab.NOT_NEEDED)
    before = (folder / "lab" / "minisched.zip").read_bytes()
    lab.zip_package(folder / "again.zip")
    assert (folder / "again.zip").read_bytes() == before


def test_without_the_npm_package_the_page_says_what_is_missing(tmp_path: Path) -> None:
    assert not lab.has_python(tmp_path)
    assert "npm ci --prefix lessons/site" in lab.pages(tmp_path)["lab.md"]


# -- in the browser --------------------------------------------------------------------------------


def test_it_starts_with_what_compare_gives_here(page: Page) -> None:
    start(page, **DEFAULTS)
    settle(page, Settings())
    assert makespans(page) == expected(Settings()) and asked(page) == Settings()
    assert page.inner_text("#verdict").startswith("Identical tokens: overlap gave every request")
    assert page.locator("#picture").evaluate("it => it.decode().then(() => it.naturalWidth)") == 900


def test_a_slider_moved_by_keyboard_runs_it_again(page: Page) -> None:
    start(page, **DEFAULTS)
    settle(page, Settings())
    before = makespans(page)
    page.focus("#host")
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("output[for=host]") == "9.7 ms"
    assert page.get_attribute("#host", "aria-valuetext") == "9.7 ms"
    wanted = Settings(host=9.7)
    settle(page, wanted)
    assert makespans(page) == expected(wanted) != before


@pytest.mark.parametrize(
    "wanted",
    [
        Settings(loops=("vllm_async", "mlx_async"), needs="grammar", host=12.3, copy=2.1),
        Settings(loops=("mini_overlap", "mindie_placeholder"), stops=True, requests=7, prompt=60),
        Settings(loops=("overlap", "overlap"), needs="penalties", tokens=1, requests=1, prompt=1),
    ],
    ids=lambda wanted: "-".join(wanted.loops),
)
def test_other_loops_and_a_link_that_holds_the_settings(page: Page, wanted: Settings) -> None:
    values = {name: getattr(wanted, name) for name in (*NUMBERS, "needs")}
    loops, stops = ",".join(wanted.loops), str(wanted.stops).lower()
    start(page, **{**DEFAULTS, **values, "loops": loops, "stops": stops})
    settle(page, wanted)
    assert asked(page) == wanted and makespans(page) == expected(wanted)
    for name, value in values.items():
        assert f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" in page.url


def test_of_many_changes_the_last_one_is_shown(page: Page) -> None:
    start(page, **DEFAULTS)
    page.evaluate(
        """() => {
            const slider = document.getElementById("tokens");
            for (let value = 1; value <= 40; value++) {
                slider.value = value;
                slider.dispatchEvent(new Event("input", { bubbles: true }));
            }
        }"""
    )
    wanted = Settings(tokens=40)
    settle(page, wanted)
    page.wait_for_timeout(300)
    assert makespans(page) == expected(wanted)


def test_the_presets_do_what_they_say(page: Page) -> None:
    said = {"Overlap wins": (1.5, 9), "It ties": (0.99, 1.01), "It loses": (0, 0.9)}
    assert {*said} < set(page.locator("#presets button").all_inner_texts())
    for name, (least, most) in said.items():
        page.get_by_role("button", name=name).click()
        settle(page, asked(page))
        found = makespans(page)
        assert least < found["serial"] / found["overlap"] < most, name
        assert page.inner_text("#why").endswith(".")
    page.get_by_role("button", name="A grammar makes it wait").click()
    settle(page, asked(page))
    lost = page.locator("#lost li").all_inner_texts()
    assert any("in waits for grammar" in line for line in lost if line.startswith("mlx_async"))


def test_what_an_original_refuses_is_a_sentence_and_not_a_traceback(page: Page) -> None:
    start(page, **{**DEFAULTS, "loops": "serial,mini_overlap", "needs": "grammar"})
    page.wait_for_selector("#results.stale")
    assert page.inner_text("#status").startswith(
        "loop 'mini_overlap' takes no grammar: mini-sglang"
    )
    page.select_option("#needs", "nothing")
    settle(page, Settings(loops=("serial", "mini_overlap")))
    assert not page.locator("#status").is_visible()


def test_the_traces_and_the_stepper_can_be_taken_away(page: Page) -> None:
    start(page, **{**DEFAULTS, "tokens": 4})
    wanted = Settings(tokens=4)
    settle(page, wanted)
    for item in run(wanted).runs:
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {item.loop}.json").click()
        assert download.value.suggested_filename == f"{item.loop}.json"
        assert Path(download.value.path()).read_text(encoding="utf-8") == to_json(item.trace)
    with page.expect_popup() as popup:
        page.get_by_role("button", name="Step through both").click()
    popup.value.wait_for_url(re.compile("^blob:"))
    popup.value.wait_for_load_state()
    text = popup.value.inner_text("body")
    assert "serial" in text and "overlap" in text
    popup.value.close()


@pytest.mark.parametrize("width", [700, 420])
def test_it_fits_a_narrow_window_and_every_control_has_a_name(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    try:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        unnamed = page.locator("#controls :is(input, select)").evaluate_all(
            "all => all.filter((it) => !it.labels.length).map((it) => it.name)"
        )
        assert unnamed == []
    finally:
        page.set_viewport_size(WIDE)


def test_from_a_file_the_page_says_how_to_serve_it(browser: Browser, folder: Path) -> None:
    opened = browser.new_page()
    opened.set_default_timeout(FAR)
    opened.goto((folder / "lab" / "index.html").as_uri())
    assert "python -m http.server -d out/site" in opened.inner_text("#status")
    opened.close()


def test_a_file_that_is_missing_is_named(browser: Browser, address: str) -> None:
    opened = browser.new_page()
    opened.set_default_timeout(FAR)
    opened.route("**/minisched.zip", lambda route: route.fulfill(status=404))
    opened.goto(f"{address}lab/index.html")
    opened.wait_for_function("document.getElementById('status').textContent.includes('missing')")
    said = opened.inner_text("#status")
    assert said == "minisched.zip is missing (404): build the site again."
    opened.close()
