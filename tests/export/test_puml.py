"""PlantUML: the figures' phases, a request's boxes, and the pinned renderer with its messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from minisched.export import render_puml
from minisched.export.layout import View, make_view, shown
from minisched.export.looks import SHARES, STEPS, flat
from minisched.export.pictures.stages import row_of, works
from minisched.export.render_puml import ADVICE, RenderError, render
from minisched.export.units import ms
from minisched.export.views import draw
from minisched.export.views.steps import requests_in
from minisched.recipes import RECIPES, recipe, run_of, trace_of
from minisched.topics import TOPICS

ROOT = Path(__file__).resolve().parents[2]

# -- figures of the published sources --------------------------------------------------------------

NOTE = re.compile(r"^(?:& )?rnote over \w+ (#\w{6}) : (.*)\\n(?:<color:#\w+>)?([\d.]+) ms", re.M)
VERBS = {  # of the published sources, by phase
    "process_batch_result": "process", "update_from_output": "process",
    "get_next_batch_to_run": "schedule", "placeholders": "prepare",
    "blocked": "wait", "block": "wait", "synchronize": "wait",
}  # fmt: skip


def figures() -> Iterator[tuple[str, View, int]]:
    """Yield the name of each figure, the time of a run that it shows, and its step N (0: none)."""
    for name, loop in {
        "sglang_cpu_gpu_overlap_event_loop": "overlap",
        "sglang_futuremap_overlap": "future_map",
    }.items():
        view = shown(trace_of(loop), 1)
        yield name, view, view.first_step
    trace = run_of("mindie_plugin")
    step = shown(trace, 1).first_step + 1
    call, answer = (next(it for it in trace.slices if (it.name, it.step) == which)
                    for which in (("prepare", step), ("postprocess", step - 1)))  # fmt: skip
    view = make_view(trace, call.start, answer.end)
    yield "mindie_async_plugin_manager_pipeline", view, step
    trace = run_of("vllm_async")
    turns = [item.start for item in trace.on("host") if item.name == "schedule"]
    yield "vllm_cpu_gpu_overlap_batch_queue", make_view(trace, 0, turns[2]), 1
    trace = recipe("mindie_dual", "s: 0-11 -> 4").run()
    read = next(item for item in trace.slices if item.name == "process")
    yield "mindie_scheduler_placeholder_async", make_view(trace, 0, read.end), 0


@pytest.mark.parametrize(("name", "view", "base"), [*figures()])
def test_a_figure_has_the_phases_of_its_run_in_order(name: str, view: View, base: int) -> None:
    text = (ROOT / "diagrams" / f"{name}.puml").read_text("utf-8")
    notes = [
        (VERBS.get(verb, verb), colour, words, time)
        for colour, words, time in NOTE.findall(text)
        for verb in re.findall(r"^\w+", words)
    ]
    assert len(notes) == len(re.findall(r"\d ms(?:</color>)?$", text, re.M)) >= 5
    ran = [
        item for item in sorted(view.slices, key=lambda item: item.start)
        if item.duration and view.start <= item.start < view.end
        and item.name in {phase for phase, *_ in notes}
    ]  # fmt: skip
    there = [(phase, time) for phase, *_, time in notes]
    assert there == [(it.name, ms(it.duration)) for it in ran]
    for (phase, colour, words, _), item in zip(notes, ran, strict=True):
        told = re.findall(r"\bN(?:[+-]\d+)?" if base else r"\d+", words)
        later = (one.step for one in ran[ran.index(item) :] if one.step)
        number = item.step or next(later)  # a scheduled batch has no number before its launch
        step = f"N{number - base:+d}".replace("N+0", "N") if base else str(number)
        assert not told or told[-1] == step, f"{name}: {phase} {words}"
        kind = f"step {(number - base + bool(base)) % len(STEPS)}"  # N has the colour of step 1
        assert colour == flat("wait" if phase == "wait" else kind), f"{name}: {phase} {words}"
    for time in re.findall(r": idle ([\d.]+) ms", text):
        gaps = pairwise([it for it in view.slices if it.lane == "forward" and it.duration])
        assert time in [ms(after.start - before.end) for before, after in gaps], name
    whole = f"{ms(view.duration)} ms"
    whole = f"N is step {base} of {view.trace.loop} on sim; {whole} are shown" if base else whole
    assert whole in text or name.startswith("vllm"), whole


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
