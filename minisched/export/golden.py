"""What the repository keeps of its own output: what is drawn from what, and whether it is stale.

Golden traces and their views (``traces/``) and the diagrams (``diagrams/``), all from small
workloads on the simulated device, so that the same code gives the same bytes. A diagram is a text
(``NAME.puml``) and a picture (``NAME.svg``): of a scene the project's own, of all else PlantUML's,
which ends in a line with the hash of its text, so that a stale one shows without a renderer.
``minisched diagrams`` is the command (``cli/diagrams.py``).
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
from .as_profiled import as_profiled
from .mlx_memory import draw_memory
from .motion import playing
from .one_token import one_token
from .pd_or_mixed import pd_or_mixed
from .pictures import compare, stages, waits
from .pictures.stories import STORIES
from .poster import poster
from .puml_batches import to_batches
from .recipes import RECIPES, run_of, trace_of
from .render_puml import (
    Renderer,
    find_renderer,
    has_driver,
    in_dark_too,
    render,
    render_by_driver,
)
from .rules_page import rules_page
from .runs import compare as compare_runs
from .scene import Scene
from .scene_puml import to_puml
from .scene_svg import to_svg
from .thread_or_stream import thread_or_stream
from .three_way import pipelines_table, to_three_way
from .views import draw, parts_of
from .waterfall import waterfall

# -- What is drawn from what -----------------------------------------------------------------------

Files = dict[str, str]  # text by path in the repository

SCENES: dict[str, Callable[[], Scene]] = {  # diagrams/NAME.puml and NAME.svg
    "chunked_and_mixed_prefill": stages.prefill_stage,
    "compare_cpu_gpu_overlap": compare.cpu_gpu_overlap,
    "free_rule": stages.freed_at_once,
    "mindie_pipeline_refactor_compare": compare.mindie_refactor,
    "pd_against_mixed_chunk": stages.pd_against_mixed,
    "three_way_async_scheduling_compare": compare.three_way,
    "wait_grammar": waits.grammars,
    "wait_history": waits.history,
}
DRAWINGS: dict[str, Callable[[], Scene]] = {  # traces/NAME.svg
    "as_profiled": lambda: as_profiled(run_of("overlap")),
    "mixed_attention": lambda: stages.attention(stages.mixed_batch()),
    "one_token": lambda: one_token([run_of(loop) for loop in compare.RELAYS]),
    "poster": lambda: poster([run_of(loop) for loop in compare.DESIGNS]),
    "waterfall": lambda: waterfall([run_of(loop) for loop in compare.FALLS]),
}
TEXTS: dict[str, Callable[[], str]] = {  # diagrams/NAME
    **{f"{name}.puml": story for name, story in STORIES.items()},
    "batches.puml": to_batches,
    "async_scheduling_three_way_compare.md": to_three_way,
    "mindie_pipeline_refactor.md": pipelines_table,
    "pd_or_mixed.md": pd_or_mixed,
    "rules.md": rules_page,
    "thread_or_stream.md": thread_or_stream,
    "compare.svg": lambda: playing(to_svg(compare_runs([*map(trace_of, ("serial", "overlap"))]))),
}
OF_RUNS = {  # topics whose diagram is drawn of their run, and its picture by the project itself
    *(topic for topic, code in TOPICS.items() if code.startswith("loops/")),
    "token_pool", "placeholder_fill", "prev_sampled",
}  # fmt: skip


def makers() -> dict[str, Callable[[], Files]]:
    """What makes the files of each topic and each diagram."""
    return {
        **{topic: partial(topic_files, topic) for topic in RECIPES},
        **{name: partial(scene_files, name) for name in SCENES},
        **{name: partial(drawing_file, name) for name in DRAWINGS},
        **{name.partition(".")[0]: partial(text_file, name) for name in TEXTS},
    }


def measured() -> dict[str, Callable[[], Files]]:
    """What is measured on a machine: drawn when it is named, and never checked.

    A maker raises ValueError where this machine lacks what is to be measured.
    """
    return {"mlx_memory": lambda: {"traces/mlx_memory.svg": draw_memory()}}


def topic_files(topic: str) -> Files:
    """A topic's trace and view, with further parts of it; and its diagram, if it is drawn of it."""
    trace = trace_of(topic)
    files = {f"traces/{topic}.json": native.to_json(trace)}
    for at, part in enumerate(parts_of(topic) or ("",)):
        name = f"{topic}_{part}" if at else topic
        if part != "sequence" and name not in SAME_PICTURE:
            files[f"traces/{name}.svg"] = draw(topic, trace, part=part)
        if part == "sequence" or name in OF_RUNS:
            files[f"diagrams/{name}.puml"] = draw(topic, trace, "puml", part)
    return files


