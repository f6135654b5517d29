"""PlantUML text to SVG: the pinned renderer, its errors, and the look on dark paper.

The renderer needs Node but no Java, and gives the same bytes on every machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory

from .looks import DARK, LOOKS, ON_DARK, look

DRIVER = Path(__file__).resolve().parents[2] / "diagrams" / "render" / "render.mjs"
ADVICE = (
    "no PlantUML renderer was found; run `npm ci` in diagrams/render of a checkout (needs Node 18 "
    "or newer)."
)


class RenderError(RuntimeError):
    """A diagram could not be rendered; the message is one sentence."""


def find_node() -> str:
    """Return the path of Node, if the pinned renderer is installed.

    Raises:
        RenderError: one of them is missing; the message names a remedy.
    """
    node = shutil.which("node")
    if node is None or not (DRIVER.parent / "node_modules").is_dir():
        raise RenderError(ADVICE)
    return node


def render(paths: Sequence[Path]) -> list[str]:
    """Return the SVG of each file; the renderer stops at the first error.

    Raises:
        RenderError: there is no renderer, or a diagram is wrong.
    """
    with TemporaryDirectory() as folder:
        command = [find_node(), str(DRIVER), "--out", folder, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        if done.returncode:  # its messages are escaped as HTML: ``--&gt;``
            said = unescape(next(iter((done.stderr or done.stdout).strip().splitlines()), ""))
            raise RenderError(said or "the pinned renderer failed without a message.")
        return [(Path(folder) / f"{path.stem}.svg").read_text(encoding="utf-8") for path in paths]


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
