"""Generated files are current, and the names, links and classes of diagrams are in the code."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections import Counter
from functools import cache
from importlib import import_module
from inspect import getsource
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, get_args
from xml.etree import ElementTree

import pytest

from minisched.cli.diagrams import diagrams as command
from minisched.export import golden, render_puml
from minisched.export.golden import SCENES, makers
from minisched.export.render_puml import DRIVER
from minisched.export.scene_puml import NEW, OLD
from minisched.loops.design import LOOPS
from minisched.memory import PageCache
from minisched.museum.picture import museum_makers
from minisched.recipes import trace_of
from minisched.topics import TOPICS
from minisched.trace import native

ROOT = Path(__file__).resolve().parents[2]
DIAGRAMS = ROOT / "diagrams"
SOURCES = {path.stem: path.read_text("utf-8") for path in sorted(DIAGRAMS.glob("*.puml"))}
PICTURES = {path.stem: path.read_text("utf-8") for path in sorted(DIAGRAMS.glob("*.svg"))}
BY_HAND = {"class_structure", "decode", "future_map", "generation_batch_result",
           "grammar_manager", "lazy_chain", "mixed_chunk", "page_allocator", "prefill",
           "radix_cache", "request_states", "retraction", "schedule_policy",
           "unified", "way_of_a_batch",  # the rest are compared with runs in test_puml.py
           "sglang_cpu_gpu_overlap_event_loop", "sglang_futuremap_overlap",
           "vllm_cpu_gpu_overlap_batch_queue", "mindie_async_plugin_manager_pipeline",
           "mindie_scheduler_placeholder_async"}  # fmt: skip
LINK_STYLE = ("skinparam hyperlinkColor #0B57A4", "skinparam hyperlinkUnderline false")
MADE = [*makers(), *museum_makers()]
GROUPS = 8

# -- golden files ----------------------------------------------------------------------------------


@cache
def made(name: str) -> dict[str, str]:
    """The files of a maker."""
    return {**makers(), **museum_makers()}[name]()


@pytest.mark.parametrize("group", range(GROUPS))
def test_golden_files_are_byte_for_byte_what_the_code_makes(group: int) -> None:
    for name in MADE[group::GROUPS]:
        assert golden.stale_files(ROOT, made(name)) == [], advice(ROOT, name)


def advice(root: Path, name: str) -> str:
    """How to see what a maker would change, and how to accept it."""
    stale = filter(golden.is_hashed, golden.stale_files(root, made(name)))
    shown = "".join(f"`{golden.command_for(path)}` makes the new {path}; " for path in stale)
    return f"{shown}`minisched diagrams {name}` accepts the change"


def test_a_hash_catches_a_changed_trace_and_names_the_commands(tmp_path: Path) -> None:
    golden.write(tmp_path, {**made("decode"), **made("radix_cache")})
    kept = tmp_path / golden.HASHES
    assert [line.split()[1] for line in kept.read_text("utf-8").splitlines()] == [
        "traces/decode.json", "traces/decode.svg", "traces/radix_cache.json",
    ]  # fmt: skip
    assert golden.stale_files(tmp_path, made("decode")) == []
    changed = made("decode")["traces/decode.json"].replace('"time": ', '"time": 1', 1)
    golden.write(tmp_path, {"traces/decode.json": changed})
    assert golden.stale_files(tmp_path, made("decode")) == ["traces/decode.json"]
    assert golden.stale_files(tmp_path, made("radix_cache")) == []
    assert advice(tmp_path, "decode") == (
        "`minisched view decode --form json` makes the new traces/decode.json; "
        "`minisched diagrams decode` accepts the change"
    )


@pytest.mark.parametrize("topic", ["decode", "vllm_pp", "museum/stale_placeholder"])
def test_the_command_of_a_hash_makes_its_file(topic: str, cli: Any, tmp_path: Path) -> None:
    hashed = {path: text for path, text in made(topic).items() if golden.is_hashed(path)}
    assert hashed
    for path, text in hashed.items():
        assert cli(golden.command_for(path).removeprefix("minisched "))[0] == 0
        assert (tmp_path / Path(path).name).read_text("utf-8") == text


def test_a_picture_is_a_file_where_a_page_of_the_repository_shows_it() -> None:
    shown = set()
    for page in {*ROOT.glob("*.md"), *ROOT.glob("diagrams/*.md"), *ROOT.glob("lessons/**/*.md")}:
        shows = r"(?:\]\(|srcset=\"|src=\")([^)\s\"]+\.svg)"
        for link in re.findall(shows, page.read_text("utf-8")):
            shown.add((page.parent / link).resolve().relative_to(ROOT).as_posix())
    kept = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("traces/**/*.svg")}
    assert kept == {path for path in shown if path.startswith("traces/")}


def test_every_picture_is_drawn_from_the_text_beside_it() -> None:
    assert golden.stale_pictures(golden.sources(ROOT, (), {})) == []
    assert {*SOURCES} >= {"decode", "prefill", "future_map", *TOPICS}
    drawn = {name for name in SOURCES if golden.has_picture(name)}
    assert {*PICTURES} == {
        *drawn,
        *SCENES,
        "compare",
        "compare_phone",
        "compare_zh",
        "compare_zh_phone",
    }
    for name, text in SOURCES.items():
        first, start, *_ = text.splitlines()
        assert first in (OLD, NEW) and start == "@startuml" and text.endswith("@enduml\n"), name
        # the PlantUML of Debian 12 refuses rectangle lanes, and styles in classes and packages
        is_new = bool(re.search(r'^rectangle ".*" as lane|^package|^class ', text, re.M))
        assert (first == NEW) == is_new, name
    for name, svg in PICTURES.items():
        words = "".join(ElementTree.fromstring(svg).itertext())
        assert "Syntax Error" not in words and len(words) > 100, name
        assert "http" not in svg.replace("http://www.w3.org/", ""), name


def diagrams(names: list[str] | None = None, check: bool = False, svg: bool = True) -> int:
    """``minisched diagrams``."""
    return command(names, check, svg)


@pytest.mark.usefixtures("plantuml")
def test_nothing_is_stale_by_the_pinned_renderer(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagrams(check=True) == 0, capsys.readouterr().out


@pytest.mark.thorough
def test_every_kept_file_is_made_or_drawn_by_hand() -> None:
    names = set().union(*map(made, MADE))
    traces = [path for end in ("json", "svg") for path in ROOT.glob(f"traces/**/*.{end}")]
    kept = {path.relative_to(ROOT).as_posix() for path in traces if path.parent.name != "bench"}
    assert kept | {*golden.hashes(ROOT)} == {name for name in names if name.startswith("traces/")}
    assert {name for name in SOURCES if f"diagrams/{name}.puml" not in names} == BY_HAND
    for topic in ("serial", "overlap", "future_map"):
        assert native.read(ROOT / "traces" / f"{topic}.json") == trace_of(topic)


def test_the_driver_is_pinned_and_names_no_registry() -> None:
    lock = (DRIVER.parent / "package-lock.json").read_text("utf-8")
    package = json.loads(lock)["packages"]["node_modules/@plantuml/core"]
    assert package["version"] == "1.2026.8" and package["integrity"]
    assert not re.search(r"https?:|resolved", lock)


# -- the command that makes them -------------------------------------------------------------------


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_check_names_each_stale_file_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["compare", "retraction", "overlap"]
    for name in (name for maker in names for name in made(maker)):
        if not golden.is_hashed(name):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / golden.HASHES, tmp_path / golden.HASHES)
    shutil.copy(DIAGRAMS / "retraction.puml", tmp_path / "diagrams")
    monkeypatch.setattr(render_puml, "DRIVER", tmp_path / "render.mjs")
    monkeypatch.setenv("PATH", str(tmp_path))
    trace, picture = tmp_path / "traces/overlap.json", tmp_path / "diagrams/compare.svg"
    hashes = tmp_path / golden.HASHES
    trace.unlink()
    hashes.write_text(
        hashes.read_text("utf-8").replace(golden.hashes(ROOT)["traces/retraction.json"], "0"),
        "utf-8",
    )
    picture.write_text(picture.read_text("utf-8").replace("overlap", "overlap!", 1), "utf-8")
    before = contents(tmp_path)
    monkeypatch.setattr(golden, "checkout", lambda: tmp_path)
    assert diagrams(names, check=True) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert {
        "diagrams/compare.svg is stale", "diagrams/retraction.svg is stale",
        "traces/overlap.json is stale",
        "traces/retraction.json is stale; `minisched view retraction --form json` makes it",
    } == {*lines}  # fmt: skip
    assert last.endswith(f"`minisched diagrams {' '.join(names)}` brings them up to date")
    assert diagrams(names) == 2, "nothing is written"
    assert contents(tmp_path) == before and capsys.readouterr().err.count("\n") == 1
    assert diagrams(names, svg=False) == 0
    assert trace.is_file() and "overlap!" not in picture.read_text("utf-8")
    assert golden.hashes(tmp_path) == golden.hashes(ROOT)


# -- names and links -------------------------------------------------------------------------------

FOREIGN = {  # names that stand in the originals only
    "max_num_batched_tokens", "step_with_batch_queue", "EngineCore", "AsyncScheduler",  # vLLM
    "non_block", "take_draft_token_ids", "deferred_scheduler_output",  # vLLM
    "prev_sampled_token_ids",  # vLLM
    "StructuredOutputManager", "get_grammar_bitmask", "event_loop_overlap", "table_idx",  # SGLang
    "GenerationBatchResult", "output_tokens_buf",
    "complete_one", "filter_reqs",  # mini-sglang
    "LlmEngine", "AddNextTokenPlaceHolder", "ReplacePlaceHolderWithToken",  # MindIE-LLM
}  # fmt: skip
PACKAGE = [path.relative_to(ROOT) for path in (ROOT / "minisched").rglob("*.py")]
FOREIGN_COLUMNS = {"LOOP", "OPTION"}  # placeholders of the command line
LINK = re.compile(r"\[\[(\S+) ([^\]]+)\]\]")


@cache
def names() -> set[str]:
    """What the package defines or uses as a name."""
    found, kinds = {*LOOPS, *TOPICS}, {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg",
                              ast.FunctionDef: "name", ast.ClassDef: "name"}  # fmt: skip
    for path in (ROOT / "minisched").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if type(node) in kinds:
                found.add(getattr(node, kinds[type(node)]))
    return found


def in_code(file: str, symbol: str) -> Any:
    """What is defined there by that name."""
    module = import_module(file.removesuffix(".py").replace("../", "").replace("/", "."))
    return attrgetter(symbol)(module)


def named(text: str) -> set[str]:
    """Calls, CamelCase words and words with an underscore, without PlantUML's own."""
    text = re.sub(r"<style>.*?</style>", "", LINK.sub(r"\2", text), flags=re.S)
    text = re.sub(r"(?m)^(skinparam|hide|!pragma) .*$", "", text)
    declared = set(re.findall(r" as (\w+)$", text, re.M))  # the diagram's own lanes and actors
    text = re.sub(r"(#|line:)[0-9A-F]{6}|\[\w+\]", "", text).replace(r"\n", " ")
    calls = set(re.findall(r"\b([a-z]\w*)\(", text))
    classes = set(re.findall(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b", text))
    return (calls | classes | set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text))) - declared


