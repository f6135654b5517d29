"""The card of a shared page of the site: 1200 × 630 pixels, drawn from two runs.

``python lessons/site/card.py`` draws ``static/card.png`` with Playwright and Chromium. The PNG
contains the hash of its picture, so that a test finds a stale one.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from shutil import which
from xml.sax.saxutils import escape
from zlib import crc32

from minisched.checks.overlap import measure
from minisched.export.by_step import by_step
from minisched.export.looks import LIGHT, css
from minisched.export.scene import Lanes
from minisched.export.svg_page import width_of
from minisched.export.svg_style import FONT, painted, style_of
from minisched.recipes import trace_of

WIDTH, HEIGHT = 1200, 630  # pixels
PNG = Path(__file__).parent / "static" / "card.png"
LEFT, RIGHT, HIGH = 250, 1150, 44  # pixels: where time begins and ends; a lane
LETTERS = """
.big { font-size: 52px; font-weight: 700 } .middle { font-size: 30px; font-weight: 650 }
.low { font-size: 26px } .inside { font-size: 24px }
"""


def card() -> str:
    """Draw two steps of serial, and overlap meanwhile, in letters that can be read on a phone."""
    traces = [trace_of("serial"), trace_of("overlap")]
    serial, overlap = map(measure, traces)
    times = serial.makespan_ns / overlap.makespan_ns
    lines = [
        ("big", 90, f"Same tokens, {times:.2f} times as fast"),
        ("low faint", 138, f"Overlap scheduling: the device is busy {overlap.device_busy_percent:.0f} % "
         f"of the time, not {serial.device_busy_percent:.0f} %"),
        ("low faint", 594, "minisched · the loops of SGLang, vLLM and MindIE, small enough to read"),
    ]  # fmt: skip
    drawn = [f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>']
    drawn += [
        f'<text class="{kind}" x="50" y="{y}">{escape(words)}</text>' for kind, y, words in lines
    ]
    for part, top in zip(by_step(traces).parts, (225, 405), strict=True):
        drawn.append(f'<text class="middle" x="50" y="{top - 12}">{part.heading}</text>')
        drawn.append(f'<text class="low faint" x="{LEFT}" y="{top - 12}">{part.note}</text>')
        (lanes,) = part.shows
        assert isinstance(lanes, Lanes)
        drawn += strip(lanes, top)
    body = "\n".join(drawn)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    style = style_of(body).replace("</style>", LETTERS + "</style>")
    font = f'font-family="{FONT}" fill="{LIGHT["ink"]}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{style}\n{painted(body)}\n</svg>\n'


def strip(lanes: Lanes, top: int) -> list[str]:
    """Draw one loop: its host above its device, which is hatched while it idles."""
    drawn, scale = list[str](), (RIGHT - LEFT) / lanes.end
    for at, row in enumerate(lanes.rows):
        y = top + at * (HIGH + 12)
        drawn.append(f'<text class="low" x="50" y="{y + 31}">{row.name}</text>')
        drawn.append(f'<rect class="lane" x="{LEFT}" y="{y - 4}" width="{RIGHT - LEFT}" '
                     f'height="{HIGH + 8}"/>')  # fmt: skip
        for item in row.spans:
            x, width = LEFT + item.start * scale, (item.end - item.start) * scale
            drawn.append(f'<rect class="box {css(item.kind)}" x="{x:.1f}" y="{y}" '
                         f'width="{width:.1f}" height="{HIGH}" rx="4"/>')  # fmt: skip
            fits = (words for words in (item.label, item.brief) if width_of(words, 24) < width)
            drawn.append(f'<text class="inside in-{css(item.kind)}" x="{x + width / 2:.1f}" '
                         f'y="{y + 30}" text-anchor="middle">{next(fits, "")}</text>')  # fmt: skip
    return drawn


def hash_of(svg: str) -> bytes:
    """Hash the drawing without its style sheet, which can change without a visible difference."""
    return sha256(svg.rpartition("</defs>")[2].encode()).hexdigest().encode()


def stamped(png: bytes, svg: str) -> bytes:
    """Add the hash of its picture to a PNG, in a chunk of text after the head."""
    text = b"tEXtSource\0" + hash_of(svg)
    chunk = (len(text) - 4).to_bytes(4) + text + crc32(text).to_bytes(4)
    return png[:33] + chunk + png[33:]


def to_png(svg: str) -> bytes:
    """Draw the picture in pixels, with the machine's Chromium or else Playwright's own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_content(f"<style>body {{ margin: 0 }} svg {{ display: block }}</style>{svg}")
        shot: bytes = page.screenshot()
        browser.close()
    return shot


if __name__ == "__main__":
    PNG.write_bytes(stamped(to_png(card()), card()))
    print(PNG)
