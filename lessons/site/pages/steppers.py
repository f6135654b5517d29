"""Self-contained pages, written when the site is built: through golden runs, and to drag costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from minisched.export.explore import to_explore
from minisched.export.html import to_html
from minisched.recipes import run_of, trace_of
from minisched.trace import Trace


class Stepper(NamedTuple):
    """Some golden runs on one page, and the topics that it belongs to."""

    title: str
    runs: Callable[[], list[Trace]]
    topics: tuple[str, ...]


STEPPERS = {  # file name -> page
    "serial_overlap": Stepper(
        "serial beside overlap",
        lambda: [trace_of("serial"), trace_of("overlap")],
        ("serial", "overlap", "future_map"),
    ),
    "vllm_async": Stepper(
        "vLLM's batch queue with async scheduling, beside serial",
        lambda: [trace_of("serial"), run_of("vllm_async")],
        ("vllm_batch_queue", "prev_sampled", "request_state"),
    ),
    "mlx_async": Stepper(
        "two lazy graphs on MLX, beside serial",
        lambda: [trace_of("serial"), trace_of("mlx_async")],
        ("mlx_async", "lazy_chain"),
    ),
    "decode": Stepper(
        "a running set without free memory: one request is retracted, waits, and starts again",
        lambda: [trace_of("decode")],
        ("decode", "retraction"),
    ),
    "radix_cache": Stepper(
        "the radix cache: a split, an eviction, and a hit",
        lambda: [trace_of("radix_cache")],
        ("radix_cache",),
    ),
}


def pages() -> dict[str, str]:
    """Return the list of steppers; Sphinx does not know the pages themselves."""
    links = "\n".join(f"- {link(name, '')}" for name in STEPPERS)
    return {"steppers.md": f"{HEAD}{links}\n{EXPLORE}"}


def write(out: Path) -> None:
    """Write every page."""
    (out / "steppers").mkdir(exist_ok=True)
    for name, stepper in STEPPERS.items():
        html = to_html(stepper.runs(), title=stepper.title)
        (out / "steppers" / f"{name}.html").write_text(html, encoding="utf-8")
    explore = to_explore([trace_of("serial"), trace_of("overlap")])
    (out / "explore.html").write_text(explore, encoding="utf-8")


def stepper_of(topic: str, to_root: str) -> str:
    """Return a link to the stepper of a topic; empty if there is none."""
    found = [name for name, stepper in STEPPERS.items() if topic in stepper.topics]
    return f"Step through it: {link(found[0], to_root)}." if found else ""


def link(name: str, to_root: str) -> str:
    """Return a link as HTML, because Sphinx does not know the page."""
    return f'<a href="{to_root}steppers/{name}.html">{STEPPERS[name].title}</a>'


HEAD = """\
# Step through a run

Each is one self-contained page, which also works as a file. Play, step or drag; each moment shows the
loop's line of source, the waiting and running requests, and the memory. `minisched compare` writes
the same page for any workload, as `out/compare.html`.

"""
EXPLORE = """
To change the costs instead of stepping through a run, <a href="explore.html">drag the edge of a box</a>: serial
and another loop are laid out anew, and the title states the speed-up.
"""
