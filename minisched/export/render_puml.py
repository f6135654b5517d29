"""PlantUML text to SVG: who renders, and whether it went well.

A server that was named (``--server`` or ``PLANTUML_SERVER``) wins. Without one it is the pinned
renderer, which needs Node and no Java, and where that is not installed a ``plantuml`` command. Only
the pinned one gives the same bytes everywhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from html import unescape
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

# -- The error that all renderers share ------------------------------------------------------------


class RenderError(RuntimeError):
    """A diagram could not be rendered; the message is one sentence."""


# -- Renders PlantUML on this machine: with the pinned driver in Node, or a command ----------------

JAVA_ERROR = re.compile(r"Error line (\d+) in file: (.+)")


def render_by_driver(driver: Path, paths: Sequence[Path], folder: Path) -> None:
    """The pinned renderer, ``diagrams/render/render.mjs``: it stops at the first that is wrong.

    Raises:
        RenderError: Node or its packages are missing, or a diagram is wrong.
    """
    node = shutil.which("node") or "node"
    done = _run([node, str(driver), "--out", str(folder), *map(str, paths)])
    if done.returncode:
        raise RenderError(_first_line(done) or "the pinned renderer failed and says nothing.")


def render_by_command(command: str, paths: Sequence[Path], folder: Path) -> None:
    """A PlantUML in Java; the answer does not depend on the machine's clock or metadata.

    Raises:
        RenderError: it cannot be run, or a diagram is wrong.
    """
    done = _run([command, "-tsvg", "-nometadata", "-o", str(folder), *map(str, paths)])
    if done.returncode:
        if found := JAVA_ERROR.search(done.stderr + done.stdout):
            name = Path(found[2].strip()).name
            raise RenderError(f"{name} is not a PlantUML diagram: an error in line {found[1]}.")
        why = _first_line(done) or f"it ended with code {done.returncode} and says nothing"
        raise RenderError(f"PlantUML ({Path(command).name}) failed: {why}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RenderError(f"{command[0]} cannot be run: {error.strerror}.") from error


def _first_line(done: subprocess.CompletedProcess[str]) -> str:
    """What it says first; some write as for a page (``--&gt;``)."""
    return unescape(next(iter((done.stderr or done.stdout).strip().splitlines()), ""))


# -- Renders PlantUML on a server that the user named, and on no other -----------------------------
#
# Through the ``plantuml`` package (extra ``plot``), whose own default is the public server: here
# the address is always the user's, such as ``http://127.0.0.1:8080/plantuml``, which a jar gives
# with ``java -jar plantuml.jar -picoweb:8080:127.0.0.1``.

SECONDS = 30  # until a server that does not answer is given up


def render_by_server(server: str, paths: Sequence[Path], folder: Path) -> None:
    """Send each text in an address of its own, and keep the SVG that comes back.

    Raises:
        RenderError: the address is none, the package is missing, the server does not answer, or it
            refuses a diagram.
    """
    client = _client(svg_address(server))
    for path in paths:
        url = client.get_url(path.read_text(encoding="utf-8"))
        try:
            # Not ``client.processes``: it stumbles over its own error, and its reason is lost.
            response, content = client.http.request(url)
        except (OSError, client.HttpLib2Error) as error:
            raise RenderError(f"the PlantUML server {server} does not answer: {error}.") from error
        _check_url(server, path, response, content)
        (folder / f"{path.stem}.svg").write_bytes(content)


def svg_address(server: str) -> str:
    """Where a server takes texts that it is to draw as SVG.

    Raises:
        RenderError: it is no address of the web.
    """
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise RenderError(
            f"{server!r} is no address of a PlantUML server; "
            "it must be one such as http://127.0.0.1:8080/plantuml."
        )
    return f"{server.rstrip('/').removesuffix('/svg')}/svg/"


def _client(address: str) -> Any:
    """The package's client."""
    try:
        package: Any = import_module("plantuml")
    except ImportError as error:
        raise RenderError(
            "a PlantUML server needs the package `plantuml`: pip install 'minisched[plot]'."
        ) from error
    return package.PlantUML(url=address, http_opts={"timeout": SECONDS})


