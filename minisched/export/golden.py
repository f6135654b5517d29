"""The generated files of the repository: their sources, and whether they are stale.

Golden traces and their views (``traces/``), and the diagrams, all from
small workloads on the simulated device: the same code gives the same bytes. A trace or a view that
no page shows is kept as one line of ``traces/hashes.txt``: its hash, and the command that makes it.

A diagram is a text (``NAME.puml``) and a picture (``NAME.svg``). The project draws the picture of a
scene, PlantUML all others. PlantUML's picture ends in a line with the hash of its text, so a stale
one shows without a renderer. ``minisched diagrams`` is the command (``cli/diagrams.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..recipes import RECIPES, run_of, trace_of
from ..topics import SAME_PICTURE, TOPICS
from ..trace import Trace, native
from ..trace.files import write_whole
from .by_step import by_step
from .chinese import translated
from .one_token import one_token, token_lanes
from .pictures import compare, stages, waits
from .poster import poster
from .render_puml import RenderError, find_node, in_dark_too, render
from .scene import Scene
from .scene_puml import to_puml
from .scene_svg import to_svg
from .svg_style import PHONE, SLIDE
from .views import draw, mixed_chunk, page_allocator, parts_of, radix_cache

# -- The files and their sources -------------------------------------------------------------------

Files = dict[str, str]  # text by path in the repository

SCENES: dict[str, Callable[[], Scene]] = {  # diagrams/NAME.puml and NAME.svg
    "chunked_and_mixed_prefill": stages.prefill_stage,
    "compare_cpu_gpu_overlap": compare.cpu_gpu_overlap,
    "mindie_pipeline_refactor_compare": compare.mindie_refactor,
    "pd_against_mixed_chunk": stages.pd_against_mixed,
    "three_way_async_scheduling_compare": compare.three_way,
    "vllm_cpu_gpu_overlap_dependency_points": waits.dependency_points,
    "wait_grammar": waits.grammars,
}


def pair() -> list[Trace]:
    """Return the two runs of the README's picture."""
    return [trace_of("serial"), trace_of("overlap")]


def poster_of() -> Scene:
    """Return the poster of all designs with one device."""
    return poster([*map(run_of, compare.DESIGNS)])


SMALL: dict[str, Callable[[], Scene]] = {  # pictures for slides and phones, and in Chinese
    "chunked_and_mixed_prefill": stages.prefill_stage,
    "mixed_chunk": lambda: mixed_chunk.scene(trace_of("mixed_chunk")),
    "one_token": lambda: one_token([*map(run_of, compare.RELAYS)]),
    "page_allocator": lambda: page_allocator.scene(trace_of("page_allocator")),
    "poster": poster_of,
    "radix_cache": lambda: radix_cache.scene(trace_of("radix_cache")),
}


def in_form(form: str, name: str) -> str:
    """Draw a picture of ``SMALL`` for a ``phone``, in Chinese (``zh``), or for a ``slide``.

    A slide shows a part of most pictures, such as one relay of each way.
    """
    if form == "phone":
        return to_svg(SMALL[name](), PHONE)
    if form == "zh":
        return to_svg(translated(SMALL[name]()))
    match name:
        case "one_token":
            scene = token_lanes([*map(run_of, compare.WAYS)])
        case "poster":
            scene = replace(poster([*map(run_of, compare.DESIGNS)], compare.WAYS), notes=[])
        case _:
            scene = SMALL[name]()
    if name == "page_allocator":
        legend = {**scene.legend, "protected": "cached, and a request uses it"}
        scene = replace(scene, parts=scene.parts[:1], legend=legend)
    elif name == "radix_cache":
        scene = radix_cache.evictions_of(scene)
    return to_svg(scene, SLIDE)


