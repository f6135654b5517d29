"""PlantUML: a design's story is told in its run's order; and every way to have a diagram rendered,
what is asked, what comes back, and how a mistake is told."""

from __future__ import annotations

import base64
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import pytest

from minisched.cli.diagrams import run_diagrams
from minisched.devices.cost import MILLISECOND
from minisched.export import render_puml
from minisched.export.layout import make_view
from minisched.export.palette import SHARES
from minisched.export.pictures.runs import run_of
from minisched.export.puml_story import to_story
from minisched.export.puml_style import creole
from minisched.export.recipes import recipes
from minisched.export.render_puml import ADVICE, RenderError, find_renderer, has_driver, render
from minisched.export.requests_view import requests_view
from minisched.export.story import Actor, Story, events
from minisched.export.views import draw
from minisched.export.views.puml_stays import stays_to_puml
from minisched.topics import TOPICS
from minisched.trace import Edge, Mark, Slice, Trace

# -- stories ---------------------------------------------------------------------------------------

ABOUT = {1: ("decode", ("a", "b")), 2: ("decode", ("a",))}
SLICES = (
    (1, "host", "launch", 0, 5, 1), (2, "forward", "forward", 5, 20, 1),
    (3, "host", "launch", 6, 9, 2), (4, "host", "wait", 9, 21, 1),
    (5, "forward", "forward", 20, 30, 2), (6, "host", "process", 21, 25, 1),
    (7, "host", "process", 31, 32, 2), (8, "host", "output", 32, 33, 2),
    (9, "forward", "sample", 33, 34, 2),
)  # fmt: skip
TRACE = Trace(
    "two steps", "sim", "hash", "virtual",
    tuple(Slice(at, lane, name, start * MILLISECOND, end * MILLISECOND, step, *ABOUT[step])
          for at, lane, name, start, end, step in SLICES),
    (Edge(2, 5, "token"),), (),
    (Mark("slots", 5 * MILLISECOND, {"step": 1, "slots": "3 4"}),
     Mark("slots", 9 * MILLISECOND, {"step": 2, "slots": "5", "kind": "late"})),
)  # fmt: skip
STORY = Story(
    {"cpu": Actor("Host", "host"), "gpu": Actor("Device", "device")},
    {
        "launch": ["cpu: launch {step}\n{ms} ms"],
        "put": ["cpu ->> gpu: {step}, queue {queue}"],
        "forward": ["gpu: {mode} {step} of {rids} into {slots}"],
        "relay": ["gpu -> gpu: {src} to {step}"],
        "take": ["gpu --> cpu: {step}, left {queue}"],
        "process end": ["cpu -> cpu: done {step} after {before} at {at}"],
        "host process": ["cpu: process {step}"],
        "output": ["cpu: output {step}"],
        "sample": ["gpu: sample {step}"],
        "mark slots late": ["cpu -> cpu: {step} is late"],
    },
)


def test_a_story_is_told_in_the_run_s_order_with_the_run_s_numbers() -> None:
    text = to_story(TRACE, STORY, 1, 2, "A title")
    text = re.sub(r"</?color[^>]*>| #\w+(?= :)", "", text)
    assert "title A title\\ntwo steps on sim: steps 1 to 2, 34 ms; time runs down" in text
    assert text[text.rindex("end box") :].splitlines()[1:-1] == [
        "rnote over cpu : launch 1\\n5 ms",
        "cpu ->> gpu : 1, queue 1",
        "rnote over gpu : decode 1 of a, b into 3 4",
        "& rnote over cpu : launch 2\\n3 ms",  # while the device runs 1
        "cpu ->> gpu : 2, queue 1 2",
        "gpu --> cpu : 1, left 2",
        "cpu -> cpu : 2 is late",
        "gpu -> gpu : 1 to 2",
        "rnote over gpu : decode 2 of a into 5",
        "& rnote over cpu : process 1",
        "cpu -> cpu : done 1 after 0 at 25",
        "gpu --> cpu : 2, left empty",
        "rnote over cpu : process 2",
        "cpu -> cpu : done 2 after 1 at 32",
        "rnote over cpu : output 2",
        "rnote over gpu : sample 2",  # not beside it: it has ended
    ]


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
    trace = replace(recipes()["decode" if loop == "overlap" else "mixed_chunk"], loop=loop).run()
    view = requests_view(trace)
    mine = [box for box in view.boxes if box.lane.side == "request"]
    lanes = {item.lane for item in trace.slices if item.name == "forward"}
    first = {"stage 0"} if "stage 0" in lanes else lanes
    assert Counter(
        (box.lane.name, box.step, box.slice.start) for box in mine if box.slice.name != "waiting"
    ) == Counter(
        (rid, item.step, item.start)
        for item in trace.slices
        if item.name == "forward" and item.lane in first
        for rid in item.rids
    )
    names = Counter(box.slice.name for box in mine)
    assert {*names} <= {*SHARES} and view.bubbles == make_view(trace).bubbles
    assert names["wasted"] == sum(mark.name == "wasted row" for mark in trace.marks)
    assert (names["again"] == 1) == (loop == "overlap"), "decode's golden run retracts once"
    for lane in view.lanes:
        spans = sorted((box.slice.start, box.slice.end) for box in view.on(lane))
        assert all(before[1] <= after[0] for before, after in pairwise(spans)), lane


