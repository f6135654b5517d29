"""``minisched diagrams``: regenerates the generated files of the repository, or checks them."""

from __future__ import annotations

import typer

from ..export import golden
from ..export.render_puml import RenderError
from ..museum.picture import museum_makers
from .exit import BAD_INPUT, complain
from .layout import work_progress
from .options import setting


def diagrams(
    names: list[str] | None = typer.Argument(None, help="Topics or diagrams; all unless named."),
    check: bool = setting(False, "Change nothing; exit 1 if something is stale."),
    svg: bool = setting(True, "Render the SVGs too (with --check: where the driver is)."),
) -> int:
    """Regenerate golden traces, their views and the diagrams of this repository, from runs.

    The pinned PlantUML renders in Node, without Java.
    """
    root, names, more = golden.checkout(), names or [], museum_makers()
    try:
        with work_progress(len(names or {**golden.makers(), **more}) + 1) as work:
            checked, stale = golden.bring_up_to_date(
                names, root, work.advance, more, is_check=check, with_svg=svg
            )
    except RenderError as error:
        return complain(str(error), BAD_INPUT)
    count = f"{len(checked)} files"
    for name in stale:
        made_by = f"; `{golden.command_for(name)}` makes it" if golden.is_hashed(name) else ""
        print(f"{name} {'is stale' if check else 'was written'}{made_by}")
    if not check:
        print(f"{count} generated, {len(stale)} of them changed")
    elif stale:
        again = " ".join(["minisched diagrams", *names])
        print(f"{count} checked, {len(stale)} stale; `{again}` brings them up to date")
    else:
        print(f"{count} checked, none stale")
    return 1 if check and stale else 0
