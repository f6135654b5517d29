"""Slides of a lesson: one HTML page with its titles, its first sentences and its pictures.

The cells of the lesson run, and so the pictures are those of this version. Arrow keys turn the
pages, and a browser prints them as a PDF. Solutions are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)
SOLUTIONS = "Solutions, and other ways"
MOST_WORDS = 110  # of the text on a slide


class Cell(NamedTuple):
    """One cell of a lesson: its kind (markdown, exercise or code) and its text."""

    kind: str
    text: str


class Slide(NamedTuple):
    """A title, paragraphs and items in Markdown, and pictures, tables and code in HTML."""

    title: str
    text: str
    shown: tuple[str, ...] = ()


def cells_of(lesson: str) -> list[Cell]:
    """Return the cells of a lesson's file in the percent format."""
    found = []
    pieces = CELL.split(lesson)[1:]
    for head, body in zip(pieces[::2], pieces[1::2], strict=True):
        if "[markdown]" in head:
            lines = (line.removeprefix("#").removeprefix(" ") for line in body.splitlines())
            found.append(Cell("markdown", "\n".join(lines).strip()))
        else:
            kind = "exercise" if "exercise" in head else "code"
            found.append(Cell(kind, body.strip()))
    return found


def without_solutions(lesson: str) -> str:
    """Return a lesson's file without the section of its solutions."""
    begin = lesson.find(f"# ## {SOLUTIONS}")
    if begin < 0:
        return lesson
    after = re.compile(r"^# ## |^# \*\*|^# %%", re.MULTILINE).search(lesson, begin + 1)
    kept = lesson[:begin] + (lesson[after.start() :] if after else "")
    return re.sub(r"^# %% \[markdown\]\n(?=# %%)", "", kept, flags=re.MULTILINE)


def slides_of(lesson: str) -> Iterator[Slide]:
    """Run a lesson's cells, and yield a slide for each heading and for each further picture."""
    names: dict[str, Any] = {"__name__": "lesson"}
    slide = Slide("", "")
    for kind, text in cells_of(without_solutions(lesson)):
        if kind == "markdown":
            first, *sections = re.split(r"^##? ", text, flags=re.MULTILINE)
            if slide.shown and first.strip():
                yield slide
                slide = Slide(slide.title, first.strip())
            elif first.strip():
                slide = slide._replace(text=f"{slide.text}\n\n{first.strip()}".strip())
            for section in sections:
                if slide.text or slide.shown:
                    yield slide
                title, _, rest = section.partition("\n")
                slide = Slide(title.strip(), rest.strip())
        elif kind == "exercise":
            start = re.sub(r"^learn\.check\(.*$", "", text, flags=re.MULTILINE).strip()
            run(start, names)
            slide = slide._replace(shown=(*slide.shown, f"<pre>{escape(start)}</pre>"))
        elif shown := run(text, names):
            slide = slide._replace(shown=(*slide.shown, shown))
    yield slide


def run(code: str, names: dict[str, Any]) -> str:
    """Run a cell in a namespace, and return what it shows, in HTML."""
    body = ast.parse(code).body
    printed, last = StringIO(), body[-1] if body else None
    with redirect_stdout(printed):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(body[:-1], []), "<lesson>", "exec"), names)
            value = eval(compile(ast.Expression(last.value), "<lesson>", "eval"), names)
        else:
            exec(compile(ast.Module(body, []), "<lesson>", "exec"), names)
            value = None
    said = printed.getvalue().strip()
    shown = f"<pre>{escape(said)}</pre>" if said else ""
    to_html = getattr(value, "_repr_html_", None)
    if to_html is not None:
        return f"{shown}{to_html()}"
    return shown + (f"<pre>{escape(repr(value))}</pre>" if value is not None else "")


# -- The page --------------------------------------------------------------------------------------


def page_of(title: str, slides: list[Slide]) -> str:
    """Return the page of slides."""
    pages = "\n".join(
        f"<section><h1>{inline(slide.title)}</h1>{paragraphs(slide.text)}"
        f"{''.join(f'<div>{shown}</div>' for shown in slide.shown)}</section>"
        for slide in slides
    )
    return PAGE.replace("TITLE", escape(title)).replace("SLIDES", pages)


def paragraphs(markdown: str) -> str:
    """Return the first paragraphs and items of a text, at most ``MOST_WORDS`` words."""
    found, words = list[str](), 0
    for part in re.split(r"\n\s*\n|\n(?=- |\d\. )", markdown):
        words += len(part.split())
        if found and words > MOST_WORDS:
            break
        if part.strip() and not part.startswith(("|", "<", "```")):
            is_item = part.startswith("- ")
            text = inline(" ".join(part.removeprefix("- ").split()))
            found.append(f"<li>{text}</li>" if is_item else f"<p>{text}</p>")
    return "".join(found)


def inline(markdown: str) -> str:
    """Return a line of Markdown as HTML: code, links, bold and italics."""
    text = escape(markdown, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\[([^]]+)\]\((https?://[^)]+)\)", r'<a href="\2">\1</a>', text)
    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    return re.sub(r"\*([^*]+)\*", r"<i>\1</i>", text)


def write_slides(lesson: Path) -> str:
    """Return the slides of a lesson's file as one HTML page."""
    text = lesson.read_text(encoding="utf-8")
    slides = list(slides_of(text))
    return page_of(slides[0].title, slides)


PAGE = """<!doctype html>
<meta charset="utf-8"><title>TITLE</title>
<style>
html { scroll-snap-type: y mandatory; font: 22px/1.45 system-ui, sans-serif; }
body { margin: 0; }
section { box-sizing: border-box; min-height: 100vh; padding: 4vh 6vw; scroll-snap-align: start;
  break-after: page; }
h1 { margin: 0 0 .5em; font-size: 1.5em; }
section:first-child h1 { font-size: 2.4em; margin-top: 12vh; }
img, svg { max-width: 100%; max-height: 60vh; width: auto; }
iframe { max-height: 60vh; }
pre, table { font-size: .7em; overflow: auto; }
td, th { padding: .15em .8em; text-align: left; border-bottom: 1px solid #8884; }
@media print { section { min-height: 0; } }
</style>
SLIDES
<script>
const pages = [...document.querySelectorAll("section")];
addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, PageDown: 1, " ": 1, ArrowLeft: -1, PageUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const at = pages.findIndex((page) => page.getBoundingClientRect().bottom > innerHeight / 2);
  pages[Math.min(pages.length - 1, Math.max(0, at + step))].scrollIntoView();
});
</script>
"""