# -- who renders -----------------------------------------------------------------------------------

GOOD = "@startuml\na -> b : hello\n@enduml\n"
WRONG = "@startuml\na -> b : hello\nthis is no diagram\n@enduml\n"
LINKED = (
    "@startuml\nskinparam hyperlinkColor #0B57A4\n"
    "a -> b : [[../x.py#A.f f()]] of it\n"
    "b -> a : [[../y.py#g g]] and [[../x.py#A.f f()]]\n@enduml\n"
)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own settings choose no renderer here."""
    for name in ("PLANTUML_SERVER", "PLANTUML_JAR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def diagrams(tmp_path: Path) -> Path:
    """A folder of its own, with diagrams good and wrong."""
    folder = tmp_path / "diagrams"
    folder.mkdir()
    for name, text in {"good": GOOD, "wrong": WRONG, "quiet": WRONG, "odd": WRONG}.items():
        (folder / f"{name}.puml").write_text(text)
    return folder


@pytest.fixture
def no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the pinned renderer; what lies in the folder given is on its path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(render_puml, "DRIVER", tmp_path / "render.mjs")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def failure(*paths: Path, server: str = "") -> str:
    """What rendering says when it fails: one sentence, and no picture is left behind."""
    with pytest.raises(RenderError) as caught:
        render(paths, server=server)
    assert not list(paths[0].parent.glob("*.svg")) and "\n" not in str(caught.value)
    return str(caught.value)


def script(path: Path, text: str) -> Path:
    """An executable file in Python."""
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


FAKE = """
import pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
(pathlib.Path(__file__).parent / "asked").write_text(" ".join(sys.argv[1:]))
for name in sys.argv[sys.argv.index("-o") + 2:]:
    text = pathlib.Path(name).read_text()
    words = "Syntax&#160;Error?" if "no diagram" in text else "fine"
    (out / name.split("/")[-1].replace(".puml", ".svg")).write_text(f"<svg>{words}</svg>")
    if "no diagram" in text and "quiet" not in name:
        if "odd" in name:
            sys.exit("a line with --&gt;&gt; &quot;b&quot;")
        print("Error line 3 in file:", name, file=sys.stderr)
        print("Some diagram description contains errors", file=sys.stderr)
        sys.exit(200)