FILES: dict[str, Callable[[], str]] = {  # by path
    **{
        f"traces/{name}_{form}.svg": partial(in_form, form, name)
        for form in ("phone", "slide", "zh")
        for name in SMALL
    },
    "diagrams/compare.svg": lambda: to_svg(by_step(pair()), SLIDE),
    "diagrams/compare_phone.svg": lambda: to_svg(by_step(pair(), 1), PHONE),
    "diagrams/compare_zh_phone.svg": lambda: to_svg(translated(by_step(pair(), 1)), PHONE),
    "diagrams/compare_zh.svg": lambda: to_svg(translated(by_step(pair())), SLIDE),
    "traces/one_token.svg": lambda: to_svg(SMALL["one_token"]()),
    "traces/poster.svg": lambda: to_svg(poster_of()),
    "traces/poster_zh_phone.svg": lambda: to_svg(translated(poster_of()), PHONE),
}
OF_RUNS = {  # topics with a diagram of their run, and a picture by the project itself
    *(topic for topic, code in TOPICS.items() if code.startswith("loops/")),
    "token_pool", "placeholder_fill", "prev_sampled", "request_state", "beam_search",
}  # fmt: skip
TEXT_ONLY = {"decode", "prefill", "schedule_policy", "unified"}  # flow charts of the code
HASHES = "traces/hashes.txt"
WHOLE = {  # the files of ``traces/`` that are kept as files: to be read, or shown by a page
    *FILES,
    *(f"traces/{topic}.json" for topic in (
        "serial", "overlap", "future_map", "mlx_async", "vllm_batch_queue", "pd")),
    *(f"traces/{topic}.svg" for topic in OF_RUNS - {"pd"}),  # pd_against_mixed_chunk shows it
    "traces/radix_cache.svg",
    "traces/museum/pinned_buffer_rewritten.svg",
    "traces/museum/pinned_buffer_rewritten_phone.svg",
}  # fmt: skip


def makers() -> dict[str, Callable[[], Files]]:
    """Return the function that makes the files of each topic and each diagram."""
    return {
        **{topic: partial(topic_files, topic) for topic in RECIPES},
        **{name: partial(scene_files, name) for name in SCENES},
        **{Path(path).stem: partial(lambda at: {at: FILES[at]()}, path) for path in FILES},
    }


def topic_files(topic: str) -> Files:
    """Make a topic's trace, its view, and its diagram if that is one of its run.

    The diagram of a loop shows phases by their names.
    """
    trace = trace_of(topic)
    files = {f"traces/{topic}.json": native.to_json(trace)}
    if topic not in SAME_PICTURE:
        files[f"traces/{topic}.svg"] = draw(topic, trace)
    if topic in OF_RUNS:
        phases = "timing" if (*parts_of(topic), "")[0] == "by_step" else ""
        files[f"diagrams/{topic}.puml"] = draw(topic, trace, "puml", phases)
    return files


def scene_files(name: str) -> Files:
    """Make a diagram as text and as picture."""
    scene = SCENES[name]()
    return {f"diagrams/{name}.puml": to_puml(scene), f"diagrams/{name}.svg": to_svg(scene)}


def is_hashed(path: str) -> bool:
    """Return whether a generated file is kept as its hash alone."""
    return path.startswith("traces/") and path not in WHOLE


def command_for(path: str) -> str:
    """Return the command that makes and shows a file that is kept as its hash."""
    name = Path(path).stem
    if path.startswith("traces/museum/"):
        return f"minisched museum run {name} --out {name}.svg"
    if path.endswith(".json"):
        return f"minisched view {name} --form json"
    return f"minisched view {name}"


def maker_of(path: str) -> str:
    """Return the maker of a file that is kept as its hash: a topic, or ``museum/BUG``."""
    return "museum/" * path.startswith("traces/museum/") + Path(path).stem


def has_picture(diagram: str) -> bool:
    """Return whether PlantUML draws a diagram's picture.

    The project draws those of runs. Those of ``TEXT_ONLY`` are better read as text.
    """
    return diagram not in {*SCENES, *OF_RUNS, *SAME_PICTURE, *TEXT_ONLY}


# -- Stale files, and writing them -----------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
Hear = Callable[[str], None]  # receives the name of each topic or diagram before it is made
Makers = Mapping[str, Callable[[], Files]]
NO_MORE: Makers = {}


def checkout(root: Path = ROOT) -> Path:
    """Return the root of the checkout that this package runs from.

    Raises:
        ValueError: it runs from elsewhere; an installed package has no diagrams and no traces.
    """
    for name in ("pyproject.toml", "diagrams", "traces"):
        if not (root / name).exists():
            raise ValueError(
                f"diagrams redraws what a checkout has, and this minisched has no {name}: run it "
                "in a git clone."
            )
    return root