def anchors_of(svg: str) -> list[tuple[str, str]]:
    """Address and text of every anchor of a picture."""
    name = "{http://www.w3.org/2000/svg}"
    return [
        (anchor.attrib["href"], "".join(text.text or "" for text in anchor.iter(f"{name}text")))
        for anchor in ElementTree.fromstring(svg).iter(f"{name}a")
    ]


def test_what_a_diagram_names_exists() -> None:
    for name, text in SOURCES.items():
        assert not named(text) - names() - FOREIGN, name


def test_a_link_leads_to_what_it_names_in_the_text_and_in_the_picture() -> None:
    with_links = {name for name, text in SOURCES.items() if LINK.search(text)}
    for name, source in SOURCES.items():
        places: dict[str, str] = {}
        for target, label in LINK.findall(source):
            file, _, symbol = target.partition("#")
            found = in_code(file, symbol)
            assert getattr(found, "fget", found).__qualname__ == symbol, f"{name}: {target}"
            assert places.setdefault(label, target) == target, f"{name}: two places for {label}"
        assert not places or all(f"\n{line}\n" in source for line in LINK_STYLE), name
        if name in PICTURES:
            assert Counter(anchors_of(PICTURES[name])) == Counter(LINK.findall(source)), name
    assert len(with_links) >= 19