def _check_url(server: str, path: Path, response: Any, content: bytes) -> None:
    """A wrong diagram is answered with a picture of the error; the headers say what it is."""
    if what := response.get("x-plantuml-diagram-error"):
        line = response.get("x-plantuml-diagram-error-line", "")
        where = f" in line {line}" if line else ""
        raise RenderError(f"{path.name} is not a PlantUML diagram: {_short(what)}{where}.")
    if response.status != 200:
        raise RenderError(f"the PlantUML server {server} refused {path.name}: {response.status}.")
    if b"<svg" not in content[:1000]:
        raise RenderError(f"the PlantUML server {server} answered {path.name} with no SVG.")


def _short(what: str) -> str:
    return unescape(what.partition(" (")[0])


__all__ = ["RenderError", "find_renderer", "has_driver", "render", "render_pinned"]

Renderer = Callable[[Sequence[Path], Path], None]
"""Renders files into a folder, each to an SVG of its own name. Raises RenderError."""

DRIVER = Path(__file__).resolve().parents[2] / "diagrams" / "render" / "render.mjs"
ADVICE = (
    "no PlantUML renderer was found; run `npm ci` in diagrams/render of a checkout (needs Node 18 "
    "or newer), install a `plantuml` command of 2025 or newer, or name a server with --server or "
    "PLANTUML_SERVER."
)
MISTAKES = (  # what a picture of an error says
    "Syntax Error",
    "Assumed diagram type",
    "not supported by this release",
    "Cannot find Graphviz",
)


def has_driver() -> bool:
    """Whether the pinned renderer is installed: its SVGs are the same bytes on every machine."""
    return (DRIVER.parent / "node_modules").is_dir() and shutil.which("node") is not None


def find_renderer(server: str = "") -> Renderer:
    """What renders here; ``server`` is the address of one that the user named.

    Raises:
        RenderError: there is none (the message says what to install), or the one chosen cannot be.
    """
    if server := server or os.environ.get("PLANTUML_SERVER", ""):
        return partial(render_by_server, server)
    if has_driver():
        return partial(render_by_driver, DRIVER)
    if plantuml := shutil.which("plantuml"):
        return partial(render_by_command, plantuml)
    raise RenderError(ADVICE)


def render(puml_paths: Sequence[Path], out: Path | None = None, server: str = "") -> list[Path]:
    """Render each file to an SVG of the same name, beside it or in the folder ``out``.

    If one of them is wrong, nothing is written. ``server`` goes before every other renderer.

    Raises:
        RenderError: there is no renderer, or a diagram is wrong.
    """
    return _render(puml_paths, out, find_renderer(server)) if puml_paths else []


def render_pinned(puml_paths: Sequence[Path], out: Path | None = None) -> list[Path]:
    """The same with the pinned renderer, whatever else was chosen.

    Raises:
        RenderError: a diagram is wrong.
    """
    return _render(puml_paths, out, partial(render_by_driver, DRIVER)) if puml_paths else []


def _render(puml_paths: Sequence[Path], out: Path | None, renderer: Renderer) -> list[Path]:
    pictures = [(out or path.parent) / f"{path.stem}.svg" for path in puml_paths]
    with TemporaryDirectory() as name:
        folder = Path(name)
        renderer([path.resolve() for path in puml_paths], folder)
        for path in puml_paths:
            _check(path, folder / f"{path.stem}.svg")
        for picture in pictures:
            shutil.copyfile(folder / picture.name, picture)
    return pictures


def _check(path: Path, picture: Path) -> None:
    """A renderer may call a picture of an error a success."""
    if not picture.is_file():
        raise RenderError(f"{path.name} was refused: there is no picture of it.")
    text = picture.read_text(encoding="utf-8").replace("\xa0", " ").replace("&#160;", " ")
    for mistake in MISTAKES:
        if mistake in text:
            raise RenderError(f"{path.name} was refused: {mistake}.")
