"""The card of a shared page of the site, drawn from two runs; also in Chinese, and for a phone.

``python lessons/site/card.py`` draws ``static/card*.png`` with Playwright and Chromium. A PNG
contains the hash of its picture, so that a test finds a stale one.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from shutil import which
from typing import NamedTuple
from xml.sax.saxutils import escape
from zlib import crc32

from minisched.checks.overlap import measure
from minisched.export.by_step import by_step
from minisched.export.chinese import translated
from minisched.export.looks import LIGHT, css
from minisched.export.scene import Lanes
from minisched.export.svg_page import folded, width_of
from minisched.export.svg_style import FONT, painted, style_of
from minisched.recipes import trace_of

STATIC = Path(__file__).parent / "static"
HIGH = 44  # pixels: a lane
LETTERS = """
.big { font-size: 52px; font-weight: 700 } .middle { font-size: 30px; font-weight: 650 }
.low { font-size: 26px } .inside { font-size: 24px }
"""


class Form(NamedTuple):
    """The language of a card, and its places in pixels."""

    lang: str
    width: int
    height: int
    left: int  # where time begins
    edge: int  # the margin at either side
    strips: tuple[int, int]  # the upper ends of the two runs
    last: int  # the line at the bottom
    periods: int  # steps of serial


FORMS = {  # by the name of the PNG; the last one is for a phone: 24 pixels are 12 at 390
    "card": Form("en", 1200, 630, 150, 50, (225, 405), 594, 2),
    "card_zh": Form("zh", 1200, 630, 150, 50, (225, 405), 594, 2),
    "card_phone": Form("en", 780, 780, 166, 30, (340, 530), 716, 1),
}
SAYS = {
    "en": (
        "Same tokens, {times} times as fast",
        "Overlap scheduling: the device is busy {ahead} % of the whole run, not {serial} %",
        "minisched · the loops of SGLang, vLLM and MindIE, small enough to read",
    ),
    "zh": (
        "token 相同，速度是 {times} 倍",
        "重叠调度，整个运行：设备 {ahead} % 的时间在工作，而不是 {serial} %",
        "minisched · SGLang、vLLM、MindIE 的调度循环，小到可以读完",
    ),
}


def card(form: Form = FORMS["card"]) -> str:
    """Draw a few steps of serial, and overlap meanwhile, in letters that can be read on a phone."""
    traces = [trace_of("serial"), trace_of("overlap")]
    serial, overlap = map(measure, traces)
    figures = {
        "times": f"{serial.makespan_ns / overlap.makespan_ns:.2f}",
        "ahead": f"{overlap.device_busy_percent:.0f}",
        "serial": f"{serial.device_busy_percent:.0f}",
    }
    big, why, what = (words.format(**figures) for words in SAYS[form.lang])
    drawn = [f'<rect class="paper" width="{form.width}" height="{form.height}"/>']
    y = 90
    for kind, size, words in (("big", 52, big), ("low faint", 26, why), ("low faint", 26, what)):
        y = form.last if words is what else y
        for line in folded(words, form.width - 2 * form.edge, size, bold=kind == "big"):
            drawn.append(f'<text class="{kind}" x="{form.edge}" y="{y}">{escape(line)}</text>')
            y += round(1.2 * size)
        y += 10 - round(1.2 * size) + 36
    scene = by_step(traces, form.periods)
    scene = translated(scene) if form.lang == "zh" else scene
    for part, top in zip(scene.parts, form.strips, strict=True):
        drawn.append(f'<text class="middle" x="{form.edge}" y="{top - 12}">{part.heading}</text>')
        x = form.edge + round(width_of(part.heading, 30, bold=True)) + 26
        room = form.width - form.edge - x
        note = part.note if width_of(part.note, 26) < room else re.split(", |，", part.note)[0]
        drawn.append(f'<text class="low faint" x="{x}" y="{top - 12}">{note}</text>')
        (lanes,) = part.shows
        assert isinstance(lanes, Lanes)
        drawn += strip(lanes, top, form)
    body = "\n".join(drawn)
    size = f'viewBox="0 0 {form.width} {form.height}" width="{form.width}" height="{form.height}"'
    style = style_of(body).replace("</style>", LETTERS + "</style>")
    font = f'font-family="{FONT}" fill="{LIGHT["ink"]}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{style}\n{painted(body)}\n</svg>\n'


def strip(lanes: Lanes, top: int, form: Form) -> list[str]:
    """Draw one loop: its host above its device, which is hatched while it idles."""
    wide = form.width - form.edge - form.left
    drawn, scale = list[str](), wide / lanes.end
    for at, row in enumerate(lanes.rows):
        y = top + at * (HIGH + 12)
        drawn.append(f'<text class="low" x="{form.edge}" y="{y + 31}">{row.name}</text>')
        drawn.append(f'<rect class="lane" x="{form.left}" y="{y - 4}" width="{wide}" '
                     f'height="{HIGH + 8}"/>')  # fmt: skip
        for item in row.spans:
            x, width = form.left + item.start * scale, (item.end - item.start) * scale
            drawn.append(f'<rect class="box {css(item.kind)}" x="{x:.1f}" y="{y}" '
                         f'width="{width:.1f}" height="{HIGH}" rx="4"/>')  # fmt: skip
            fits = (words for words in (item.label, item.brief) if width_of(words, 24) + 2 < width)
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


def to_png(svg: str, form: Form) -> bytes:
    """Draw the picture in pixels, with the machine's Chromium or else Playwright's own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": form.width, "height": form.height})
        page.set_content(f"<style>body {{ margin: 0 }} svg {{ display: block }}</style>{svg}")
        shot: bytes = page.screenshot()
        browser.close()
    return shot


if __name__ == "__main__":
    for name, form in FORMS.items():
        svg, path = card(form), STATIC / f"{name}.png"
        path.write_bytes(stamped(to_png(svg, form), svg))
        print(path)
