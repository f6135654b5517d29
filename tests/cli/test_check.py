"""``minisched check FILE``, as a user types it: real profiles, and files in our own format."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field
from html import unescape
from inspect import signature, unwrap
from pathlib import Path
from typing import Any

import pytest
import typer

import minisched as ms
from minisched.checks import causes
from minisched.checks.draw import CASES_EACH
from minisched.checks.verdict import SCREEN_COLUMNS, SCREEN_LINES
from minisched.cli.app import app
from minisched.trace import Slice, Trace
from minisched.trace.native import to_json
from tests.conftest import ROOT

GROUP: Any = typer.main.get_command(app)
REAL = sorted((ROOT / "minisched" / "learn" / "traces").glob("*.gz"))


# -- Options ---------------------------------------------------------------------------------------


def plain_settings() -> list[tuple[Any, str, Any]]:
    """Return (command, option, declared default) of each setting outside a group."""
    found = []
    for name in GROUP.list_commands(None):
        command = GROUP.get_command(None, name)
        for one in (command, *getattr(command, "commands", {}).values()):
            declared = signature(unwrap(one.callback)).parameters if one.callback else {}
            found += [
                (one, key, item.default) for key, item in declared.items()
                if isinstance(item.default, Field)
            ]  # fmt: skip
    return found


def test_a_setting_that_is_not_given_has_the_value_that_its_function_declares() -> None:
    """``step: str = setting("", ...)`` arrives as ``""``, never as None.

    So ``--step ''`` and no ``--step`` are the same: both name no range, and the engines' own names
    count. A code path that splits the text would end in a traceback on None.
    """
    settings = plain_settings()
    assert len(settings) > 30
    for command, name, declared in settings:
        (option,) = (item for item in command.params if item.name == name)
        is_made = declared.default is MISSING
        wanted = declared.default_factory() if is_made else declared.default
        assert option.default == wanted, f"{command.name} --{name}"


@pytest.mark.parametrize("file", REAL, ids=lambda path: path.name.partition(".")[0])
def test_a_profile_of_a_real_engine_is_judged(cli: Any, file: Path) -> None:
    code, out, err = cli(f"check {file}")
    assert (code, err) == (0, "") and "overlaps?" in out
    assert cli(f"check --step '' {file}") == (code, out, err)


RUNS = [*REAL, *sorted((ROOT / "tests" / "checks" / "profiles").glob("*.json"))]


@pytest.mark.parametrize("file", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_a_verdict_fits_on_a_screen_and_detail_has_the_rest(
    cli: Any, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))
    screen, whole = cli(f"check {file}")[1].splitlines(), cli(f"check {file} --detail")[1]
    assert len(screen) <= SCREEN_LINES and max(map(len, screen)) <= SCREEN_COLUMNS
    (run,) = json.loads(cli(f"check {file} --json")[1])["runs"]
    for row in run["verdict"]:
        for line in (row["sentence"], *row["details"], *row["more"]):
            assert "".join(line.split()) in "".join(whole.split())
    assert not screen[-1].startswith("  and ") or len(whole.splitlines()) >= len(screen)


def test_a_broken_law_comes_first_on_a_screen(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))
    name = ROOT / "lessons" / "site" / "docs" / "engines" / "thread_engine.py"
    assert not subprocess.run([sys.executable, str(name), "t.json"], timeout=60).returncode
    code, out, _ = cli("check t.json")
    assert code == 1 and len(out.splitlines()) <= SCREEN_LINES
    assert "✗ races?" in out and "overlaps?" in out and "next?" not in out
    assert "next?" in cli("check t.json --detail")[1]


# -- Files in our own format -----------------------------------------------------------------------


def steps_of(count: int, lane: str = "forward", unit: int = 1000, first: int = 1) -> Trace:
    """Serial steps of 12 ms: 2 ms of the host, then 10 ms of the device; ``unit`` ns a us."""
    slices = list[Slice]()
    for at in range(count):
        start, step = 12_000 * at, first + at
        slices += [
            Slice(2 * at + 1, "host", "launch", start * unit, (start + 2_000) * unit, step),
            Slice(
                2 * at + 2, lane, "forward", (start + 2_000) * unit, (start + 12_000) * unit, step
            ),
        ]
    return Trace("mine", "cuda", "llama", "wall", tuple(slices), (), (), ())


def damaged(change: Callable[[Any], object]) -> str:
    """Return the text of a trace with a change."""
    data = json.loads(to_json(steps_of(3)))
    change(data)
    return json.dumps(data)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(("text", "reason"), [
    (damaged(lambda data: data.pop("model")), "damaged minisched trace: the trace lacks model."),
    (damaged(lambda data: data["slices"][1].pop("end")), "slices[1] lacks end."),
    (damaged(lambda data: data.update(model=None)), "the trace has model = null."),
    (damaged(lambda data: data["slices"][1].update(end=10**400)),
     "slices[1] has end = 10000000000000000000..., but no number may reach 2**63."),
    (damaged(lambda data: data["slices"][1].update(attrs={"pages": 10**400})),
     "slices[1] has attrs = 10000000000000000000..., but no number may reach 2**63."),
    (damaged(lambda data: data.update(x=1)).replace('"x": 1', f'"x": {DEEP}'),
     "is not a minisched trace: it is nested too deep."),
], ids=["lacks", "lacks of an event", "null", "time", "attribute", "deep"])  # fmt: skip
def test_a_damaged_trace_is_one_sentence(cli: Any, tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "t.json").write_text(text, "utf-8")
    code, out, err = cli("check t.json")
    assert (code, out, err.count("\n")) == (2, "", 1) and reason in err
    with pytest.raises(ValueError) as caught:
        ms.check(tmp_path / "t.json")
    assert str(caught.value).endswith(reason)


@pytest.mark.parametrize(("name", "text", "command"), [
    ("p.json", DEEP, "run --profile p.json --requests 1"), ("r.jsonl", DEEP, "replay r.jsonl"),
    ("g.toml", f"a = {DEEP}", "sweep g.toml"),
], ids=["profile", "replay", "grid"])  # fmt: skip
def test_a_file_that_is_nested_deep_is_one_sentence(
    cli: Any, tmp_path: Path, name: str, text: str, command: str
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    code, out, err = cli(command)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_file_in_gzip_may_unpack_to_a_limit(cli: Any, tmp_path: Path) -> None:
    own = to_json(steps_of(3)) + " " * (1 << 20)
    chrome = json.dumps({"traceEvents": []}) + " " * (1 << 20)
    for name, text in (
        ("own.gz", own),
        ("chrome.gz", chrome),
        ("lines.gz", '{"a": 1' + " " * (1 << 20)),
    ):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        command = "replay" if name == "lines.gz" else "check"
        code, out, err = cli(f"{command} {name} --unpacked-mib 1")
        assert (code, out) == (2, "") and err == (
            f"minisched: {name} can't be read: it unpacks to more than 1 MiB; raise that limit "
            "(--unpacked-mib), or unpack the file first.\n"
        )
        assert "MiB" not in cli(f"{command} {name} --unpacked-mib 2")[2]
    with pytest.raises(ValueError, match="more than 1 MiB"):
        ms.check(tmp_path / "own.gz", unpacked_mib=1)
    assert ms.check(tmp_path / "own.gz", unpacked_mib=2).runs
    code, out, err = cli("check own.gz --unpacked-mib 0")
    assert code == 2 and "--unpacked-mib is 0, but it must be between 1 and" in err


def test_the_lane_of_the_device_can_be_named(cli: Any, tmp_path: Path) -> None:
    for lane in ("gpu", "forward"):
        (tmp_path / f"{lane}.json").write_text(to_json(steps_of(4, lane)), "utf-8")
    code, out, _ = cli("check gpu.json")
    assert code == 0 and "Nothing to judge: no device is recorded in this file." in out
    assert "the lanes here are gpu, host. Name the device's one with --device-lane gpu." in out
    named = cli("check gpu.json --device-lane gpu")[1].splitlines()[1:]
    assert named == cli("check forward.json")[1].splitlines()[1:]
    found = ms.check(tmp_path / "gpu.json", device_lane="gpu")
    assert str(found).splitlines()[1:] == named
    code, out, err = cli("check gpu.json --device-lane npu")
    assert code == 2 and "--device-lane npu names no lane; the lanes are gpu, host." in err
    assert cli("check --device-lane gpu")[0] == 2
    with pytest.raises(ValueError, match="device_lane is about files"):
        ms.check(device_lane="gpu")


def test_python_takes_the_name_of_a_step_too(cli: Any) -> None:
    file = next(path for path in REAL if "vllm_decode" in path.name)
    _, out, _ = cli(f"check {file} --step 'execute_*'")
    assert str(ms.check(file, step="execute_*")) == out.rstrip("\n")
    with pytest.raises(ValueError, match="--step nothing names no range around a launch"):
        ms.check(file, step="nothing")


def test_what_looks_like_a_mistake_gets_a_hint() -> None:
    assert "step 0" not in str(ms.check(steps_of(4))) and "microseconds" not in str(
        ms.check(steps_of(4))
    )
    assert "1 op of the device has step 0, which belongs to no step" in str(
        ms.check(steps_of(4, first=0))
    )
    assert (
        "A step takes 12000 ns here, which is very short: if these times are microseconds"
        in str(ms.check(steps_of(4, unit=1)))
    )


@pytest.mark.parametrize("suffix", ["svg", "txt"])
def test_draw_draws_the_idle_steps_of_a_serial_run(cli: Any, tmp_path: Path, suffix: str) -> None:
    assert cli("compare --requests 2 --max-new-tokens 4 --out out")[0] == 0
    code, out, err = cli(f"check out/serial.json --draw found.{suffix}")
    assert (code, err) == (0, "") and "Serial" in out
    drawn = (tmp_path / f"found.{suffix}").read_text("utf-8")
    assert "step" in drawn and len(drawn) > 500
    code, _, err = cli(f"check out/overlap.json --draw other.{suffix}")
    assert code == 0 and "there is no violation or idle time to draw" in err


def test_the_help_and_the_page_say_on_how_many_designs_a_workload_runs() -> None:
    page = (ROOT / "lessons" / "site" / "docs" / "check_mine.md").read_text(encoding="utf-8")
    for text in (GROUP.get_command(None, "check").help, page):
        words = " ".join(text.split())
        assert f"on up to {CASES_EACH} designs" in words and "reach every loop" in words


def test_the_page_explains_every_cause_of_idle_time() -> None:
    page = (ROOT / "lessons" / "site" / "docs" / "check_mine.md").read_text(encoding="utf-8")
    table = page.partition("### Causes of idle time")[2]
    named = {causes.HOST, causes.COPY, causes.MASK, causes.UPLOAD, causes.TRANSFER, causes.STAGE,
             causes.ARRIVAL, causes.LATENCY, causes.UNKNOWN, causes.HOST_WAIT, causes.KERNEL_WAIT,
             causes.BLOCKED, causes.OTHER}  # fmt: skip
    assert {name for name in named if f"`{name}`" in table or f"*{name}*" in table} == named


def test_html_is_a_page_with_the_answers_and_a_picture(cli: Any, tmp_path: Path) -> None:
    assert cli("compare --requests 2 --max-new-tokens 8 --out out")[0] == 0
    code, out, _ = cli("check out/serial.json out/overlap.json --html page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert code == 0 and page.count("<h1>") == 2 and page.count("<svg") == 1
    words = " ".join(unescape(re.sub(r"<svg.*</svg>|<style>.*?</style>|<[^>]+>", " ", page,
                                     flags=re.DOTALL)).split())  # fmt: skip
    for line in out.splitlines():
        assert " ".join(line.split()) in words
    assert "http" not in re.sub(r'xmlns\S*="[^"]*"', "", page), "it loads nothing"
    code, _, err = cli("check --html page.html")
    assert code == 2 and "--html is about recorded runs, but none is named." in err
