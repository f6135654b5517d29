"""``minisched diagrams``: regenerates what the repository keeps of its own output, or checks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..export import golden
from ..export.golden import makers
from ..export.render_puml import RenderError
from ..museum.picture import museum_makers
from .exit import complain
from .layout import named_progress


def diagrams(
    names: Annotated[
        list[str] | None, typer.Argument(help="Topics or diagrams; all unless named.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if something is stale.")
    ] = False,
    svg: Annotated[
        bool, typer.Option(help="Render the SVGs too (with --check: where the driver is).")
    ] = True,
    server: Annotated[
        str, typer.Option(help="A PlantUML server, such as http://127.0.0.1:8080/plantuml.")
    ] = "",
) -> int:
    """Regenerate golden traces, their views and the diagrams of this repository, from runs.

    What is measured on a machine (mlx_memory) is drawn only when it is named, and never checked.

    A server that is named wins: --server, then PLANTUML_SERVER.

    Else it is the pinned one, in Node, which --check is about.
    """

    return run_diagrams(names or [], check, svg, server=server)


def run_diagrams(
    names: Sequence[str],
    is_check: bool,
    with_svg: bool,
    root: Path | None = None,
    server: str = "",
) -> int:
    """Write the files, or compare them; the last line of the output sums it up.

    Gives the exit code: 0, 1 if a check found something stale, 2 if it cannot render. ``root`` is
    where the files lie, or None for the checkout that this package runs from, and ``server`` the
    address of a PlantUML server to render on.

    Raises:
        ValueError: there is no topic or diagram of a name, a server was named and nothing is to
            be rendered on it, or the package runs from no checkout.
    """
    root = golden.checkout() if root is None else root
    if server and (is_check or not with_svg):
        option = "--check" if is_check else "--no-svg"
        raise ValueError(f"--server renders, so it cannot be used with {option}.")
    more = museum_makers()
    work = golden.check if is_check else partial(golden.generate, server=server)
    try:
        with named_progress(len(names or {**makers(), **more}) + 1) as hear:
            done = work(names, with_svg, root, hear, more=more)
    except RenderError as error:
        return complain(str(error), 2)
    for line in report(done, is_check, names):
        print(line)
    return 1 if is_check and done.stale else 0


def report(done: golden.Golden, is_check: bool, names: Sequence[str]) -> Iterator[str]:
    """A line for each stale file, and the summary."""
    for name in done.stale:
        yield f"{name} {'is stale' if is_check else 'was written'}"
    count = f"{len(done.checked)} files"
    if not is_check:
        yield f"{count} generated, {len(done.stale)} of them changed"
    elif done.stale:
        again = " ".join(["minisched diagrams", *names])
        yield f"{count} checked, {len(done.stale)} stale; `{again}` brings them up to date"
    else:
        yield f"{count} checked, none stale"
