"""``compare --loops pd,mixed``: every lane of PD is at work, and words and table say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from minisched.export.pd_or_mixed import beside_a_prompt, both
from minisched.export.recipes import RECIPES, asked
from minisched.export.scene import Lanes, Scene

PD = ["Prefill host", "Prefill forward", "Prefill copy", "KV transfer", "Decode host",
      "Decode forward", "Decode copy"]  # fmt: skip


@pytest.fixture(scope="module")
def scene() -> Scene:
    found = beside_a_prompt(*both(RECIPES["pd"].requests))
    assert found
    return found


def lanes(scene: Scene) -> list[Lanes]:
    return [show for part in scene.parts for show in part.shows if isinstance(show, Lanes)]


def test_every_lane_of_pd_is_at_work(scene: Scene) -> None:
    pd, mixed = lanes(scene)
    assert [row.name for row in pd.rows] == PD
    for row in (*pd.rows, *mixed.rows):
        assert {item.kind for item in row.spans} - {"wait", "bubble", "waited"}, row.name
    passes = {row.name: [item for item in row.spans if item.kind == "forward"] for row in pd.rows}
    prompt, others = passes["Prefill forward"][0], passes["Decode forward"]
    assert any(item.start < prompt.end and prompt.start < item.end for item in others)


def test_nobody_is_drawn_beside_a_prompt_where_none_decodes() -> None:
    assert beside_a_prompt(*both(asked("a: 0-11 -> 36"))) is None


def test_picture_table_and_json_say_the_same(cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli("compare --loops pd,mixed --json")
    assert code == 0
    cells = {name: (pd, mixed) for name, pd, mixed in json.loads(out)["pd_or_mixed"]}
    apart, together = cells["latency: longest pause while a prompt is computed"]
    svg = (tmp_path / "out" / "compare.svg").read_text("utf-8")
    said = re.search("<title>(.*)</title>", svg)
    assert said and said[1] == (
        f"While a prompt is computed, others pause {together} at most if mixed, {apart} if apart"
    )
    assert float(apart.split()[0]) < float(together.split()[0]), "the difference matters"
    assert cells["devices"] == ("2", "1")


def test_requests_of_ones_own_are_kept(cli: Any) -> None:
    code, out, _ = cli("compare --loops pd,mixed --requests 2 --max-new-tokens 3 --json")
    assert code == 0 and json.loads(out)["runs"][0]["tokens"] == 6
