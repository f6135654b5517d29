"""The page of ``check --html``: the answers, and below them a picture. It needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..checks.verdict import RunVerdict

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


def verdict_page(verdicts: Sequence[RunVerdict], svg: str = "") -> str:
    """Return the page of the verdicts on recorded runs, with a picture below them."""
    title = escape(verdicts[0].title if verdicts else "nothing was checked")
    return PAGE.format(title=title, body="\n".join([*map(verdict_html, verdicts), svg]))


def verdict_html(verdict: RunVerdict) -> str:
    """Return a verdict: a heading for each row, its details, and the rest folded."""
    told = [f"<h1>{escape(verdict.title)}</h1>"]
    for row in verdict.rows:
        told.append(f"<h2>{escape(f'{row.sign} {row.name} {row.sentence}')}</h2>")
        told += [f"<p>{escape(line.strip())}</p>" for line in row.details]
        if row.more:
            inside = "".join(f"<p>{escape(line)}</p>" for line in row.more)
            told.append(f"<details><summary>More</summary>{inside}</details>")
    return "\n".join(told)
