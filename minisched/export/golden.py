"""What the repository keeps of its own output, and whether it is up to date.

Golden traces and their views (``traces/``) and the generated diagrams (``diagrams/``), all from
small workloads on the simulated device, so that the same code gives the same bytes. A diagram's SVG
ends in a line with the hash of the text it was drawn from, so that a stale one shows without a
renderer. ``minisched diagrams`` is the command (``cli/diagrams.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ..topics import SAME_PICTURE, TOPICS
from ..trace.files import write_whole
from . import native
from .mlx_memory import draw_memory
from .motion import playing
from .pd_or_mixed import pd_or_mixed
from .pictures import drawings, pictures
from .pipelines_table import pipelines_table
from .puml_batches import to_batches
from .recipes import recipes, trace_of
from .render_puml import find_renderer, has_driver, render, render_pinned
from .rules_page import rules_page
from .runs import compare
from .scene_svg import to_svg
from .thread_or_stream import thread_or_stream
from .three_way import to_three_way
from .views import draw, parts_of

# -- Which files are generated, and how, by the name of a topic or a diagram -----------------------

Files = dict[str, str]  # text by path in the repository


def makers() -> dict[str, Callable[[], Files]]:
    """What makes the files of each topic and each diagram."""
    return {
        **{name: partial(picture_file, name) for name in pictures()},
        **{topic: partial(topic_files, topic) for topic in recipes()},
        **{name: partial(drawing_file, name) for name in drawings()},
        "batches": lambda: {"diagrams/batches.puml": to_batches()},
        "compare": compare_picture,
        "async_scheduling_three_way_compare": written_comparison,
        "mindie_pipeline_refactor": lambda: {
            "diagrams/mindie_pipeline_refactor.md": pipelines_table()
        },
        "pd_or_mixed": lambda: {"diagrams/pd_or_mixed.md": pd_or_mixed()},
        "rules": lambda: {"diagrams/rules.md": rules_page()},
        "thread_or_stream": lambda: {"diagrams/thread_or_stream.md": thread_or_stream()},
    }


def measured() -> dict[str, Callable[[], Files]]:
    """What is measured on a machine: drawn when it is named, and never checked.

    A maker raises ValueError where this machine lacks what is to be measured.
    """
    return {"mlx_memory": lambda: {"traces/mlx_memory.svg": draw_memory()}}


def topic_files(topic: str) -> Files:
    """A topic's trace and view, with further parts of it, and its diagrams."""
    trace = trace_of(topic)
    files = {f"traces/{topic}.json": native.to_json(trace)}
    for at, part in enumerate(parts_of(topic) or ("",)):
        name = f"{topic}_{part}" if at else topic
        if name not in SAME_PICTURE:
            files[f"traces/{name}.svg"] = draw(topic, trace, part=part)
    for name in (topic, f"{topic}_sequence"):
        files |= picture_file(name) if name in pictures() else {}
    return files


def picture_file(name: str) -> Files:
    """A diagram that shows a design, or several."""
    return {f"diagrams/{name}.puml": pictures()[name]()}


def drawing_file(name: str) -> Files:
    """A drawing of a run that is no topic's view."""
    return {f"traces/{name}.svg": drawings()[name]()}


def compare_picture() -> Files:
    """The README's picture, which plays."""
    scene = compare([trace_of("serial"), trace_of("overlap")])
    return {"diagrams/compare.svg": playing(to_svg(scene))}


def written_comparison() -> Files:
    """The designs side by side, in words and figures."""
    return {"diagrams/async_scheduling_three_way_compare.md": to_three_way()}


ROOT = Path(__file__).resolve().parents[2]
Hear = Callable[[str], None]  # is told what is being made
Draw = Callable[[Sequence[Path], Path], list[Path]]  # PlantUML files, as SVGs into a folder
Makers = Mapping[str, Callable[[], Files]]
NO_MORE: Makers = {}


@dataclass(frozen=True)
class Golden:
    """What one call looked at, as paths in the repository, and which of that was stale."""

    checked: tuple[str, ...]
    stale: tuple[str, ...]


def silent(name: str) -> None:
    """Hears, and says nothing."""


def checkout(root: Path = ROOT) -> Path:
    """The root of the checkout that this package runs from.

    Raises:
        ValueError: it runs from elsewhere; an installed package has no diagrams and no traces.
    """
    lacking = [
        name for name in ("pyproject.toml", "diagrams", "traces") if not (root / name).exists()
    ]
    if lacking:
        raise ValueError(
            "minisched diagrams makes the pictures that a checkout of minisched keeps, and this "
            f"minisched runs from {root}, which has no {lacking[0]}: run it in a git clone."
        )
    return root


def generate(
    names: Sequence[str] = (),
    with_svg: bool = True,
    root: Path = ROOT,
    hear: Hear = silent,
    server: str = "",
    more: Makers = NO_MORE,
) -> Golden:
    """Write the files of the topics and diagrams named (of all, if none), and render their SVGs.

    Gives which were stale and have been written. ``server`` is a PlantUML server to render on;
    ``more`` is what later layers make.

    Raises:
        ValueError: there is no topic or diagram of a name.
        RenderError: there is no renderer, and nothing was done; or a diagram is wrong, and the
            texts have been written.
    """
    chosen = known_makers(names, root, more)
    if with_svg and sources(root, names, {}):
        find_renderer(server)
    files = made(chosen, hear)
    stale = stale_files(root, files)
    write_files(root, files)
    if with_svg:
        draw = partial(render, server=server)
        pictures = rendered_svgs(sources(root, names, files), hear, draw)
        stale += stale_files(root, pictures)
        write_files(root, pictures)
        files |= pictures
    return Golden(tuple(files), tuple(stale))


