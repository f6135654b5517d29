"""PlantUML text to SVG: who renders, and whether it went well.

An explicit choice wins: a server that was named (``--server`` or ``PLANTUML_SERVER``), then
``PLANTUML_JAR``. Without one it is the pinned renderer, which needs Node and no Java, and where
that is not installed a ``plantuml`` command. Only the pinned one gives the same bytes everywhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from .render_error import RenderError
from .render_locally import jar_command, render_by_command, render_by_driver
from .render_server import render_by_server

__all__ = ["RenderError", "find_renderer", "has_driver", "render", "render_pinned"]

Renderer = Callable[[Sequence[Path], Path], None]
"""Renders files into a folder, each to an SVG of its own name. Raises RenderError."""

DRIVER = Path(__file__).resolve().parents[2] / "diagrams" / "render" / "render.mjs"
ADVICE = (
    "no PlantUML renderer was found; run `npm ci` in diagrams/render of a checkout (needs Node 18 "
    "or newer), install a `plantuml` command of 2025 or newer, set PLANTUML_JAR to a plantuml.jar, "
    "or name a server with --server or PLANTUML_SERVER."
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
    if jar := os.environ.get("PLANTUML_JAR", ""):
        return partial(render_by_command, jar_command(jar))
    if has_driver():
        return partial(render_by_driver, DRIVER)
    if plantuml := shutil.which("plantuml"):
        return partial(render_by_command, [plantuml])
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
