"""Renders PlantUML on this machine: with the pinned driver in Node, a command, or a jar."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from html import unescape
from pathlib import Path

from .render_error import RenderError

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


def render_by_command(command: Sequence[str], paths: Sequence[Path], folder: Path) -> None:
    """A PlantUML in Java; the answer does not depend on the machine's clock or metadata.

    Raises:
        RenderError: it cannot be run, or a diagram is wrong.
    """
    done = _run([*command, "-tsvg", "-nometadata", "-o", str(folder), *map(str, paths)])
    if done.returncode:
        if found := JAVA_ERROR.search(done.stderr + done.stdout):
            name = Path(found[2].strip()).name
            raise RenderError(f"{name} is not a PlantUML diagram: an error in line {found[1]}.")
        why = _first_line(done) or f"it ended with code {done.returncode} and says nothing"
        raise RenderError(f"PlantUML ({Path(command[-1]).name}) failed: {why}")


def jar_command(jar: str) -> list[str]:
    """How a jar is run.

    Raises:
        RenderError: there is no such file, or no Java.
    """
    if not Path(jar).is_file():
        raise RenderError(f"PLANTUML_JAR is {jar!r}, but there is no such file.")
    java = shutil.which("java")
    if java is None:
        raise RenderError(f"PLANTUML_JAR is {jar!r}, but there is no `java` command to run it.")
    return [java, "-Djava.awt.headless=true", "-jar", jar]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RenderError(f"{command[0]} cannot be run: {error.strerror}.") from error


def _first_line(done: subprocess.CompletedProcess[str]) -> str:
    """What it says first; some write as for a page (``--&gt;``)."""
    return unescape(next(iter((done.stderr or done.stdout).strip().splitlines()), ""))
