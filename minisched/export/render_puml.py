"""PlantUML text to SVG: with Node and no Java where that is installed, else with ``plantuml``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

DRIVER = Path(__file__).resolve().parents[2] / "diagrams" / "render" / "render.mjs"
ADVICE = (
    "no PlantUML renderer was found; run `npm ci` in diagrams/render (needs Node 18 or newer), "
    "install a `plantuml` command of 2025 or newer, or set PLANTUML_JAR to a plantuml.jar."
)


class RenderError(RuntimeError):
    """A diagram could not be rendered; the message is one sentence."""


def has_driver() -> bool:
    """Whether the pinned renderer is installed: its SVGs are the same bytes on every machine."""
    return (DRIVER.parent / "node_modules").is_dir() and shutil.which("node") is not None


def find_renderer() -> list[str]:
    """The start of the command that renders here.

    Raises:
        RenderError: there is none; the message says what to install.
    """
    if has_driver():
        return [shutil.which("node") or "node", str(DRIVER)]
    if plantuml := shutil.which("plantuml"):
        return [plantuml]
    jar, java = os.environ.get("PLANTUML_JAR", ""), shutil.which("java")
    if java and Path(jar).is_file():
        return [java, "-Djava.awt.headless=true", "-jar", jar]
    raise RenderError(ADVICE)


def render(puml_paths: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Render each file to an SVG of the same name, beside it or in the folder ``out``.

    Raises:
        RenderError: there is no renderer, or a diagram is wrong.
    """
    if not puml_paths:
        return []
    command, paths = find_renderer(), [str(path.resolve()) for path in puml_paths]
    if command[-1] == str(DRIVER):
        command += ["--out", str(out.resolve())] if out else []
    else:
        command += ["-tsvg", "-nometadata", *(["-o", str(out.resolve())] if out else [])]
    done = subprocess.run([*command, *paths], capture_output=True, text=True)
    pictures = [(out or path.parent) / f"{path.stem}.svg" for path in puml_paths]
    for picture in pictures:
        if done.returncode or not picture.is_file() or "Syntax Error" in picture.read_text("utf-8"):
            message = (done.stderr or done.stdout).strip() or f"{picture.stem}.puml was refused"
            raise RenderError(f"PlantUML: {message.splitlines()[0]}")
    return pictures
