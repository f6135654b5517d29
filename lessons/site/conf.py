"""How Sphinx builds the site: ``sphinx-build lessons/site out/site``. Nothing comes from a network.

The pages are made from the repository (``pages/``) and laid out beside Sphinx's own cache, so that
a build writes nothing but its output.
"""

from __future__ import annotations

import logging
import sys
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from pages import add_pages_of_their_own, lab, lay_out, lessons, repository  # noqa: E402

project = "minisched"
root_doc = "index"
html_theme = "furo"
html_title = "minisched"
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "scorer.js")  # the glossary before the API
html_show_copyright = False
html_use_index = False  # the search knows every name
html_domain_indices = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"sidebar_hide_name": False}
extensions = ["myst_nb"]

# Lessons are Python files that jupytext reads; each is executed as it stands.
nb_custom_formats = {".py": ["pages.lessons.read", {}]}
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_excludepatterns = lessons.cannot_run()
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3

toc_object_entries = False
add_module_names = False
python_maximum_signature_line_length = 80

for talker in ("minisched", "traitlets"):  # runs during a build need no log
    logging.getLogger(talker).setLevel("WARNING")


def setup(app: Sphinx) -> None:
    """Lay the pages out, and add those that are not Sphinx's when it is done."""
    pages = Path(app.doctreedir) / "pages"
    lay_out(pages)
    app.srcdir = pages  # type: ignore[assignment]
    app.add_lexer("csv", TextLexer)
    app.connect("doctree-read", keep_own_names)
    app.connect("doctree-read", lambda app, page: lessons.dress(app.env.docname, page))
    app.connect("html-page-context", show_card)
    app.connect("html-page-context", open_own_branch, priority=400)  # before the theme's
    app.connect("build-finished", finish)


def show_card(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Add the card of a shared page; only a repository on GitHub has a complete address."""
    owner, _, name = repository.github().partition("/")
    image = f"_static/card{'_zh' * page.startswith('lessons/zh/')}.png"
    image = f"https://{owner}.github.io/{name}/{image}" if owner else context["pathto"](image, 1)
    said = {"og:title": context.get("title") or project, "og:type": "website", "og:image": image,
            "og:image:width": "1200", "og:image:height": "630",
            "twitter:card": "summary_large_image"}  # fmt: skip
    context["metatags"] = context.get("metatags", "") + "".join(
        f'<meta property="{key}" content="{escape(value)}">\n' for key, value in said.items()
    )


def open_own_branch(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Open only the page's own branch in the sidebar; the whole tree is 22 KB in every page."""
    if tree := context.get("toctree"):
        context["toctree"] = lambda **options: tree(**{**options, "collapse": True})


def keep_own_names(app: Sphinx, doctree: nodes.document) -> None:
    """Keep names of other packages as text: the search for them takes a third of a build."""
    for name in list(doctree.findall(pending_xref)):
        if name.get("refdomain") == "py" and not name["reftarget"].startswith("minisched."):
            name.replace_self(name.children)


def finish(app: Sphinx, error: Exception | None) -> None:
    """Write the pages without Sphinx; log the parts that were left out."""
    if error is None and not add_pages_of_their_own(Path(app.outdir)):
        getLogger(__name__).info("The lab was left out: %s.", lab.ADVICE)
    for name in nb_execution_excludepatterns:
        getLogger(__name__).info("%s was not executed: a library that it names is missing.", name)
