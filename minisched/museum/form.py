"""The page of an exhibit as one HTML file, and as Markdown for the site."""

from __future__ import annotations

from html import escape

from .exhibit import Exhibit, Refuted
from .page import Part, page, refuted_page
from .paper import html_style
from .picture import draw
from .references import address


def to_html(item: Exhibit | Refuted) -> str:
    """A page that stands alone, with its picture in it, light or dark as the reader's system is."""
    parts = page(item) if isinstance(item, Exhibit) else refuted_page(item)
    drawn = draw(item) if isinstance(item, Exhibit) else ""
    body = "\n".join(f"<h2>{escape(part.heading)}</h2>\n{html(part, drawn)}" for part in parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(item.title)}</title>\n{html_style()}</head>\n"
        f"<body><h1>{escape(item.title)}</h1>\n{body}\n</body></html>\n"
    )


def html(part: Part, drawn: str) -> str:
    """One part's body."""
    lines = [escape(line) for line in part.body.splitlines()]
    if part.kind == "picture":
        return f"<figure>{drawn}</figure>"
    if part.kind == "list":
        return f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
    if part.kind == "links":
        return "<p>" + ", ".join(f'<a href="{address(line)}">{line}</a>' for line in lines) + "</p>"
    if part.kind in ("diff", "code"):
        kinds = {"+": "plus", "-": "minus", "@": "place"}
        shown = [f'<span class="{kinds.get(line[:1], "same")}">{line}</span>' for line in lines]
        return f"<pre>{chr(10).join(shown)}</pre>"
    return "\n".join(f'<p class="{part.kind}">{line}</p>' for line in lines)


def markdown(part: Part, shown: str) -> str:
    """One part of the site's page; ``shown`` is how it shows the picture."""
    lines = part.body.splitlines()
    if part.kind == "picture":
        return shown
    if part.kind == "list":
        return "\n".join(f"- {line}" for line in lines)
    if part.kind == "links":
        return ", ".join(f"[{line}]({address(line)})" for line in lines)
    if part.kind in ("diff", "code"):
        return f"```{'diff' if part.kind == 'diff' else 'console'}\n{part.body}\n```"
    return "\n\n".join(lines)
