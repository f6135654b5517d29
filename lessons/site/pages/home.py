"""The README as the first page, and the pages that it links to: contributing, traces, the docs."""

from __future__ import annotations

from .links import as_in_the_site
from .repository import ROOT, text


def pages() -> dict[str, str]:
    """Return the README with links and a table of contents, the format, and the docs.

    A doc in Python is a notebook: it runs while the site is built.
    """
    title, rest = as_in_the_site(text("README.md")).split("\n", 1)
    picture_end = rest.index("\n", rest.index("!["))
    first, rest = rest[:picture_end], rest[picture_end:]
    others = [CHINESE, HELP, CHANGES, FORMAT]
    others += [f"{DOCS}{path.name}" for path in (ROOT / DOCS).glob("*.md")]
    found = {path: as_in_the_site(text(path), path[: path.rfind("/") + 1]) for path in others}
    found["index.md"] = f"{title}\n{first}\n\n{WAYS}\n{rest}\n\n{CONTENTS}"
    for path, page in found.items():  # the README is the first page there
        to_root = "../" * path.count("/")
        found[path] = page.replace(f"]({to_root}README.md)", f"]({to_root}index.md)")
    return found | {
        f"{DOCS}{path.name}": path.read_text("utf-8") for path in (ROOT / DOCS).glob("*.py")
    }


CHINESE = "README.zh-CN.md"
HELP = "CONTRIBUTING.md"
CHANGES = "CHANGELOG.md"
FORMAT = "traces/README.md"
DOCS = "lessons/site/docs/"
WAYS = """\
<p class="ways"><a href="steppers/serial_overlap.html">Step through these two runs</a>
<a href="explore.html">Drag the costs</a>
<a href="lab/index.html">Change them in the browser</a>
<a href="lab/check.html">Check a trace here</a>
<a href="lessons/README.html">Learn why</a> <a href="gallery/index.html">See all pictures</a></p>
"""
CONTENTS = """\
:::{toctree}
:hidden:
:caption: Learn

lessons/README
lab/index
steppers
gallery/index
lessons/site/docs/glossary
lessons/site/docs/history
lessons/site/docs/beside_the_guides
lessons/site/docs/long_document
lessons/site/docs/when_overlap_wins
简体中文 <README.zh-CN>
:::

:::{toctree}
:hidden:
:caption: Check and compare

lab/check
lessons/site/docs/check_mine
lessons/site/docs/your_engine
lessons/site/docs/recipes
lessons/site/docs/overlap_in_nano_vllm
lessons/site/docs/real_traces
museum
lessons/site/docs/designs
diagrams/index
lessons/site/docs/running
lessons/site/docs/real_models
lessons/site/docs/own_model
lessons/site/docs/first_run_on_a_gpu
lessons/site/docs/first_run_on_a_mac
lessons/site/docs/benchmarks
lessons/site/docs/how_true_is_it
lessons/site/docs/mlx_caches
traces/README
:::

:::{toctree}
:hidden:
:caption: Contribute

CONTRIBUTING
lessons/site/docs/the_code
lessons/site/docs/names
reference/index
CHANGELOG
:::
"""
