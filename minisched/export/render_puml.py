"""PlantUML text to SVG: the renderers, their errors, and the look on dark paper.

A server named by ``--server`` or ``PLANTUML_SERVER`` has precedence. Without one it is the pinned
renderer, which needs Node but no Java. Only the pinned renderer gives the same bytes everywhere.
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

from .looks import DARK, LOOKS, ON_DARK, look

Renderer = Callable[[Sequence[Path], Path], None]
"""Renders files into a folder, each to an SVG of its own name. Raises RenderError."""

DRIVER = Path(__file__).resolve().parents[2] / "diagrams" / "render" / "render.mjs"
ADVICE = (
    "no PlantUML renderer was found; run `npm ci` in diagrams/render of a checkout (needs Node 18 "
    "or newer), or name a server with --server or PLANTUML_SERVER."
)
MISTAKES = (  # texts in a picture of an error
    "Syntax Error",
    "Assumed diagram type",
    "not supported by this release",
    "Cannot find Graphviz",
)


class RenderError(RuntimeError):
    """A diagram could not be rendered; the message is one sentence."""


# -- Renderers -------------------------------------------------------------------------------------


def has_driver() -> bool:
    """Return whether the pinned renderer is installed: its SVGs are the same on every machine."""
    return (DRIVER.parent / "node_modules").is_dir() and shutil.which("node") is not None


def find_renderer(server: str = "") -> Renderer:
    """Return the renderer to use; ``server`` is the address that the user named.

    Raises:
        RenderError: there is none (the message names a remedy), or the one chosen is unusable.
    """
    if server := server or os.environ.get("PLANTUML_SERVER", ""):
        return partial(render_by_server, server)
    if has_driver():
        return render_by_driver
    raise RenderError(ADVICE)


def render(
    puml_paths: Sequence[Path], out: Path | None = None, renderer: Renderer | None = None
) -> list[Path]:
    """Render each file to an SVG of the same name, in its folder or in ``out``.

    If one of them is wrong, nothing is written.

    Raises:
        RenderError: there is no renderer, or a diagram is wrong.
    """
    if not puml_paths:
        return []
    pictures = [(out or path.parent) / f"{path.stem}.svg" for path in puml_paths]
    with TemporaryDirectory() as name:
        folder = Path(name)
        (renderer or find_renderer())([path.resolve() for path in puml_paths], folder)
        for path in puml_paths:
            _check(path, folder / f"{path.stem}.svg")
        for picture in pictures:
            shutil.copyfile(folder / picture.name, picture)
    return pictures


def _check(path: Path, picture: Path) -> None:
    """Refuse a picture of an error, which a renderer may report as a success."""
    if not picture.is_file():
        raise RenderError(f"{path.name} was refused: there is no picture of it.")
    text = picture.read_text(encoding="utf-8").replace("\xa0", " ").replace("&#160;", " ")
    for mistake in MISTAKES:
        if mistake in text:
            raise RenderError(f"{path.name} was refused: {mistake}.")


def render_by_driver(paths: Sequence[Path], folder: Path) -> None:
    """Render with the pinned ``diagrams/render/render.mjs``, which stops at the first error.

    Raises:
        RenderError: a diagram is wrong.
    """
    command = [shutil.which("node") or "node", str(DRIVER), "--out", str(folder), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:  # its messages are escaped as HTML: ``--&gt;``
        said = unescape(next(iter((done.stderr or done.stdout).strip().splitlines()), ""))
        raise RenderError(said or "the pinned renderer failed without a message.")


# -- Only a server that the user named -------------------------------------------------------------
#
# Through the ``plantuml`` package (extra ``plot``). Its default is the public server, but here
# the address is always the user's, such as ``http://127.0.0.1:8080/plantuml``, which a jar gives
# with ``java -jar plantuml.jar -picoweb:8080:127.0.0.1``.

SECONDS = 30  # until a server without an answer counts as failed


def render_by_server(server: str, paths: Sequence[Path], folder: Path) -> None:
    """Send each text in an address of its own, and keep the returned SVG.

    Raises:
        RenderError: the address is none, the package is missing, the server does not answer, or it
            refuses a diagram.
    """
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise RenderError(
            f"{server!r} is no address of a PlantUML server; "
            "it must be one such as http://127.0.0.1:8080/plantuml."
        )
    try:
        package: Any = import_module("plantuml")
    except ImportError as error:
        raise RenderError(
            "a PlantUML server needs the package `plantuml`: pip install 'minisched[plot]'."
        ) from error
    address = f"{server.rstrip('/').removesuffix('/svg')}/svg/"
    client = package.PlantUML(url=address, http_opts={"timeout": SECONDS})
    for path in paths:
        url = client.get_url(path.read_text(encoding="utf-8"))
        try:
            # Not ``client.processes``: its error handling fails, and the reason is lost.
            response, content = client.http.request(url)
        except (OSError, client.HttpLib2Error) as error:
            raise RenderError(f"the PlantUML server {server} does not answer: {error}.") from error
        _check_url(server, path, response, content)
        (folder / f"{path.stem}.svg").write_bytes(content)


def _check_url(server: str, path: Path, response: Any, content: bytes) -> None:
    """Refuse a wrong diagram: the answer is a picture of the error, and headers describe it."""
    if what := response.get("x-plantuml-diagram-error"):
        line = response.get("x-plantuml-diagram-error-line", "")
        where = f" in line {line}" if line else ""
        reason = unescape(what.partition(" (")[0])
        raise RenderError(f"{path.name} is not a PlantUML diagram: {reason}{where}.")
    if response.status != 200:
        raise RenderError(f"the PlantUML server {server} refused {path.name}: {response.status}.")
    if b"<svg" not in content[:1000]:
        raise RenderError(f"the PlantUML server {server} answered {path.name} with no SVG.")


# -- On dark paper ---------------------------------------------------------------------------------

COLOUR = re.compile(r'(fill|stroke)="(#[0-9A-Fa-f]{6})"')
ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
ROUNDED = 0.5  # pixels: more than the rounding error between two neighbouring cells
MEANT = {kind.fill for kind in LOOKS.values()} - {look(kind).fill for kind in ON_DARK}


def in_dark_too(svg: str) -> str:
    """Return PlantUML's picture with a style for readers in dark mode.

    The picture's own style sheet has a rule for each colour that occurs. PlantUML writes colours as
    attributes, which a style sheet overrides. A box with a look and its words keep their colours,
    because a colour means the same on any paper.
    """
    inside = (0.0, 0.0, 0.0, 0.0)

    def keep(found: re.Match[str]) -> str:
        """Mark a box with a look, and the words in it: their colours stay."""
        nonlocal inside
        said = dict(ATTRIBUTE.findall(found[0]))
        if found[1] == "rect" and said.get("fill") in MEANT:
            x, y, width, height = (float(said[name]) for name in ("x", "y", "width", "height"))
            inside = x, y, x + width, y + height
        elif found[1] == "rect" or not (
            inside[0] <= float(said["x"]) + ROUNDED < inside[2]
            and inside[1] < float(said["y"]) <= inside[3]
        ):
            return found[0]
        return found[0].replace(found[1], f'{found[1]} class="kept"', 1)

    svg = re.sub(r"<(rect|text) [^>]*>", keep, svg)
    rules = "".join(
        f'[{name}="{colour}"]:not(.kept){{{name}:{dark(colour, name)}}}'
        for name, colour in sorted(set(COLOUR.findall(svg)))
    )
    style = f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
    return re.sub(r"^<svg[^>]*>", lambda found: found[0] + style, svg, count=1)


def dark(colour: str, name: str) -> str:
    """Return a colour as bright as it was dark, with its hue; paper and ink come from ``looks``.

    A background of dark words becomes even darker, because its words become light.
    """
    paper, ink = parts_of_colour(DARK["paper"]), parts_of_colour(DARK["ink"])
    parts = parts_of_colour(colour)
    was = sum(part * share for part, share in zip(parts, (0.213, 0.715, 0.072), strict=True))
    bright = (1 - was) * (0.6 if name == "fill" and was > 0.4 else 1)
    turned = [min(1.0, max(0.0, part + bright - was)) for part in parts]
    placed = (low + part * (high - low) for low, part, high in zip(paper, turned, ink, strict=True))
    return "#" + "".join(f"{round(255 * part):02X}" for part in placed)


def parts_of_colour(colour: str) -> tuple[float, ...]:
    """Return red, green and blue of ``#RRGGBB``, from 0 to 1."""
    return tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
