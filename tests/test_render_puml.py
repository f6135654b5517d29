"""Every way to render a diagram: what is asked, what comes back, and how a mistake is told."""

from __future__ import annotations

import base64
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from minisched.cli.diagrams import run_diagrams
from minisched.export import render_puml
from minisched.export.render_puml import ADVICE, RenderError, find_renderer, has_driver, render

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
    """A folder of its own, with a good diagram and a wrong one."""
    folder = tmp_path / "diagrams"
    folder.mkdir()
    (folder / "good.puml").write_text(GOOD)
    (folder / "wrong.puml").write_text(WRONG)
    return folder


def failure(*paths: Path, server: str = "") -> str:
    """What rendering says when it fails: one sentence, and no picture is left behind."""
    with pytest.raises(RenderError) as caught:
        render(paths, server=server)
    assert not list(paths[0].parent.glob("*.svg"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- the pinned renderer -----------------------------------------------------------------------


@pytest.mark.usefixtures("plantuml")
def test_the_pinned_renderer_draws_and_says_which_line_is_wrong(diagrams: Path) -> None:
    assert has_driver()
    good, wrong = diagrams / "good.puml", diagrams / "wrong.puml"
    said = failure(good, wrong)
    assert re.search(r'wrong\.puml .* in line 3, near "this is no diagram"\.$', said), said
    assert render([good]) == [good.with_suffix(".svg")]
    assert "hello" in good.with_suffix(".svg").read_text()


@pytest.mark.usefixtures("plantuml")
def test_a_mistake_that_is_no_syntax_error_fails_too(diagrams: Path) -> None:
    """PlantUML draws a picture of this one that does not say Syntax Error."""
    colour = diagrams / "colour.puml"
    colour.write_text('@startuml\nconcise "A" as a\n@0\na is x #nocolour\n@enduml\n')
    assert re.search(r"No such color in line 4", failure(colour))
    assert not colour.with_suffix(".svg").exists()


@pytest.mark.usefixtures("plantuml")
def test_the_pinned_renderer_makes_links(diagrams: Path) -> None:
    """PlantUML's build for Node drops them; a label that leads to two places is refused."""
    (diagrams / "links.puml").write_text(LINKED)
    (picture,) = render([diagrams / "links.puml"])
    hrefs = re.findall(r'<a href="([^"]*)" target="_top"><title>([^<]*)<', picture.read_text())
    assert hrefs == [("../x.py#A.f", "x.py: A.f"), ("../y.py#g", "y.py: g"),
                     ("../x.py#A.f", "x.py: A.f")]  # fmt: skip
    picture.unlink()
    two = diagrams / "two.puml"
    two.write_text(LINKED.replace("y.py#g g", "y.py#g f()"))
    assert 'two.puml: "f()" links to ../x.py#A.f and to ../y.py#g.' in failure(two)
    two.write_text(LINKED.replace("skinparam hyperlinkColor #0B57A4\n", ""))
    assert "needs a line" in failure(two)


# -- who renders -------------------------------------------------------------------------------


@pytest.fixture
def no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the pinned renderer; what lies in the folder given is on its path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(render_puml, "DRIVER", tmp_path / "render.mjs")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_without_a_renderer_a_sentence_says_what_to_install(no_node: Path, diagrams: Path) -> None:
    assert failure(diagrams / "good.puml") == ADVICE
    assert render([]) == []


def test_an_explicit_choice_wins(
    no_node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is: a server in the call, in the environment, a jar, Node, a command."""
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


# -- a command, and a jar ----------------------------------------------------------------------

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


def script(path: Path, text: str) -> Path:
    """An executable file in Python."""
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_a_plantuml_command(no_node: Path, diagrams: Path) -> None:
    script(no_node / "plantuml", FAKE)
    good, wrong = diagrams / "good.puml", diagrams / "wrong.puml"
    assert render([good]) == [good.with_suffix(".svg")]
    assert good.with_suffix(".svg").read_text() == "<svg>fine</svg>"
    asked = (no_node / "asked").read_text()
    assert re.fullmatch(rf"-tsvg -nometadata -o \S+ {re.escape(str(good))}", asked)
    good.with_suffix(".svg").unlink()
    said = failure(good, wrong)
    assert said == "wrong.puml is not a PlantUML diagram: an error in line 3."
    (diagrams / "odd.puml").write_text((diagrams / "wrong.puml").read_text())
    assert failure(diagrams / "odd.puml").endswith(' failed: a line with -->> "b"')


def test_an_error_that_is_called_a_success(no_node: Path, diagrams: Path) -> None:
    """Debian's old PlantUML draws the error and exits with 0."""
    script(no_node / "plantuml", FAKE)
    quiet = (diagrams / "wrong.puml").rename(diagrams / "quiet.puml")
    assert failure(quiet) == "quiet.puml was refused: Syntax Error."
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


# -- a server ----------------------------------------------------------------------------------

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
                self.send_header(
                    "X-PlantUML-Diagram-Error", "Syntax Error? a --&gt;&gt; b (Assumed diagram: x)"
                )
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


@pytest.mark.parametrize("end", ["", "/", "/svg", "/svg/"])
def test_a_server_that_the_user_names(diagrams: Path, server: Server, end: str) -> None:
    good = diagrams / "good.puml"
    assert render([good], server=server.address + end) == [good.with_suffix(".svg")]
    assert good.with_suffix(".svg").read_text() == f"<svg>{len(GOOD)} letters</svg>"
    (path,) = server.asked
    assert path.startswith("/plantuml/svg/") and decoded(path) == GOOD


def test_a_server_that_refuses(diagrams: Path, server: Server) -> None:
    good, wrong, odd = (diagrams / f"{name}.puml" for name in ("good", "wrong", "odd"))
    said = failure(good, wrong, server=server.address)
    assert said == "wrong.puml is not a PlantUML diagram: Syntax Error? a -->> b in line 3."
    other = server.address.replace("plantuml", "elsewhere")
    said = failure(good, server=other)
    assert said == f"the PlantUML server {other} refused good.puml: 404."
    odd.write_text(GOOD.replace("hello", "odd"))
    assert failure(odd, server=server.address).endswith("answered odd.puml with no SVG.")


def test_a_server_that_is_not_there(diagrams: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = diagrams / "good.puml"
    nobody = "http://127.0.0.1:9/plantuml"
    assert failure(good, server=nobody).startswith(
        f"the PlantUML server {nobody} does not answer: "
    )
    for address in ("nonsense", "127.0.0.1:8080", "ftp://here", "http://"):
        assert failure(good, server=address).startswith(f"{address!r} is no address of a PlantUML")
    monkeypatch.setitem(sys.modules, "plantuml", None)
    assert "pip install 'minisched[plot]'" in failure(good, server=nobody)


# -- the command -------------------------------------------------------------------------------


def test_the_command_renders_on_a_server(
    diagrams: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    root = diagrams.parent
    assert run_diagrams(["good"], False, True, root, server.address) == 0
    assert (diagrams / "good.svg").read_text().startswith(f"<svg>{len(GOOD)} letters</svg>\n<!-- ")
    assert run_diagrams(["wrong"], False, True, root, server.address) == 2
    assert not (diagrams / "wrong.svg").exists()
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "minisched: wrong.puml is not a PlantUML diagram: Syntax Error? a -->> b in line 3."
    ]
    for check, svg, option in ((True, True, "--check"), (False, False, "--no-svg")):
        with pytest.raises(ValueError, match=f"so it cannot be used with {option}"):
            run_diagrams(["good"], check, svg, root, server.address)


@pytest.mark.usefixtures("plantuml")
def test_a_check_is_about_the_pinned_renderer(
    diagrams: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has chosen a server may still check what the repository keeps."""
    root = diagrams.parent
    assert run_diagrams(["good"], False, True, root) == 0
    monkeypatch.setenv("PLANTUML_SERVER", server.address)
    assert run_diagrams(["good"], True, True, root) == 0 and not server.asked
    assert run_diagrams(["good"], False, True, root) == 0 and len(server.asked) == 1
    assert run_diagrams(["good"], True, True, root) == 1
