"""The page that checks a dropped file says in the browser what ``minisched check`` says here."""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from minisched.checking import check_runs
from minisched.checks.reading import read_recorded
from minisched.recipes import trace_of
from minisched.trace.native import to_json
from tests.checks.test_foreign import as_rocpd
from tests.support import OWN, browser, served, watch

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "lessons" / "site"
sys.path[:0] = [str(SITE), str(SITE / "lab")]

import checker  # noqa: E402
from pages import lab  # noqa: E402

assert browser  # the fixture
PROFILES = ROOT / "tests" / "checks" / "profiles"
SECONDS = 60  # for 50 MB


def repeated(megabytes: int) -> bytes:
    """A profile of that size: copies of a small one, with Python frames around each event.

    In real profiles with stacks nine of ten events are such frames.
    """
    events = json.loads((PROFILES / "torch_overlapped.json").read_bytes())["traceEvents"]
    timed = [it for it in events if it.get("ph") == "X" and it["cat"] != "Trace"]
    length = max(it["ts"] + it["dur"] for it in timed) - min(it["ts"] for it in timed)
    pieces, copy, wanted = list[str](), 0, megabytes * 1_000_000
    while wanted > 0:
        for event in timed:
            args = dict(event.get("args", {}))
            if "correlation" in args:
                args["correlation"] += 1_000_000 * copy
            moved = {**event, "ts": event["ts"] + copy * (length + 1000), "args": args}
            frame = {**moved, "cat": "python_function", "name": "engine/scheduler.py(117): run"}
            frame["args"] = {"Python parent id": 140972, "Python id": 141258, "Ev Idx": copy}
            more = [json.dumps(moved), *[json.dumps(frame)] * (0 if "stream" in args else 9)]
            wanted -= sum(map(len, more))
            pieces += more
        copy += 1
    return b'{"traceEvents": [' + ", ".join(pieces).encode() + b"]}"


