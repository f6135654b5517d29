"""Regenerates what the repository keeps of its own output: ``python -m minisched.export.golden``.

Golden traces and their views (``traces/``), the PlantUML pictures of each loop and of the batches,
and the README's picture (``diagrams/``), all from small workloads on the simulated device, so that
the same code gives the same bytes. ``--check`` changes nothing and fails with the name of each file
that is stale.
``--svg`` also renders every ``diagrams/*.puml`` to SVG, which needs a renderer (``render_puml``).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from . import native
from .golden_runs import recipes
from .puml_batches import to_batches
from .puml_sequence import to_sequence
from .puml_timing import to_timing
from .render_puml import RenderError, render
from .svg import to_svg
from .views import draw

TITLES = {
    "serial": "serial: host and device take turns",
    "overlap": "overlap: the host works on the steps before and after",
    "mlx_async": "mlx_async: the next step is built on tokens nobody has computed yet",
}
ROOT = Path(__file__).resolve().parents[2]


def golden_files() -> dict[str, str]:
    """Every generated file's text, by its path in the repository."""
    traces = {topic: recipe.run() for topic, recipe in recipes().items()}
    files = {"diagrams/compare.svg": to_svg([traces["serial"], traces["overlap"]])}
    files["diagrams/batches.puml"] = to_batches()
    files |= {f"traces/{topic}.json": native.to_json(trace) for topic, trace in traces.items()}
    files |= {f"traces/{topic}.svg": draw(topic, trace) for topic, trace in traces.items()}
    for loop, title in TITLES.items():
        files[f"diagrams/{loop}.puml"] = to_timing(traces[loop], title=title)
        files[f"diagrams/{loop}_sequence.puml"] = to_sequence(traces[loop], title=title)
    return files


def stale_files(root: Path, files: dict[str, str]) -> list[str]:
    """Which of ``files`` are missing under ``root``, or different there."""
    return [
        name
        for name, text in sorted(files.items())
        if not (root / name).is_file() or (root / name).read_bytes() != text.encode()
    ]


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write every file under ``root``."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())


def rendered_svgs(root: Path) -> dict[str, str]:
    """What each ``diagrams/*.puml`` under ``root`` looks like as SVG, by path.

    Each ends in a line that names the text it was drawn from.

    Raises:
        RenderError: there is no renderer, or a diagram is wrong.
    """
    sources = sorted((root / "diagrams").glob("*.puml"))
    with TemporaryDirectory() as folder:
        pictures = render(sources, Path(folder))
        texts = [path.read_text(encoding="utf-8").rstrip() for path in pictures]
    return {
        f"diagrams/{source.stem}.svg": f"{text}\n{drawn_from(source)}\n"
        for source, text in zip(sources, texts, strict=True)
    }


def drawn_from(source: Path) -> str:
    """The line that ties a picture to its text, so that a stale one shows without a renderer."""
    return f"<!-- {source.name} {hashlib.sha256(source.read_bytes()).hexdigest()[:16]} -->"


def stale_pictures(root: Path) -> list[str]:
    """Pictures under ``root`` that were not drawn from the text beside them."""
    pictures = [path.with_suffix(".svg") for path in sorted((root / "diagrams").glob("*.puml"))]
    return [
        f"diagrams/{path.name}"
        for path in pictures
        if not path.is_file()
        or drawn_from(path.with_suffix(".puml")) not in path.read_text(encoding="utf-8")
    ]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command; returns its exit code: 1 if a check found something, 2 if it cannot render."""
    parser = argparse.ArgumentParser(prog="python -m minisched.export.golden", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if stale")
    parser.add_argument("--svg", action="store_true", help="diagrams/*.svg too; needs a renderer")
    options = parser.parse_args(arguments)
    files = golden_files()
    stale = stale_files(root, files)
    if not options.check:
        write_files(root, files)
    try:
        pictures = rendered_svgs(root) if options.svg else {}
    except RenderError as error:
        print(error, file=sys.stderr)
        return 2
    stale += stale_files(root, pictures) if options.svg else stale_pictures(root)
    if not options.check:
        write_files(root, pictures)
    for name in stale:
        print(f"{name} {verdict(name, options.check, options.svg)}")
    return 1 if stale and options.check else 0


def verdict(name: str, is_check: bool, with_svg: bool) -> str:
    """What is to be said about a file that was stale."""
    is_picture = re.fullmatch(r"diagrams/(?!compare).*\.svg", name) is not None
    if is_check or (is_picture and not with_svg):
        needs = " --svg" if is_picture else ""
        return f"is stale; python -m minisched.export.golden{needs} brings it up to date."
    return "was written."


if __name__ == "__main__":
    sys.exit(main())