def test_the_index_lists_every_diagram_under_its_title() -> None:
    index = (DIAGRAMS / "README.md").read_text("utf-8")
    listed = re.findall(r"\[`(\w+)`\]\((\w+)\.(?:svg|puml)\)", index)
    assert all(name == picture for name, picture in listed)
    assert {*re.findall(r"\((\w+)\.puml\)", index)} == golden.TEXT_ONLY
    others = {name for name in SOURCES if name not in TOPICS}
    assert {name for name, _ in listed} <= {*SOURCES}
    assert {name for name, _ in listed if name not in TOPICS} == others
    for name in others:
        title = re.search(r"^title (.*)$", SOURCES[name], re.M)
        form = "puml" if name in golden.TEXT_ONLY else "svg"
        assert title and f"({name}.{form}): {title[1].split(chr(92) + 'n')[0]}\n" in index, name


def test_what_the_pages_of_names_call_ours_is_in_the_code() -> None:
    """In tables with the columns "there" and "here": what stands in backticks in the second."""
    known = names() | {word for path in PACKAGE for word in path.with_suffix("").parts}
    known |= {"minisched", "py", *FOREIGN_COLUMNS}
    for page in ("names", "beside_the_guides"):
        text = (ROOT / f"lessons/site/docs/{page}.md").read_text("utf-8")
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
        here = [row[1] for row in rows if len(row) <= 3 and not set(row[1]) <= set("- |")]
        assert len(here) > 8
        for words in re.findall(r"`([^`]+)`", " ".join(here)):
            if not words.startswith("--"):
                assert {*re.findall(r"\w+", words)} <= known, f"{page}: {words}"


