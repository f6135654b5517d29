"""The few SVG shapes that every view is made of, as text."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

Datum = str | int


def rect(
    kind: str, x: float, y: float, width: float, height: float, about: str = "", **data: Datum
) -> str:
    """A box of a kind (``look.py``); ``about`` shows on hover, ``data`` says what it belongs to."""
    return (
        f'<rect class="box {kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="2"{_attributes(data)}>{_hover(about)}</rect>'
    )


def band(x: float, y: float, width: float, height: float, kind: str = "lane") -> str:
    """A plain background."""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    )


def text(
    x: float, y: float, words: str, kind: str = "", anchor: str = "start", **data: Datum
) -> str:
    """One line of text."""
    looks = f' class="{kind}"' if kind else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text{looks} x="{x:.1f}" y="{y:.1f}"{where}{_attributes(data)}>{escape(words)}</text>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float, **data: Datum) -> str:
    """A straight line."""
    return (
        f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        f"{_attributes(data)}/>"
    )


def path(kind: str, d: str, about: str = "", **data: Datum) -> str:
    """Any other outline."""
    return f'<path class="{kind}" d="{d}"{_attributes(data)}>{_hover(about)}</path>'


def _attributes(data: dict[str, Datum]) -> str:
    return "".join(f" data-{name}={quoteattr(str(value))}" for name, value in data.items())


def _hover(about: str) -> str:
    return f"<title>{escape(about)}</title>" if about else ""
