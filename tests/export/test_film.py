"""Pictures as pixels: their size, their paper, and films that begin veiled and end whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minisched.export.chromium import HOLD_S, Frame, shots_of, to_png
from minisched.export.motion import playing
from minisched.export.recipes import trace_of
from minisched.export.runs import compare
from minisched.export.scene_svg import to_svg

WIDTH, SECONDS, FPS = 430, 0.5, 20
COUNT = int(SECONDS * FPS)
SIZES = f"--seconds {SECONDS} --fps {FPS} --width {WIDTH}"


def size_of(png: bytes) -> tuple[int, int]:
    return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])


@pytest.mark.thorough
def test_a_film_begins_veiled_and_ends_with_the_whole_picture() -> None:
    svg, frame = to_svg(compare([trace_of("serial"), trace_of("overlap")])), Frame(WIDTH, 200)
    shots = list(shots_of(playing(svg), frame, 5))
    assert len(shots) == 6 and all(one != other for one, other in pairwise(shots))
    assert {size_of(shot) for shot in shots} == {(WIDTH, 200)}
    assert shots[-1] == to_png(svg, frame) != to_png(svg, Frame(WIDTH, 200, is_dark=True))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "codec"), [("a/film.gif", "gif"), ("film.mp4", "h264")])
def test_a_film_is_as_long_and_as_large_as_was_asked(
    cli: Any, tmp_path: Path, name: str, codec: str
) -> None:
    trace = Path(__file__).resolve().parents[2] / "traces" / "overlap.json"
    code, out, _ = cli(f"film serial {trace} --out {name} --dark {SIZES}")
    assert (code, out.split(", ")[-1]) == (0, f"{COUNT} frames\n")

    def ask(*words: str) -> str:
        command = [*words, name] if words[0] == "ffprobe" else [*words[:1], "-i", name, *words[1:]]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout

    said = ask("ffprobe", "-v", "error", "-show_entries", "stream=codec_name,width", "-of", "csv")
    assert said.strip() == f"stream,{codec},{WIDTH}"
    lines = ask("ffmpeg", "-v", "error", "-f", "framemd5", "-").splitlines()
    hashes = [line.split(",")[-1] for line in lines if not line.startswith("#")]
    assert len(hashes) == COUNT + HOLD_S * FPS
    assert len({*hashes[: COUNT + 1]}) == COUNT + 1, "each frame is another one"


@pytest.mark.thorough
def test_a_png_fills_its_frame() -> None:
    assert size_of(to_png(to_svg(compare([trace_of("overlap")])), Frame(960, 540))) == (960, 540)


@pytest.mark.parametrize(("there", "said"), [
    ((), "a film needs ffmpeg"),
    (("ffmpeg",), "pip install 'minisched[film]'"),
    (("ffmpeg", "playwright"), "needs Chromium"),
])  # fmt: skip
def test_what_is_missing_is_said_in_a_sentence(
    cli: Any, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    if "playwright" not in there:
        monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    code, _, err = cli("film overlap")
    assert code == 2 and said in err and err.count("\n") == 1