"""


def test_the_order_of_renderers_is_from_what_was_asked_to_what_is_there(
    no_node: Path, tmp_path: Path, diagrams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failure(diagrams / "good.puml") == ADVICE and render([]) == []
    chosen = []
    for name in ("render_by_server", "render_by_command", "render_by_driver"):
        monkeypatch.setattr(render_puml, name, lambda *args, name=name: chosen.append((name, args)))
    monkeypatch.setattr(render_puml, "jar_command", lambda jar: ["java", jar])

    def now(server: str = "") -> tuple[str, object]:
        find_renderer(server)([], tmp_path)
        name, args = chosen.pop()
        return name, args[0]

    script(no_node / "plantuml", "")
    assert now() == ("render_by_command", [str(no_node / "plantuml")])
    monkeypatch.setattr(render_puml, "has_driver", lambda: True)
    assert now() == ("render_by_driver", tmp_path / "render.mjs")
    monkeypatch.setenv("PLANTUML_JAR", "my.jar")
    assert now() == ("render_by_command", ["java", "my.jar"])
    monkeypatch.setenv("PLANTUML_SERVER", "http://one")
    assert now() == ("render_by_server", "http://one")
    assert now("http://two") == ("render_by_server", "http://two")


def test_a_plantuml_command(no_node: Path, diagrams: Path) -> None:
    good, wrong, odd, quiet = (diagrams / f"{n}.puml" for n in ("good", "wrong", "odd", "quiet"))
    script(no_node / "plantuml", FAKE)
    assert render([good]) == [good.with_suffix(".svg")]
    assert good.with_suffix(".svg").read_text() == "<svg>fine</svg>"
    asked = (no_node / "asked").read_text()
    assert re.fullmatch(rf"-tsvg -nometadata -o \S+ {re.escape(str(good))}", asked)
    good.with_suffix(".svg").unlink()
    assert failure(good, wrong) == "wrong.puml is not a PlantUML diagram: an error in line 3."
    assert failure(odd).endswith(' failed: a line with -->> "b"')
    assert failure(quiet) == "quiet.puml was refused: Syntax Error."  # Debian's old one exits by 0
    script(no_node / "plantuml", "")
    assert failure(quiet) == "quiet.puml was refused: there is no picture of it."
    script(no_node / "plantuml", "import sys; sys.exit('no display')")
    assert failure(quiet) == "PlantUML (plantuml) failed: no display"


def test_a_jar(
    no_node: Path, diagrams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "plantuml.jar"
    monkeypatch.setenv("PLANTUML_JAR", str(jar))
    good, wrong = diagrams / "good.puml", diagrams / "wrong.puml"
    assert failure(good) == f"PLANTUML_JAR is {str(jar)!r}, but there is no such file."
    jar.write_text("")
    assert failure(good).endswith("there is no `java` command to run it.")
    script(no_node / "java", FAKE)
    assert failure(wrong) == "wrong.puml is not a PlantUML diagram: an error in line 3."
    assert render([good], tmp_path) == [tmp_path / "good.svg"]
    asked = (no_node / "asked").read_text()
    assert asked.startswith(f"-Djava.awt.headless=true -jar {jar} -tsvg -nometadata -o ")


STANDARD = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
PLANTUMLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"


def decoded(path: str) -> str:
    """The text that an address of a PlantUML server carries."""
    code = path.rpartition("/")[2].translate(str.maketrans(PLANTUMLS, STANDARD))
    return zlib.decompress(base64.b64decode(code + "=" * (-len(code) % 4)), -15).decode()


@dataclass
class Server:
    """A PlantUML server on this machine, and what it was asked for."""

    address: str
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    """Answers as PlantUML's own does: an error has a picture, code 400 and two headers."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.path)
            known = self.path.startswith("/plantuml/svg/")
            text = decoded(self.path) if known else ""
            is_wrong = "no diagram" in text
            self.send_response(400 if is_wrong else 200 if known else 404)
            if is_wrong:
                said = "Syntax Error? a --&gt;&gt; b (Assumed diagram: x)"
                self.send_header("X-PlantUML-Diagram-Error", said)
                self.send_header("X-PlantUML-Diagram-Error-Line", "3")
            self.end_headers()
            picture = "a page" if "odd" in text else f"<svg>{len(text)} letters</svg>"
            self.wfile.write(picture.encode())

        def log_message(self, *args: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=web.serve_forever, args=(0.02,), daemon=True).start()
    yield Server(f"http://127.0.0.1:{web.server_port}/plantuml", heard)
    web.shutdown()
    web.server_close()