# -- classes ---------------------------------------------------------------------------------------


DRAWN = SOURCES["class_structure"]
BOX = re.compile(r'^  (class|interface) "(\[\[.*\]\])" as (\w+)', re.M)  # one class, or many alike
CLASS = re.compile(r"\[\[\.\./(\S+)#(\w+) (\w+)\]\]")
BODY = re.compile(r"as (\w+) \{\n(.*?)\n  \}", re.S)
HAS = re.compile(r'^(\w+) (<\|--|--\|>|<\|\.\.|[*o]-\w*-) (\w+)(?: : "? *(\w+) *"?)?$', re.M)


def has(kind: type, member: str, of: str = "") -> bool:
    """Whether it is a method, or a field that is declared or set; and its code names ``of``."""
    sources = [getsource(base) for base in kind.__mro__ if base.__module__.startswith("minisched")]
    is_field = any(re.search(rf"\b{member}(: | = )", source) for source in sources)
    return (is_field or hasattr(kind, member)) and any(of in source for source in sources)


def test_what_the_picture_of_classes_draws_is_so_in_the_code() -> None:
    body = re.sub(r"<style>.*?</style>|^legend.*?^end legend", "", DRAWN, flags=re.S | re.M)
    plain = r"['@]|skinparam|title|hide|package|\}|\w+ -\[hidden\]- \w+|$"
    for line in BODY.sub(r"as \1", body).splitlines():
        assert BOX.match(line) or HAS.match(line) or re.match(plain, line), line
    boxes: dict[str, list[type]] = {}
    for kind, links, name in BOX.findall(DRAWN):
        assert all(symbol == label for _, symbol, label in CLASS.findall(links)), name
        boxes[name] = [in_code(file, symbol) for file, symbol, _ in CLASS.findall(links)]
        assert all((kind == "interface") == (Protocol in one.__bases__) for one in boxes[name])
        assert len(boxes[name]) > 1 or boxes[name][0].__name__ == name
    arrows = HAS.findall(DRAWN)
    assert sum(map(len, boxes.values())) >= 25 and len(arrows) >= 18
    for name, inside in BODY.findall(DRAWN):
        for member in re.findall(r"\w+", inside):
            assert has(boxes[name][0], member), f"{name} has no {member}"
    assert {end for a, _, b, _ in arrows for end in (a, b)} <= set(boxes)
    for one, arrow, other, field in arrows:
        for owner, thing in product(boxes[one], boxes[other]):
            if "--" in arrow and "|" in arrow:
                child, base = (owner, thing) if arrow == "--|>" else (thing, owner)
                assert base in child.__bases__
            elif arrow == "<|..":
                methods = [name for name in vars(owner) if not name.startswith("_")]
                assert all(has(thing, name) for name in methods), (owner, thing)
            else:
                named = "PageCache" if thing in get_args(PageCache) else thing.__name__
                assert has(owner, field, of=named), f"{one}.{field} is no {thing}"
