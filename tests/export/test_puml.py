"""PlantUML: a story's events, a request's boxes, and the pinned renderer with its messages."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from minisched.export import render_puml
from minisched.export.looks import SHARES
from minisched.export.pictures.stages import row_of, works
from minisched.export.render_puml import ADVICE, RenderError, render
from minisched.export.story import events
from minisched.export.views import draw
from minisched.export.views.steps import requests_in
from minisched.recipes import RECIPES, run_of
from minisched.topics import TOPICS

# -- stories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "depth"),
    {"serial": 1, "overlap": 2, "vllm_async": 2, "mindie_single": 2, "overlap_thread": 0}.items(),
)
def test_every_slice_is_an_event_and_the_queue_is_what_is_launched_and_not_taken(
    loop: str, depth: int
) -> None:
    trace = run_of(loop)
    told = events(trace, 0, trace.end + 1)
    assert all(before.start <= after.start for before, after in pairwise(told))
    begun = Counter((e.lane, e.name, e.start) for e in told if e.end > e.start)
    assert begun == Counter((s.lane, s.name, s.start) for s in trace.slices if s.duration)
    lanes = {item.id: item.lane for item in trace.slices}
    relayed = sum(e.kind == "token" and lanes[e.dst] == "forward" for e in trace.edges)
    assert sum(event.name == "relay" for event in told) == relayed
    queues = [str(event.fields["queue"]).replace("empty", "").split() for event in told]
    assert not depth or max(map(len, queues)) == depth
    steps = {item.step for item in trace.slices if item.name == "forward"}
    for name in ("put", "take"):
        assert {event.fields["step"] for event in told if event.name == name} == steps
    for queue in queues:  # oldest first, none missing
        assert all(int(after) == int(before) + 1 for before, after in pairwise(queue))


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["serial", "overlap", "vllm_pp2", "multi_step", "pd"])
def test_a_request_has_a_box_for_every_step_it_was_in(loop: str) -> None:
    trace = replace(RECIPES["decode" if loop == "overlap" else "mixed_chunk"], loop=loop).run()
    steps = works(trace)
    rows = {rid: row_of(trace, rid, steps).spans for rid in requests_in(steps)}
    kinds = Counter(item.kind for spans in rows.values() for item in spans)
    ran = [item for item in trace.slices if item.name == "forward"]
    ran = [item for item in ran if item.lane == "stage 0"] or ran
    told = Counter((rid, item.step, item.start) for item in ran for rid in item.rids)
    assert told == Counter(
        (rid, item.data["step"], item.start)
        for rid, spans in rows.items()
        for item in spans
        if item.kind != "waiting"
    )
    assert {*kinds} <= {*SHARES}
    assert kinds["wasted"] == sum(mark.name == "wasted row" for mark in trace.marks)
    assert (kinds["again"] == 1) == (loop == "overlap"), "decode's golden run retracts once"
    for rid, spans in rows.items():
        there = sorted((item.start, item.end) for item in spans)
        assert all(before[1] <= after[0] for before, after in pairwise(there)), rid


# -- who renders -----------------------------------------------------------------------------------

GOOD = "@startuml\na -> b : hello\n@enduml\n"
WRONG = GOOD.replace("@end", "this is no diagram\n@end")
LINKED = (
    "@startuml\nskinparam hyperlinkColor #0B57A4\n"
    "a -> b : [[../x.py#A.f f()]] of it\n"
    "b -> a : [[../y.py#g g]] and [[../x.py#A.f f()]]\n@enduml\n"
)


@pytest.fixture
def diagrams(tmp_path: Path) -> Path:
    """A good and a wrong one."""
    for name, text in {"good": GOOD, "wrong": WRONG}.items():
        (tmp_path / f"{name}.puml").write_text(text, "utf-8")
    return tmp_path


def failure(*paths: Path) -> str:
    """What rendering says when it fails: one sentence."""
    with pytest.raises(RenderError) as caught:
        render(paths)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_renderer_the_message_names_a_remedy(
    diagrams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_puml, "DRIVER", tmp_path / "render.mjs")
    assert failure(diagrams / "good.puml") == ADVICE


@pytest.mark.usefixtures("plantuml")
def test_the_pinned_renderer_draws_links_and_says_which_line_is_wrong(diagrams: Path) -> None:
    good, wrong, two = (diagrams / f"{name}.puml" for name in ("good", "wrong", "two"))
    said = failure(good, wrong)
    assert re.search(r'wrong\.puml .* in line 3, near "this is no diagram"\.$', said), said
    two.write_text(LINKED.replace("y.py#g g", "y.py#g f()"), "utf-8")
    assert 'two.puml: "f()" links to ../x.py#A.f and to ../y.py#g.' in failure(two)
    two.write_text(LINKED, "utf-8")
    (picture,) = render([two])
    hrefs = re.findall(r'<a href="([^"]*)" target="_top"><title>([^<]*)<', picture)
    first = ("../x.py#A.f", "x.py: A.f")
    assert hrefs == [first, ("../y.py#g", "y.py: g"), first]


@pytest.mark.usefixtures("plantuml")
def test_every_golden_view_renders_with_names_that_look_like_markup(tmp_path: Path) -> None:
    paths = []
    for topic in TOPICS:
        recipe = RECIPES[topic]
        odd = [replace(req, rid=f'"<b>\\n{req.rid}') for req in recipe.requests]
        try:
            text = draw(topic, replace(recipe, requests=odd).run(), "puml")
        except ValueError:
            continue  # it has no PlantUML form
        paths.append(tmp_path / f"{topic}.puml")
        paths[-1].write_text(text, "utf-8")
    assert len(paths) > 20
    for path, picture in zip(paths, render(paths), strict=True):
        words = " ".join(ElementTree.fromstring(picture).itertext())
        assert "rror" not in words and "not supported" not in words, path.stem
        if TOPICS[path.stem].startswith(("memory/", "policy/")):
            assert '"<b>\\n' in words.replace("\N{NO-BREAK SPACE}", " "), path.stem