def check(
    names: Sequence[str] = (),
    with_svg: bool = True,
    root: Path = ROOT,
    hear: Hear = silent,
    more: Makers = NO_MORE,
) -> Golden:
    """Compare every text byte for byte, and every SVG by the hash of its text; change nothing.

    What is measured (``golden_files.measured``) is left out: no two measurements are alike. The
    bytes of an SVG are compared only ``with_svg`` and with the pinned renderer, where it is.

    Raises:
        ValueError: there is no topic or diagram of a name, or it is measured.
        RenderError: the pinned renderer is there, but fails.
    """
    for name in names:
        if name in measured():
            raise ValueError(f"{name!r} is measured on a machine, so there is nothing to check.")
    files = made(known_makers(names, root, more), hear)
    drawn = sources(root, names, files)
    stale = {*stale_files(root, files), *stale_pictures(drawn)}
    if with_svg and has_driver():
        stale |= {*stale_files(root, rendered_svgs(drawn, hear, render_pinned))}
    pictures = [picture_of(source) for source in drawn]
    return Golden((*files, *pictures), tuple(sorted(stale)))


def known_makers(names: Sequence[str], root: Path, more: Makers = NO_MORE) -> Makers:
    """What makes the texts of the topics and diagrams named, or all that is not measured.

    Raises:
        ValueError: there is no topic or diagram of a name.
    """
    by_default = {**makers(), **more}
    known = by_default | measured()
    by_hand = {path.stem for path in root.glob("diagrams/*.puml")}
    for name in names:
        if name not in known and name not in by_hand:
            raise ValueError(f"{name!r} is no topic and no diagram; {nearest(name, known)}")
    return {name: known[name] for name in names or by_default if name in known}


def made(chosen: Makers, hear: Hear) -> Files:
    """The generated texts.

    Raises:
        ValueError: one of them cannot be measured here.
    """
    files: Files = {}
    for name, make in chosen.items():
        hear(name)
        files |= make()
    return files


def nearest(name: str, known: Sequence[str] | dict[str, Callable[[], Files]]) -> str:
    """What else may have been meant."""
    alike = [other for other in known if name in other or other in name]
    return f"did you mean {', '.join(alike)}?" if alike else f"some are {', '.join([*known][:5])}."


def sources(root: Path, names: Sequence[str], files: Files) -> list[Path]:
    """The PlantUML texts under ``root`` that are rendered: of the names, with what was made for
    them, or all.
    """
    if not names:
        return [path for path in sorted(root.glob("diagrams/*.puml")) if has_picture(path.stem)]
    wanted = {f"diagrams/{name}.puml" for name in names}
    wanted |= {name for name in files if name.endswith(".puml")}
    found = sorted(root / name for name in wanted if (root / name).is_file())
    return [path for path in found if has_picture(path.stem)]


def has_picture(diagram: str) -> bool:
    """Whether an SVG of a diagram is kept; of a loop's lanes and messages ``traces/`` has one."""
    return not TOPICS.get(diagram.removesuffix("_sequence"), "").startswith("loops/")


def stale_files(root: Path, files: Files) -> list[str]:
    """Which of ``files`` are missing under ``root``, or different there."""
    return [
        name
        for name, text in sorted(files.items())
        if not (root / name).is_file() or (root / name).read_bytes() != text.encode()
    ]


def write_files(root: Path, files: Files) -> None:
    """Write every file under ``root``."""
    for name, text in files.items():
        write_whole(root / name, text, with_folders=True)


def rendered_svgs(drawn: Sequence[Path], hear: Hear, draw: Draw) -> Files:
    """What each PlantUML text looks like as SVG, by path; each names the text it was drawn from.

    Raises:
        RenderError: there is no renderer, or a diagram is wrong.
    """
    hear(f"rendering {len(drawn)} diagrams")
    with TemporaryDirectory() as folder:
        pictures = draw(drawn, Path(folder))
        texts = [path.read_text(encoding="utf-8").rstrip() for path in pictures]
    return {
        picture_of(source): f"{text}\n{drawn_from(source)}\n"
        for source, text in zip(drawn, texts, strict=True)
    }


def picture_of(source: Path) -> str:
    """The path of a text's picture, in the repository."""
    return f"diagrams/{source.stem}.svg"


def drawn_from(source: Path) -> str:
    """The line that ties a picture to its text."""
    return f"<!-- {source.name} {hashlib.sha256(source.read_bytes()).hexdigest()[:16]} -->"


def stale_pictures(drawn: Sequence[Path]) -> list[str]:
    """Pictures that were not drawn from the text beside them."""
    return [
        picture_of(source)
        for source in drawn
        if not (picture := source.with_suffix(".svg")).is_file()
        or drawn_from(source) not in picture.read_text(encoding="utf-8")
    ]
