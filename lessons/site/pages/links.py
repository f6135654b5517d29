"""Links and pictures of the repository's texts, as the site has them."""

from __future__ import annotations

import re
from posixpath import normpath

from .gallery import page_of
from .pictures import picture

DIAGRAM = re.compile(r"(?<!!)\[([^]]*)\]\((?:\.\./)*(?:diagrams/)?(\w+)\.svg\)")
PICTURE = re.compile(r"!\[([^]]*)\]\(((?:\.\./)*[\w/]+\.svg)\)")
TWO_FORMS = re.compile(r'<picture>.*?alt="([^"]*)" src="([^"]*)">\s*</picture>', re.S)
SOURCE = re.compile(
    r"(?<!!)\[([^]]*)\]\((?:[./\w]+\.puml|(?:\.\./)*(?:minisched|engines)/\w+\.py)\)"
)


def as_in_the_site(markdown: str, folder: str = "") -> str:
    """Return a text of the repository with links to diagrams that lead to the gallery.

    A link to a source that is no page of the site becomes its words. A picture with a form for phones
    becomes its wide form, which scrolls there.
    ``folder`` is the folder of the text, from the root; the site has the same folder.
    """
    to_root = "../" * folder.count("/")
    markdown = TWO_FORMS.sub(r"![\1](\2)", markdown)
    markdown = DIAGRAM.sub(lambda found: f"[{found[1]}]({_link(found[2], to_root)})", markdown)
    markdown = SOURCE.sub(lambda found: found[1], markdown)
    return PICTURE.sub(
        lambda found: picture(normpath(folder + found[2]), found[1], to_root), markdown
    )


def _link(diagram: str, to_root: str) -> str:
    """Return the link to a diagram: its page, or its anchor on a shared page."""
    page, _, anchor = page_of(diagram).partition("#")
    return f"#{anchor}" if anchor else f"{to_root}{page}"
