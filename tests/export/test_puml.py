"""PlantUML: what a story tells of a run, a request's boxes; and who renders it, and how a mistake
is told."""

from __future__ import annotations

import base64
import re
import string
import zlib
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import pytest

from minisched.cli.diagrams import diagrams as regenerate
from minisched.export import golden, render_puml
from minisched.export.looks import SHARES
from minisched.export.pictures.stages import row_of, works
from minisched.export.render_puml import ADVICE, RenderError, find_renderer, render
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
def diagrams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good and a wrong one, on a machine where nothing chooses a renderer."""
    monkeypatch.delenv("PLANTUML_SERVER", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (folder := tmp_path / "diagrams").mkdir()
    for name, text in {"good": GOOD, "wrong": WRONG}.items():
        (folder / f"{name}.puml").write_text(text, "utf-8")
    return folder


def failure(*paths: Path, server: str = "") -> str:
    """What rendering says when it fails: one sentence, and no picture is left behind."""
    with pytest.raises(RenderError) as caught:
        render(paths, renderer=find_renderer(server))
    assert not list(paths[0].parent.glob("*.svg")) and "\n" not in str(caught.value)
    return str(caught.value)


def test_who_renders_nobody_or_no_server(
    diagrams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = diagrams / "good.puml"
    monkeypatch.setattr(render_puml, "DRIVER", tmp_path / "render.mjs")
    assert failure(good) == ADVICE and render([]) == []
    monkeypatch.setenv("PLANTUML_SERVER", "ftp://here")
    assert failure(good).startswith("'ftp://here' is no address of a PlantUML server")
    assert failure(good, server="nonsense").startswith("'nonsense' is no address of a PlantUML")


def decoded(path: str) -> str:
    """The text that an address of a PlantUML server carries."""
    plain = string.digits + string.ascii_uppercase + string.ascii_lowercase + "-_"
    standard = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    code = path.rpartition("/")[2].translate(str.maketrans(plain, standard))
    return zlib.decompress(base64.b64decode(code + "=" * (-len(code) % 4)), -15).decode()


def test_a_named_server_draws_what_is_not_on_disk_yet(diagrams: Path) -> None:
    def new() -> golden.Files:
        return {"diagrams/new.puml": GOOD}

    with pytest.raises(RenderError, match="'nonsense' is no address of a PlantUML"):
        golden.bring_up_to_date(
            ["new"], diagrams.parent, lambda _: None, {"new": new}, server="nonsense"
        )


def test_a_server_draws_refuses_or_is_not_there(diagrams: Path) -> None:
    # as PlantUML's own does: an error has a picture, code 400 and two headers
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_wrong = "no diagram" in (text := decoded(self.path))
            self.send_response(400 if is_wrong else 200)
            if is_wrong:
                said = "Syntax Error? a --&gt;&gt; b (Assumed diagram: x)"
                self.send_header("X-PlantUML-Diagram-Error", said)
                self.send_header("X-PlantUML-Diagram-Error-Line", "3")
            self.end_headers()
            self.wfile.write(f"<svg>{len(text)} letters</svg>".encode())

        def log_message(self, *args: object) -> None:
            pass

    good, wrong = diagrams / "good.puml", diagrams / "wrong.puml"
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        Thread(target=web.serve_forever, args=(0.02,), daemon=True).start()
        server = f"http://127.0.0.1:{web.server_port}/plantuml"
        for end in ("", "/svg/"):
            (picture,) = render([good], renderer=find_renderer(server + end))
            assert picture.read_text("utf-8") == f"<svg>{len(GOOD)} letters</svg>"
            picture.unlink()
        said = "wrong.puml is not a PlantUML diagram: Syntax Error? a -->> b in line 3."
        assert failure(good, wrong, server=server) == said
        web.shutdown()
    with pytest.raises(ValueError, match="so it cannot be used with --check"):
        regenerate(["good"], check=True, svg=True, server=server)
    nobody = "http://127.0.0.1:9/plantuml"
    assert failure(good, server=nobody).startswith(f"the PlantUML server {nobody} does not answer")


@pytest.mark.usefixtures("plantuml")
def test_the_pinned_renderer_draws_links_and_says_which_line_is_wrong(diagrams: Path) -> None:
    good, wrong, two = (diagrams / f"{name}.puml" for name in ("good", "wrong", "two"))
    said = failure(good, wrong)
    assert re.search(r'wrong\.puml .* in line 3, near "this is no diagram"\.$', said), said
    two.write_text(LINKED.replace("y.py#g g", "y.py#g f()"), "utf-8")
    assert 'two.puml: "f()" links to ../x.py#A.f and to ../y.py#g.' in failure(two)
    two.write_text(LINKED, "utf-8")
    (picture,) = render([two])
    hrefs = re.findall(
        r'<a href="([^"]*)" target="_top"><title>([^<]*)<', picture.read_text("utf-8")
    )
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
    for picture in render(paths):
        words = " ".join(ElementTree.fromstring(picture.read_text("utf-8")).itertext())
        assert "rror" not in words and "not supported" not in words, picture.stem
        if TOPICS[picture.stem].startswith(("memory/", "policy/")):
            assert '"<b>\\n' in words.replace("\N{NO-BREAK SPACE}", " "), picture.stem