def bring_up_to_date(
    names: Sequence[str], root: Path, hear: Hear, more: Makers = NO_MORE, *,
    is_check: bool = False, with_svg: bool = True,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Make the texts of the named topics and diagrams (of all, if none), and render their SVGs.

    Stale files are written, or in a check only reported. Texts are compared byte for byte, or by
    their hash. A check compares PlantUML's pictures by the hash of their text, and their bytes only
    ``with_svg`` and where the renderer is. ``more`` are the makers of later layers. Returns the
    paths that were compared, and the stale ones.

    Raises:
        ValueError: a name is no topic and no diagram.
        RenderError: there is no renderer, and nothing was done; or a diagram is wrong, and the
            texts have been written.
    """
    chosen = known_makers(names, root, more)
    if with_svg and sources(root, names, ()):
        try:
            find_node()
        except RenderError:
            if not is_check:
                raise  # nothing is done
            with_svg = False
    files: Files = {}
    for name, make in chosen.items():
        hear(name)
        files |= make()
    stale, pictures = stale_files(root, files), Files()
    if not names:
        stale += hashes(root).keys() - files.keys()  # no code makes them any more
    if not is_check:
        write(root, files, is_all=not names)
    drawn = sources(root, names, files)
    if with_svg and drawn:
        pictures = rendered_svgs(drawn, hear)
        stale += stale_files(root, pictures)
    if is_check:
        stale += stale_pictures(drawn)
        pictures = dict.fromkeys(map(picture_of, drawn), "")
    else:
        write(root, pictures)
    return [*files, *pictures], sorted({*stale})


def known_makers(names: Sequence[str], root: Path, more: Makers) -> Makers:
    """Return the makers of the named topics and diagrams, or all of them.

    Raises:
        ValueError: a name is no topic and no diagram.
    """
    known = {**makers(), **more}
    by_hand = {path.stem for path in root.glob("diagrams/*.puml")}
    for name in names:
        if name not in known and name not in by_hand:
            alike = [other for other in known if name in other or other in name]
            ask = f"did you mean {', '.join(alike)}?" if alike else ""
            some = f"some are {', '.join([*known][:5])}."
            raise ValueError(f"{name!r} is no topic and no diagram; {ask or some}")
    return {name: known[name] for name in names or known if name in known}


def sources(root: Path, names: Sequence[str], made: Iterable[str]) -> list[Path]:
    """Return the texts that PlantUML draws: those of the names and ``made``, or all."""
    found = {*root.glob("diagrams/*.puml")}
    if names:
        found &= {root / "diagrams" / f"{name}.puml" for name in names} | {root / x for x in made}
    return sorted(path for path in found if has_picture(path.stem))


def stale_files(root: Path, files: Files) -> list[str]:
    """Return the ``files`` that are missing or different under ``root``."""
    kept, stale = hashes(root), []
    for name, text in sorted(files.items()):
        if is_hashed(name):
            is_current = kept.get(name) == hash_of(text.encode())
        else:
            is_current = (root / name).is_file() and (root / name).read_bytes() == text.encode()
        if not is_current:
            stale.append(name)
    return stale


def write(root: Path, files: Files, is_all: bool = False) -> None:
    """Write every file under ``root``, or its hash; ``is_all`` drops the hashes of all others."""
    kept = {} if is_all else hashes(root)
    for name, text in files.items():
        if is_hashed(name):
            kept[name] = hash_of(text.encode())
        else:
            write_whole(root / name, text, with_folders=True)
    lines = [
        f"{digest}  {name:<52}  {command_for(name)}\n" for name, digest in sorted(kept.items())
    ]
    if kept != hashes(root):
        write_whole(root / HASHES, "".join(lines), with_folders=True)


def hashes(root: Path) -> dict[str, str]:
    """Return the recorded hash of each file that is kept as its hash, by path."""
    if not (root / HASHES).is_file():
        return {}
    lines = (root / HASHES).read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name, *_ in map(str.split, lines)}


def hash_of(content: bytes) -> str:
    """Return the beginning of a content's SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def rendered_svgs(drawn: Sequence[Path], hear: Hear) -> Files:
    """Render each PlantUML text as SVG, by path; each picture names its text.

    Raises:
        RenderError: a diagram is wrong.
    """
    hear(f"rendering {len(drawn)} diagrams")
    return {
        picture_of(source): f"{in_dark_too(text.rstrip())}\n{drawn_from(source)}\n"
        for source, text in zip(drawn, render(drawn), strict=True)
    }


def picture_of(source: Path) -> str:
    """Return the path of a text's picture, in the repository."""
    return f"diagrams/{source.stem}.svg"


def drawn_from(source: Path) -> str:
    """Return the line that ties a picture to its text."""
    return f"<!-- {source.name} {hash_of(source.read_bytes())} -->"


def stale_pictures(drawn: Sequence[Path]) -> list[str]:
    """Return the pictures that were drawn from an older text."""
    return [
        picture_of(source)
        for source in drawn
        if not (picture := source.with_suffix(".svg")).is_file()
        or drawn_from(source) not in picture.read_text(encoding="utf-8")
    ]
