"""The picture of a profile's worst steps: its figures are the profile's, its boxes the steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from minisched.checks.foreign import read_foreign
from minisched.checks.overlap import union
from minisched.export.profiled_steps import profiled_steps
from minisched.export.scene import Lanes, Scene
from minisched.export.scene_svg import to_svg
from minisched.export.scene_text import to_text
from minisched.export.units import ms
from minisched.export.views.marks import NothingToShow
from minisched.trace import Trace
from minisched.trace.events import is_host

PROFILES = Path(__file__).parents[1] / "checks" / "profiles"
NAMES = ["torch_serial", "torch_blocked", "torch_partly", "torch_overlapped"]


def profile(name: str) -> Trace:
    """A profile whose steps are what is launched in a range ``launch``."""
    return read_foreign(PROFILES / f"{name}.json", "launch").trace


def lanes_of(scene: Scene) -> Lanes:
    """The one drawing of a picture."""
    ((show,),) = (part.shows for part in scene.parts)
    assert isinstance(show, Lanes)
    return show


def idle_ns(trace: Trace, start: int, end: int) -> int:
    """How long no op runs between two times, counted by the nanosecond's borders."""
    busy = union([item for item in trace.slices if not is_host(item.lane)])
    return end - start - sum(max(0, min(b, end) - max(a, start)) for a, b in busy)


@pytest.mark.parametrize("name", NAMES)
def test_three_steps_with_the_most_idle_time_are_drawn(name: str) -> None:
    trace = profile(name)
    scene = profiled_steps(trace)
    forwards = trace.on("forward")
    starts = sorted(
        min(item.start for item in forwards if item.step == step)
        for step in {item.step for item in forwards}
    )
    borders = [*starts, max(item.end for item in trace.slices if not is_host(item.lane))]
    windows = zip(borders, borders[3:], strict=False)
    lengths: dict[int, list[int]] = {}
    for start, end in windows:
        lengths.setdefault(idle_ns(trace, start, end), []).append(end - start)
    worst, lanes = max(lengths), lanes_of(scene)
    length = lanes.end
    assert length in lengths[worst]
    said = "less than 1 %" if 100 * worst < length else ms(worst)
    assert scene.title.startswith(f"The device idles {said} of {ms(length)} ms in steps ")
    idle = sum(it.end - it.start for it in lanes.rows[-1].spans if it.kind == "bubble")
    assert idle == pytest.approx(worst, abs=0.02 * length)


@pytest.mark.parametrize("name", NAMES)
def test_boxes_are_steps_in_order_and_inside_the_picture(name: str) -> None:
    lanes = lanes_of(profiled_steps(profile(name)))
    host, device = lanes.rows
    assert (host.name, device.name) == ("host", "device")
    ran = [it.data["step"] for it in device.spans if it.kind.startswith("step")]
    assert ran == sorted(ran) and len(ran) >= 3
    planned = [int(it.data["step"]) for it in host.spans if it.kind.startswith("step")]
    assert planned == sorted(planned)
    assert {it.label for it in host.spans if it.kind == "wait"} <= {"cudaStreamSynchronize"}
    for row in lanes.rows:
        assert all(0 <= it.start < it.end <= lanes.end for it in row.spans)
        assert all(a.end <= b.start for a, b in zip(row.spans, row.spans[1:], strict=False))


def test_serial_and_overlapped_runs_look_different() -> None:
    def ahead(name: str) -> int:
        """Boxes of the host that begin while the device runs an earlier step."""
        host, device = lanes_of(profiled_steps(profile(name))).rows
        return sum(
            one.start < it.start < one.end and int(one.data["step"]) < int(it.data["step"])
            for it in host.spans if it.kind.startswith("step")
            for one in device.spans if one.kind.startswith("step")
        )  # fmt: skip

    assert ahead("torch_serial") == 0 < 2 <= ahead("torch_overlapped")


def test_it_is_an_svg_and_a_text(cli: Any, tmp_path: Path) -> None:
    scene = profiled_steps(profile("torch_serial"))
    words = " ".join(ElementTree.fromstring(to_svg(scene)).itertext())
    assert re.search(r"plan \d", words) and "run" in words
    assert scene.title in to_text(scene) and "device" in to_text(scene)
    path = PROFILES / "torch_serial.json"
    assert cli(f"check {path} --step launch --draw found.svg")[0] == 0
    assert (tmp_path / "found.svg").read_text("utf-8").strip() == to_svg(scene).strip()


def test_too_few_steps_are_one_sentence() -> None:
    trace = read_foreign(PROFILES / "torch_serial.json").trace
    with pytest.raises(NothingToShow, match=r"a picture needs 3 steps, but this profile has 0\."):
        profiled_steps(trace)
