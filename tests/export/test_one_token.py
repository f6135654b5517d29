"""One token's way: what is drawn is what the run did, relay by relay."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, islice

import pytest

from minisched.export.one_token import (
    CELLS,
    TokenWay,
    finding,
    one_token,
    token_lanes,
    way_of,
)
from minisched.export.pictures.compare import RELAYS as LOOPS
from minisched.export.pictures.compare import WAYS
from minisched.export.scene import LaneRow, Lanes
from minisched.export.views.marks import NothingToShow
from minisched.recipes import run_of
from minisched.relay import RELAYS


@pytest.fixture(scope="module")
def ways() -> dict[str, TokenWay]:
    return {way.relay: way for way in map(way_of, map(run_of, LOOPS))}


def test_every_relay_has_its_way(ways: dict[str, TokenWay]) -> None:
    assert ways.keys() == RELAYS.keys() == {*CELLS, "host"}


def test_a_token_is_promised_stored_and_read_in_this_order(ways: dict[str, TokenWay]) -> None:
    for relay, way in ways.items():
        *_, this, sample, after = way.device
        assert (this.step, this.name) == (sample.step, "forward") != (after.step, after.name)
        assert sample.name == "sample" and after.name == "forward", relay
        assert after.step == this.step + 1 and this.rids[0] in after.rids
        assert way.promised <= way.stored <= way.read <= after.start, relay
        assert sample.end <= way.stored < way.gone, relay


def test_what_goes_over_the_host_is_what_the_edges_say(ways: dict[str, TokenWay]) -> None:
    for relay, way in ways.items():
        after, trace = way.device[-1], way.trace
        slices = {item.id: item for item in trace.slices}
        tokens = [edge for edge in trace.edges if edge.kind == "token"
                  and slices[edge.dst].step == after.step
                  and slices[edge.src].step == after.step - 1]  # fmt: skip
        assert tokens, relay
        from_device = {slices[edge.src].name == "sample" for edge in tokens}
        assert from_device == {not way.goes_over_the_host}, relay


def test_who_gets_the_token_first(ways: dict[str, TokenWay]) -> None:
    device = [way for way in ways.values() if not way.goes_over_the_host]
    assert {way.waits for way in device} == {0}, "the next pass begins at once"
    assert 0 < ways["fill_host"].waits < ways["host"].waits
    said = finding(list(ways.values()))
    assert said.endswith("0 ms on the device, 1.3 to 7.2 ms over the host")
    assert [ways["fill_host"].waits, ways["host"].waits] == [1_300_000, 7_200_000]


def test_a_row_is_a_device_a_cell_or_a_host(ways: dict[str, TokenWay]) -> None:
    (shown,) = one_token([way.trace for way in ways.values()]).parts[0].shows
    assert isinstance(shown, Lanes)
    rows, named = iter(shown.rows), list[str]()
    for _, group in groupby(ways.values(), lambda way: way.times):
        alike = {way.relay: way for way in group}  # they share the rows of device and host
        kept = [way.gone == way.trace.end for way in alike.values()]
        device, *cells, host = islice(rows, 2 + len({*kept}))
        for cell in cells:
            words = next(item.label for item in cell.spans if item.kind == "stored")
            relays = words.split(", ") if len(alike) > 1 else [*alike]
            named += relays
            for relay in relays:
                check_way(alike[relay], device, cell, host, shown.end)
    assert next(rows, None) is None and sorted(named) == sorted(ways)


def check_way(way: TokenWay, device: LaneRow, cell: LaneRow, host: LaneRow, end: int) -> None:
    """The three rows of a way have its ops, its cell and its phases."""
    waits = [item for item in device.spans if item.kind == "bubble"]
    ops = [item.kind for item in device.spans if item not in waits]
    assert ops == ["forward", "forward"]
    assert sum(item.duration for item in waits) == way.waits
    own = {"a new cell": True, "the same cell": False}  # of several relays
    assert own.get(cell.name, cell.name) in (way.cell, way.gone == way.trace.end)
    assert host.spans[-1].kind == "end"
    verbs = [item.label.partition(" ")[0] for item in host.spans]
    assert verbs.index("copy") < verbs.index("read")
    stored = next(item for item in cell.spans if item.kind == "stored")
    assert stored.start + way.start == way.stored
    assert stored.end == min(way.gone - way.start, end)
    assert all(0 <= item.start <= item.end <= end
               for row in (device, cell, host) for item in row.spans)  # fmt: skip


def test_on_a_slide_a_design_is_its_device_and_its_token(ways: dict[str, TokenWay]) -> None:
    chosen = [way for way in ways.values() if way.trace.loop in WAYS]
    scene = token_lanes([way.trace for way in chosen])
    assert scene.title == finding(chosen)
    for way, part in zip(chosen, scene.parts, strict=True):
        (shown,) = part.shows
        assert isinstance(shown, Lanes)
        device, token = shown.rows
        zero = way.device[-2].end
        assert [item.duration for item in device.spans if item.kind == "bubble"] == (
            [way.waits] if way.waits else []
        )
        (cell,) = (item for item in token.spans if item.kind == "stored")
        assert (cell.start, cell.label) == (way.stored - zero, way.cell)
        assert shown.links[-1].dst == (0, way.waits), "the arrow ends at the next forward"
        assert len(shown.links) == (2 if way.goes_over_the_host else 1)


def test_a_run_that_never_settles_or_says_nothing_is_refused() -> None:
    trace = run_of("overlap")
    with pytest.raises(NothingToShow, match="settled"):
        way_of(replace(trace, slices=tuple(item for item in trace.slices if item.step < 3)))
    with pytest.raises(NothingToShow, match="future slots"):
        way_of(replace(trace, marks=()))
