"""Pictures as pixels, by Chromium: a PNG of any SVG, and a GIF or MP4 of one that plays.

Playwright drives it (the extra ``film``), and the Chromium is that of ``MINISCHED_CHROMIUM`` or the
machine's own. A film's frames are the picture at moments of its own animation (``motion.py``), so
that it shows what the SVG does, however slow the machine is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..devices.registry import load
from .motion import FADE, PLAYS, STANDS

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
HOLD_S = 2  # for how long a film ends with the whole picture
CODECS = {  # by how a film's name ends
    ".gif": ["-vf", "split[a][b];[a]palettegen[p];[b][p]paletteuse=dither=none"],
    ".mp4": ["-pix_fmt", "yuv420p", "-movflags", "+faststart"],  # which every player takes
}
PAGE = """<style>html, body { margin: 0; background: var(--paper) }
svg { width: 100vw; height: 100vh; display: block }</style>"""
SEEK = "s => document.getAnimations().forEach(a => { a.pause(); a.currentTime = 1000 * s })"


@dataclass(frozen=True)
class Frame:
    """How large an image is, in pixels, and whether it is on dark paper."""

    width: int
    height: int
    is_dark: bool = False


def fitting(svg: str, width: int, is_dark: bool = False) -> Frame:
    """As wide as that, and as high as the picture then is; both even, as films must be."""
    found = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg)
    assert found
    wide, high = map(int, found.groups())
    return Frame(width // 2 * 2, round(width * high / wide / 2) * 2, is_dark)


def find_chromium() -> str:
    """Where Chromium is.

    Raises:
        ValueError: nowhere.
    """
    names = (os.environ.get("MINISCHED_CHROMIUM", ""), *CHROMIUMS)
    found = next((path for path in map(shutil.which, filter(None, names)) if path), None)
    if found is None:
        raise ValueError(
            "a PNG or a film needs Chromium: install it (apt-get install chromium), or set "
            "MINISCHED_CHROMIUM to where it is."
        )
    return found


def find_driver() -> tuple[Any, str]:
    """What starts Playwright, and where Chromium is.

    Raises:
        ValueError: one of them is missing.
    """
    start = load("playwright.sync_api", "sync_playwright", "film", "a PNG or a film")
    return start, find_chromium()


@contextmanager
def opened(svg: str, frame: Frame, moves: bool = False) -> Iterator[Any]:
    """A page of Playwright's with the picture on it, as large as fits.

    Raises:
        ValueError: Playwright or Chromium is missing.
    """
    start, found = find_driver()
    with start() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*QUIET])
        page = browser.new_page(
            viewport={"width": frame.width, "height": frame.height},
            color_scheme="dark" if frame.is_dark else "light",
            reduced_motion="no-preference" if moves else "reduce",
        )
        page.set_content(PAGE + svg)
        yield page
        browser.close()


def to_png(svg: str, frame: Frame) -> bytes:
    """The picture as it stands, in the middle of its frame.

    Raises:
        ValueError: Playwright or Chromium is missing.
    """
    with opened(svg, frame) as page:
        shot: bytes = page.screenshot()
        return shot


def shots_of(svg: str, frame: Frame, count: int) -> Iterator[bytes]:
    """A picture that plays at so many moments, from its begin to its end; then the whole of it.

    Raises:
        ValueError: Playwright or Chromium is missing.
    """
    with opened(svg, frame, moves=True) as page:
        for at in range(count):
            page.evaluate(SEEK, STANDS + FADE + PLAYS * at / (count - 1))
            yield page.screenshot()
        page.evaluate(SEEK, 0)
        yield page.screenshot()


def write_film(
    svg: str, target: Path, frame: Frame, count: int, fps: int, hear: Callable[[], None]
) -> None:
    """Write so many frames of a picture that plays, and the whole of it for a while.

    ``target`` ends in a key of ``CODECS``; ``hear`` is called after each frame.

    Raises:
        ValueError: Playwright, Chromium or ffmpeg is missing, or the file can't be written.
    """
    if (ffmpeg := shutil.which("ffmpeg")) is None:
        raise ValueError("a film needs ffmpeg: install it (apt-get install ffmpeg).")
    with TemporaryDirectory() as folder:
        shot = b""
        for at, shot in enumerate(shots_of(svg, frame, count)):
            Path(folder, f"{at:05}.png").write_bytes(shot)
            hear()
        for at in range(count + 1, count + HOLD_S * fps):
            Path(folder, f"{at:05}.png").write_bytes(shot)
        command = [ffmpeg, "-y", "-loglevel", "error", "-framerate", f"{fps}"]
        command += ["-i", f"{folder}/%05d.png", *CODECS[target.suffix], str(target)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"ffmpeg can't write {target}: {done.stderr.strip()}")
