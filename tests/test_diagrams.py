"""The pictures and golden traces that the repository keeps are those that its code makes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from minisched.cli.diagrams import run_diagrams
from minisched.export import golden, native, render_puml
from minisched.export.golden_files import makers, measured
from minisched.export.palette import PAINTS, SHARES
from minisched.export.puml_style import BUBBLE
from minisched.export.recipes import recipes, titles
from minisched.export.render_puml import DRIVER

ROOT = Path(__file__).resolve().parents[1]
DIAGRAMS = ROOT / "diagrams"
SOURCES = sorted(DIAGRAMS.glob("*.puml"))
BY_HAND = {"class_structure", "decode", "future_map", "generation_batch_result",
           "grammar_manager", "lazy_chain", "mixed_chunk", "page_allocator", "prefill",
           "radix_cache", "request_states", "retraction", "schedule_policy", "scheduler",
           "unified", "way_of_a_batch"}  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the command looks after."""
    for name in ("diagrams", "traces"):
        ignore = shutil.ignore_patterns("node_modules")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    return tmp_path


def test_nothing_is_stale(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagrams([], is_check=True) == 0, capsys.readouterr().out
    assert re.fullmatch(r"\d+ files checked, none stale", last_line(capsys))


def diagrams(names: list[str], root: Path = ROOT, is_check: bool = False, svg: bool = True) -> int:
    return run_diagrams(names, is_check, svg, root)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_the_check_names_each_stale_file(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["overlap", "serial", "compare"]
    assert diagrams(names, copy, is_check=True) == 0
    checked = int(last_line(capsys).split()[0])
    trace, picture, missing = (
        copy / name
        for name in ("traces/overlap.json", "diagrams/compare.svg", "traces/serial.json")
    )
    trace.write_text(trace.read_text().replace("17100000", "17100001", 1) + "\n")
    picture.write_text(picture.read_text().replace("overlap", "overlap!", 1))
    missing.unlink()
    before = contents(copy)
    assert diagrams(names, copy, is_check=True) == 1
    assert contents(copy) == before  # a check changes nothing
    assert capsys.readouterr().out.splitlines() == [
        "diagrams/compare.svg is stale",
        "traces/overlap.json is stale",
        "traces/serial.json is stale",
        f"{checked} files checked, 3 stale; "
        "`minisched diagrams overlap serial compare` brings them up to date",
    ]
    assert diagrams(names, copy, svg=False) == 0
    assert last_line(capsys) == f"{checked - 4} files generated, 3 of them changed"
    assert diagrams(names, copy, is_check=True) == 0


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_edited_diagram_makes_its_picture_stale_without_a_renderer(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_puml, "DRIVER", copy / "render.mjs")
    monkeypatch.setenv("PATH", str(copy))
    source = copy / "diagrams" / "decode.puml"
    source.write_text(source.read_text() + "' edited\n")
    assert diagrams(["decode"], copy, is_check=True) == 1
    assert capsys.readouterr().out.startswith("diagrams/decode.svg is stale\n")
    (copy / "diagrams" / "decode.svg").unlink()
    assert diagrams(["decode"], copy, is_check=True) == 1


def test_an_edited_comparison_is_stale_too(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_puml, "DRIVER", copy / "render.mjs")  # texts need no renderer
    monkeypatch.setenv("PATH", str(copy))
    name = "async_scheduling_three_way_compare"
    text = (copy / "diagrams" / f"{name}.md").read_text()
    (copy / "diagrams" / f"{name}.md").write_text(text.replace("| 9.20 |", "| 9.00 |", 1))
    assert diagrams([name], copy, is_check=True) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"diagrams/{name}.md is stale",
        f"1 files checked, 1 stale; `minisched diagrams {name}` brings them up to date",
    ]
    assert diagrams([name], copy) == 0
    assert (copy / "diagrams" / f"{name}.md").read_text() == text


def test_a_name_that_is_nothing_gets_a_sentence(copy: Path) -> None:
    with pytest.raises(ValueError, match=r"^'overlapp' is no topic and no diagram; did you mean"):
        diagrams(["overlapp"], copy)
    with pytest.raises(ValueError, match=r"^'zzz' is no topic and no diagram; some are "):
        diagrams(["zzz"], copy)


def test_what_is_measured_is_drawn_when_named_and_never_checked(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"traces/measured.svg": "<svg/>"}
    monkeypatch.setattr(golden, "measured", lambda: {"measured": lambda: files})
    monkeypatch.setattr(golden, "makers", lambda: {"empty": dict})
    assert diagrams([], copy, svg=False) == 0 and not (copy / "traces/measured.svg").exists()
    assert diagrams(["measured"], copy, svg=False) == 0
    assert last_line(capsys) == "1 files generated, 1 of them changed"
    assert (copy / "traces/measured.svg").read_text() == "<svg/>"
    with pytest.raises(ValueError, match=r"^'measured' is measured on a machine, so there is noth"):
        diagrams(["measured"], copy, is_check=True)


def test_golden_traces_can_be_read_back() -> None:
    for topic in ("serial", "decode", "future_map"):
        assert native.read(ROOT / "traces" / f"{topic}.json") == recipes()[topic].run()


@pytest.mark.parametrize("path", sorted(DIAGRAMS.glob("*.svg")), ids=lambda path: path.name)
def test_every_picture_is_whole(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    words = "".join(root.itertext())
    assert "Syntax Error" not in words and len(words) > 100
    assert "http" not in text.replace("http://www.w3.org/", "")


def test_every_diagram_has_its_picture() -> None:
    names = {path.stem for path in SOURCES}
    assert names >= {"decode", "prefill", "future_map", "scheduler", *titles()}
    assert {path.stem for path in DIAGRAMS.glob("*.svg")} == names | {"compare"}
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("@startuml\n") and text.endswith("@enduml\n")


def test_every_kept_file_is_made_or_drawn_by_hand() -> None:
    """Nothing generated stays behind when what made it has gone."""
    made = {name for make in makers().values() for name in make()}
    kept = {f"{path.parent.name}/{path.name}" for path in ROOT.glob("traces/*.*")}
    kept |= {f"diagrams/{path.name}" for path in DIAGRAMS.glob("*.md")}
    kept -= {f"traces/{name}.svg" for name in measured()} | {"traces/README.md"}
    assert kept == {name for name in made if name.startswith("traces/") or name.endswith(".md")}
    assert {path.stem for path in SOURCES if f"diagrams/{path.name}" not in made} == BY_HAND


def test_colours_can_be_told_apart_on_their_text() -> None:
    """WCAG: text stands out from its fill by a contrast of at least 4.5."""
    for paint in [*PAINTS.values(), *SHARES.values(), BUBBLE]:
        bright, dark = sorted(map(luminance, (paint.fill, paint.text)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, paint


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_driver_is_pinned_and_names_no_registry() -> None:
    package = json.loads((DRIVER.parent / "package.json").read_text())
    lock = (DRIVER.parent / "package-lock.json").read_text()
    assert package["dependencies"] == {"@plantuml/core": "1.2026.8"}
    assert json.loads(lock)["packages"]["node_modules/@plantuml/core"]["integrity"]
    assert not re.search(r"https?:|resolved", lock)


def test_the_command_says_why_it_cannot_render(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "diagrams").mkdir()
    (tmp_path / "diagrams" / "wrong.puml").write_text("@startuml\nno diagram\n@enduml\n")
    assert diagrams(["wrong"], tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_renderer_nothing_is_written(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_puml, "DRIVER", copy / "render.mjs")
    monkeypatch.setenv("PATH", str(copy))
    (copy / "traces" / "overlap.json").unlink()
    before = contents(copy)
    assert diagrams(["overlap"], copy) == 2
    assert contents(copy) == before and capsys.readouterr().err.count("\n") == 1


def test_outside_of_a_checkout_a_sentence_says_so(tmp_path: Path) -> None:
    assert golden.checkout() == ROOT
    with pytest.raises(ValueError, match=r"which has no pyproject\.toml: run it in a git clone\.$"):
        golden.checkout(tmp_path)