def scene_files(name: str) -> Files:
    """A diagram as text and as picture."""
    scene = SCENES[name]()
    return {f"diagrams/{name}.puml": to_puml(scene), f"diagrams/{name}.svg": to_svg(scene)}


def drawing_file(name: str) -> Files:
    """A drawing of runs that is no topic's view."""
    return {f"traces/{name}.svg": to_svg(DRAWINGS[name]())}


def text_file(name: str) -> Files:
    """A text of its own."""
    return {f"diagrams/{name}": TEXTS[name]()}


def has_picture(diagram: str) -> bool:
    """Whether PlantUML draws a diagram's picture: it shows what the project's own doesn't."""
    return diagram not in {*SCENES, *OF_RUNS, *SAME_PICTURE}


ROOT = Path(__file__).resolve().parents[2]
Hear = Callable[[str], None]  # is told what is being made
Makers = Mapping[str, Callable[[], Files]]
NO_MORE: Makers = {}


@dataclass(frozen=True)
class Golden:
    """What one call looked at, as paths in the repository, and which of that was stale."""

    checked: tuple[str, ...]
    stale: tuple[str, ...]


def checkout(root: Path = ROOT) -> Path:
    """The root of the checkout that this package runs from.

    Raises:
        ValueError: it runs from elsewhere; an installed package has no diagrams and no traces.
    """
    for name in ("pyproject.toml", "diagrams", "traces"):
        if not (root / name).exists():
            raise ValueError(
                "minisched diagrams makes the pictures that a checkout of minisched keeps, and "
                f"this minisched runs from {root}, which has no {name}: run it in a git clone."
            )
    return root


def generate(
    names: Sequence[str], with_svg: bool, root: Path, hear: Hear, server: str = "",
    more: Makers = NO_MORE,
) -> Golden:  # fmt: skip
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
    stale = written(root, files)
    if with_svg and (drawn := sources(root, names, files)):
        pictures = rendered_svgs(drawn, hear, find_renderer(server))
        stale += written(root, pictures)
        files |= pictures
    return Golden(tuple(files), tuple(stale))


def check(
    names: Sequence[str], with_svg: bool, root: Path, hear: Hear, more: Makers = NO_MORE
) -> Golden:
    """Compare every text byte for byte, and PlantUML's SVGs by the hash of their text.

    What is measured is left out: no two measurements are alike. The bytes of PlantUML's SVGs are
    compared only ``with_svg`` and where the pinned renderer is.

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
        stale |= {*stale_files(root, rendered_svgs(drawn, hear, render_by_driver))}
    pictures = [picture_of(source) for source in drawn]
    return Golden((*files, *pictures), tuple(sorted(stale)))


def known_makers(names: Sequence[str], root: Path, more: Makers) -> Makers:
    """What makes the texts of the topics and diagrams named, or all that is not measured.

    Raises:
        ValueError: there is no topic or diagram of a name.
    """
    by_default = {**makers(), **more}
    known = by_default | measured()
    by_hand = {path.stem for path in root.glob("diagrams/*.puml")}
    for name in names:
        if name not in known and name not in by_hand:
            alike = [other for other in known if name in other or other in name]
            ask = f"did you mean {', '.join(alike)}?" if alike else ""
            some = f"some are {', '.join([*known][:5])}."
            raise ValueError(f"{name!r} is no topic and no diagram; {ask or some}")
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


def sources(root: Path, names: Sequence[str], files: Files) -> list[Path]:
    """The texts that PlantUML draws: of the names, with what was made for them, or all."""
    found = {*root.glob("diagrams/*.puml")}
    if names:
        found &= {root / "diagrams" / f"{name}.puml" for name in names} | {root / x for x in files}
    return sorted(path for path in found if has_picture(path.stem))


def stale_files(root: Path, files: Files) -> list[str]:
    """Which of ``files`` are missing under ``root``, or different there."""
    return [
        name
        for name, text in sorted(files.items())
        if not (root / name).is_file() or (root / name).read_bytes() != text.encode()
    ]


def written(root: Path, files: Files) -> list[str]:
    """Writes every file under ``root``, and gives which were stale."""
    stale = stale_files(root, files)
    for name, text in files.items():
        write_whole(root / name, text, with_folders=True)
    return stale


def rendered_svgs(drawn: Sequence[Path], hear: Hear, renderer: Renderer) -> Files:
    """What each PlantUML text looks like as SVG, by path; each names the text it was drawn from.

    Raises:
        RenderError: a diagram is wrong.
    """
    hear(f"rendering {len(drawn)} diagrams")
    with TemporaryDirectory() as folder:
        pictures = render(drawn, Path(folder), renderer)
        texts = [path.read_text(encoding="utf-8").rstrip() for path in pictures]
    return {
        picture_of(source): f"{in_dark_too(text)}\n{drawn_from(source)}\n"
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
