"""The page of ``check --html``: the answers, and below them a picture. It needs no network."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ max-width: 900px; margin: 24px auto; padding: 0 16px }}
body {{ font: 15px/1.5 system-ui, sans-serif }}
h1 {{ font-size: 20px; overflow-wrap: anywhere }}
h2 {{ margin: 18px 0 2px; font-size: 16px }}
p {{ margin: 2px 0; overflow-wrap: anywhere }}
svg {{ max-width: 100%; height: auto; margin-top: 18px }}
</style>
{body}
</html>
"""


def verdict_page(lines: Iterable[str], svg: str = "") -> str:
    """Return the page of a check's lines: runs, their answers, and the details of answers.

    The lines are those of the command: a run's begins at the margin, an answer's after two spaces,
    a detail's after more.
    """
    lines = list(lines)
    told = []
    for line in lines:
        inside = len(line) - len(line.lstrip())
        tag = "h1" if not inside else "h2" if inside < 4 else "p"
        told.append(f"<{tag}>{escape(line.strip())}</{tag}>")
    title = escape(lines[0] if lines else "nothing was checked")
    return PAGE.format(title=title, body="\n".join([*told, svg]))
