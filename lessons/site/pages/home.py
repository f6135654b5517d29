"""The README as the first page, and what it leads to: how to contribute, traces, the docs."""

from __future__ import annotations

from .links import as_in_the_site
from .repository import ROOT, text


def pages() -> dict[str, str]:
    """The README with a line on where to go, and the table of contents; the format; the docs."""
    title, rest = as_in_the_site(text("README.md")).split("\n", 1)
    picture_end = rest.index("\n", rest.index("!["))
    first, rest = rest[:picture_end], rest[picture_end:]
    return {
        "index.md": f"{title}\n{first}\n\n{WAYS}\n{rest}\n\n{CONTENTS}",
        HELP: as_in_the_site(text(HELP)),
        FORMAT: as_in_the_site(text(FORMAT), "traces/"),
        **{
            f"{DOCS}{path.name}": as_in_the_site(text(f"{DOCS}{path.name}"), DOCS)
            for path in (ROOT / DOCS).glob("*.md")
        },
    }


HELP = "CONTRIBUTING.md"
FORMAT = "traces/README.md"
DOCS = "lessons/site/docs/"
WAYS = """\
<p class="ways"><a href="steppers/serial_overlap.html">Step through these two runs</a>
<a href="lab.html">Change them in the browser</a>
<a href="lessons/README.html">Learn why</a> <a href="gallery/index.html">See all pictures</a></p>
"""
CONTENTS = """\
:::{toctree}
:hidden:

lessons/README
lab
steppers
gallery/index
museum
diagrams/index
traces/README
CONTRIBUTING
lessons/site/docs/how_true_is_it
lessons/site/docs/beside_the_guides
lessons/site/docs/names
lessons/site/docs/first_run_on_a_gpu
lessons/site/docs/mlx_caches
reference/index
:::
"""