def test_a_server_draws_refuses_or_is_not_there(
    diagrams: Path, server: Server, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    good, wrong, odd = (diagrams / f"{name}.puml" for name in ("good", "wrong", "odd"))
    for end in ("", "/", "/svg", "/svg/"):
        assert render([good], server=server.address + end) == [good.with_suffix(".svg")]
        assert good.with_suffix(".svg").read_text() == f"<svg>{len(GOOD)} letters</svg>"
        good.with_suffix(".svg").unlink()
    assert {decoded(path) for path in server.asked} == {GOOD}
    assert failure(good, wrong, server=server.address) == (
        "wrong.puml is not a PlantUML diagram: Syntax Error? a -->> b in line 3."
    )
    other = server.address.replace("plantuml", "elsewhere")
    assert failure(good, server=other) == f"the PlantUML server {other} refused good.puml: 404."
    odd.write_text(GOOD.replace("hello", "odd"))
    assert failure(odd, server=server.address).endswith("answered odd.puml with no SVG.")
    root = diagrams.parent
    assert run_diagrams(["wrong"], False, True, root, server.address) == 2
    assert capsys.readouterr().err.startswith("minisched: wrong.puml is not a PlantUML diagram: ")
    assert run_diagrams(["good"], False, True, root, server.address) == 0
    kept = (diagrams / "good.svg").read_text()
    assert kept.startswith(f"<svg>{len(GOOD)} letters</svg>\n<!-- ")
    for check, svg, option in ((True, True, "--check"), (False, False, "--no-svg")):
        with pytest.raises(ValueError, match=f"so it cannot be used with {option}"):
            run_diagrams(["good"], check, svg, root, server.address)
    (diagrams / "good.svg").unlink()
    nobody = "http://127.0.0.1:9/plantuml"
    assert failure(good, server=nobody).startswith(f"the PlantUML server {nobody} does not answer")
    for address in ("nonsense", "127.0.0.1:8080", "ftp://here", "http://"):
        assert failure(good, server=address).startswith(f"{address!r} is no address of a PlantUML")
    monkeypatch.setitem(sys.modules, "plantuml", None)
    assert "pip install 'minisched[plot]'" in failure(good, server=nobody)


# -- the pinned renderer ---------------------------------------------------------------------------


@pytest.mark.usefixtures("plantuml")
def test_the_pinned_renderer_draws_links_and_says_which_line_is_wrong(
    diagrams: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PlantUML's build for Node drops links; a label that leads to two places is refused."""
    assert has_driver()
    good, wrong, two = (diagrams / f"{name}.puml" for name in ("good", "wrong", "two"))
    said = failure(good, wrong)
    assert re.search(r'wrong\.puml .* in line 3, near "this is no diagram"\.$', said), said
    two.write_text('@startuml\nconcise "A" as a\n@0\na is x #nocolour\n@enduml\n')
    assert re.search(r"No such color in line 4", failure(two)), "no syntax error, but a mistake"
    two.write_text(LINKED.replace("y.py#g g", "y.py#g f()"))
    assert 'two.puml: "f()" links to ../x.py#A.f and to ../y.py#g.' in failure(two)
    two.write_text(LINKED.replace("skinparam hyperlinkColor #0B57A4\n", ""))
    assert "needs a line" in failure(two)
    two.write_text(LINKED)
    (picture,) = render([two])
    hrefs = re.findall(r'<a href="([^"]*)" target="_top"><title>([^<]*)<', picture.read_text())
    first = ("../x.py#A.f", "x.py: A.f")
    assert hrefs == [first, ("../y.py#g", "y.py: g"), first]
    root = diagrams.parent
    assert run_diagrams(["good"], False, True, root) == 0
    monkeypatch.setenv("PLANTUML_SERVER", server.address)  # a check is about the pinned renderer
    assert run_diagrams(["good"], True, True, root) == 0 and not server.asked
    assert run_diagrams(["good"], False, True, root) == 0 and len(server.asked) == 1
    assert run_diagrams(["good"], True, True, root) == 1


@pytest.mark.usefixtures("plantuml")
def test_every_golden_view_renders_with_names_that_look_like_markup(tmp_path: Path) -> None:
    paths = []
    for topic in TOPICS:
        recipe = recipes()[topic]
        odd = [replace(req, rid=f'"<b>\\n{req.rid}') for req in recipe.requests]
        try:
            text = draw(topic, replace(recipe, requests=odd).run(), "puml")
        except ValueError:
            continue  # it has no PlantUML form
        paths.append(tmp_path / f"{topic}.puml")
        paths[-1].write_text(text)
    assert len(paths) > 20
    for picture in render(paths):
        words = " ".join(ElementTree.fromstring(picture.read_text()).itertext())
        assert "rror" not in words and "not supported" not in words, picture.stem
        if TOPICS[picture.stem] in ("memory", "policy"):
            assert '"<b>\\n' in words.replace("\N{NO-BREAK SPACE}", " "), picture.stem


def test_flags_and_titles_are_escaped() -> None:
    puml = stays_to_puml('a "b"', [], 10, {}, [(5, "<b>")])
    title = creole('a "b"')
    assert f"title {title}" in puml and "<b>" not in puml
