"""``minisched view``: a recorded run, or a topic's own small one, as one topic's picture."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from ..checks.reading import read_recorded
from ..export.scene_text import LEAST
from ..export.views import NothingToShow, draw, parts_of
from ..recipes import RECIPES, trace_of
from ..topics import TOPICS
from ..trace.files import write_whole
from ..trace.native import to_json
from .layout import columns
from .options import setting

SUFFIXES = {"svg": ".svg", "puml": ".puml", "text": ".txt", "json": ".json"}


def view(
    topic: str = typer.Argument(help="The topic: " + ", ".join(TOPICS) + ", or a loop by name."),
    trace: Path | None = typer.Argument(
        None, help="A recorded run, such as out/overlap.json; without one, the topic's own run."
    ),
    form: str = setting("svg", "svg, puml (PlantUML), text, or json: the topic's own run itself."),
    part: str = setting(
        "",
        "A loop's picture: by_step (the default) or timing; mindie_placeholder also has ledger, "
        "and two_batch halves.",
    ),
    out: str | None = setting(
        None, "A file, or - for stdout; text goes to stdout, a picture to TOPIC.FORM."
    ),
) -> None:
    """Draw one topic's picture of a recorded run: the radix tree, the budget, the running set.

    Each topic has a small run of its own, which shows the idea.

    A loop has two: a colour for each step (by_step), and phases and ops (timing).
    """
    parts_of(topic)  # an unknown topic raises ValueError
    if form not in SUFFIXES:
        raise ValueError(f"--form is {form!r}, but it must be one of {', '.join(SUFFIXES)}.")
    suffix = SUFFIXES[form]
    if out is not None and Path(out).suffix not in ("", suffix):
        raise ValueError(f"--out is {out!r}, but with --form {form} it must end in {suffix}.")
    if trace is None and topic not in RECIPES:
        raise ValueError(f"view {topic} needs a recorded run: only a topic has a run of its own.")
    if form == "json" and (trace or part):
        other = "a recorded run" if trace else "--part"
        raise ValueError(
            f"--form json writes a topic's own run, so it cannot be used with {other}."
        )
    try:
        shown = read_recorded(trace).trace if trace else trace_of(topic)
        if form == "json":
            drawn = to_json(shown)
        else:
            drawn = draw(topic, shown, form, part, max(LEAST, columns()))
    except NothingToShow as error:
        raise ValueError(f"{trace} can't be shown as {topic}: {error}") from error
    name = f"{topic}_{part}" if part and part != parts_of(topic)[0] else topic
    name = name.replace(":", "-")  # a loop with its relay, in the form of its trace file's name
    target = out or ("-" if form == "text" else f"{name}.{form}")
    if target != "-":
        write_whole(Path(target), drawn)
        print(target)
    else:
        sys.stdout.write(drawn + "\n" * (not drawn.endswith("\n")))