def put(name: str, folder: Path) -> Path:
    """A file of the format that its name stands for."""
    path = folder / name
    if name.startswith("nsys"):
        with closing(sqlite3.connect(":memory:")) as database:
            database.executescript((PROFILES / "nsys_serial.sql").read_text("utf-8"))
            data = database.serialize()
    elif name.startswith("rocpd"):
        data = as_rocpd(folder / f"{name}.plain", ahead=True).read_bytes()
    elif name.startswith("torch"):
        data = (PROFILES / "torch_blocked.json").read_bytes()
    else:
        data = to_json(trace_of("overlap")).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def here(path: Path) -> list[dict[str, Any]]:
    """The rows of the verdict on a file in this Python."""
    run = read_recorded(path)._replace(file=path.name)
    return check_runs([run]).verdicts[0].as_json()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, pyodide: Path) -> Path:
    """The page, without the rest of the site."""
    out = tmp_path_factory.mktemp("check")
    lab.write(out, pyodide)
    form = (SITE / "lab" / "check.html").read_text("utf-8")
    start = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
    (out / "lab" / "check.html").write_text(start + form, encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def address(alone: Path) -> Iterator[str]:
    """The address of the page."""
    with served(alone) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, ready; at the end there was no error, and no request went elsewhere."""
    with watch(browser, (address, *OWN)) as page:
        page.goto(f"{address}lab/check.html")
        expect(page.locator("#file")).to_be_enabled()
        yield page


def said(page: Page) -> list[dict[str, Any]]:
    """The rows on the page, with the folded sentences."""
    expect(page.locator("#stop")).to_be_hidden(timeout=1000 * SECONDS)
    expect(page.locator("#results")).to_be_visible()
    return page.evaluate(
        """() => [...document.querySelectorAll("#answers dt")].map((head) => ({
            head: head.textContent,
            lines: [head.nextSibling.firstChild, ...head.nextSibling.querySelectorAll("p")]
                .map((line) => line.textContent),
        }))"""
    )


def as_said(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as the page shows them."""
    return [
        {
            "head": f"{it['sign']} {it['name']}",
            "lines": [it["sentence"], *it["details"], *it["more"]],
        }
        for it in rows
    ]


DRAWN = ("rocpd", "own")  # the steps of the others are not marked
KINDS = ("torch.json", "nsys.sqlite", "rocpd.db", "own.json")
FORMATS = [f"{kind}{end}" for kind in KINDS for end in ("", ".gz")]


@pytest.mark.thorough
def test_each_format_gets_the_answers_of_the_command_and_nothing_is_sent(
    page: Page, tmp_path: Path
) -> None:
    requests = list[str]()
    page.on("request", lambda request: requests.append(request.url))
    for name in FORMATS:
        path = put(name, tmp_path)
        page.set_input_files("#file", path)
        expect(page.locator("#took")).to_contain_text("Read and judged")
        assert said(page) == as_said(here(path)), name
        assert page.inner_text("#title").startswith(f"{name}: ")
        assert page.locator("#picture").is_visible() == name.startswith(DRAWN)
    assert [url for url in requests if not url.startswith("blob:")] == []


@pytest.mark.thorough
def test_a_file_can_be_dropped_and_steps_can_be_named(page: Page, tmp_path: Path) -> None:
    data = (PROFILES / "torch_serial.json").read_text("utf-8")
    drop = """([name, text]) => {
        const data = new DataTransfer();
        data.items.add(new File([text], name));
        document.getElementById("drop").dispatchEvent(
            new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(drop, ["serial.json", data])
    assert "Unknown" in said(page)[1]["lines"][0]
    page.locator("#asked summary").click()
    page.fill("#step", "launch")
    page.get_by_role("button", name="Check it again").click()
    assert "Serial" in said(page)[1]["lines"][0]
    expect(page.locator("#picture")).to_be_visible()


@pytest.mark.thorough
def test_a_file_that_is_no_trace_gets_a_sentence(page: Page, tmp_path: Path) -> None:
    for name, data, words in (
        ("notes.md", b"# Notes", "notes.md is no trace"),
        ("cut.json", b'{"traceEvents": [', "cut.json is not a Chrome trace"),
        ("report.nsys-rep", b"NSYS", "export it first"),
    ):
        (tmp_path / name).write_bytes(data)
        page.set_input_files("#file", tmp_path / name)
        expect(page.locator("#status")).to_contain_text(words)
        assert "/dropped" not in page.inner_text("#status")
    page.set_input_files("#file", put("own.json", tmp_path))  # the page goes on
    assert said(page) == as_said(here(tmp_path / "own.json"))


@pytest.mark.thorough
def test_50_mb_take_less_than_a_minute_with_progress(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    path.write_bytes(repeated(50))
    page.evaluate(
        """() => {
            window.seen = [];
            const status = document.getElementById("status");
            new MutationObserver(() => window.seen.push(status.textContent))
                .observe(status, { childList: true });
        }"""
    )
    start = monotonic()
    page.set_input_files("#file", path)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    found = said(page)
    assert monotonic() - start < SECONDS
    assert found == as_said(here(path))
    seen = page.evaluate("window.seen")
    assert len([words for words in seen if words.startswith("Reading big.json: ")]) > 5
    assert any(words.startswith("Judging") for words in seen)


@pytest.mark.thorough
def test_a_check_can_be_stopped_and_the_page_goes_on(page: Page, tmp_path: Path) -> None:
    (tmp_path / "big.json").write_bytes(repeated(20))
    page.set_input_files("#file", tmp_path / "big.json")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_have_text("Stopped.")
    page.set_input_files("#file", put("torch.json", tmp_path))
    assert said(page) == as_said(here(tmp_path / "torch.json"))


def test_rows_are_those_of_the_command(tmp_path: Path) -> None:
    told = list[str]()
    for name in FORMATS:
        path = put(name, tmp_path)
        asked = json.dumps({"path": str(path), "step": "", "lane": ""})
        found = json.loads(checker.check(asked, told.append))
        assert found["rows"] == here(path) and len(found["rows"]) > 3
        assert bool(found["svg"]) == name.startswith(DRAWN)
    assert any(words == "Judging own.json …" for words in told)
    with pytest.raises(ValueError, match=r"^notes\.md is no trace"):
        (tmp_path / "notes.md").write_text("# Notes", "utf-8")
        checker.check(
            json.dumps({"path": str(tmp_path / "notes.md"), "step": "", "lane": ""}), told.append
        )
