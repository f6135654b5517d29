"""What the repository keeps of its own output is what its code makes; and what its diagrams name,
link to and draw is there in the code."""

from __future__ import annotations

import ast
import builtins
import json
import re
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from minisched.cli.diagrams import run_diagrams
from minisched.engine.engine import Engine
from minisched.export import golden, native, render_puml
from minisched.export.golden_files import makers, measured
from minisched.export.puml_links import LINK_COLOUR, LINK_STYLE, address, linked
from minisched.export.recipes import titles, trace_of
from minisched.export.render_puml import DRIVER
from minisched.loops.registry import LOOPS
from minisched.museum.files import museum_makers
from minisched.relay.future_map import FutureMapRing
from tests.support import browser, watch

__all__ = ["browser"]

ROOT = Path(__file__).resolve().parents[2]
DIAGRAMS = ROOT / "diagrams"
SOURCES = {path.stem: path.read_text("utf-8") for path in sorted(DIAGRAMS.glob("*.puml"))}
PICTURES = {path.stem: path.read_text("utf-8") for path in sorted(DIAGRAMS.glob("*.svg"))}
BY_HAND = {"class_structure", "decode", "future_map", "generation_batch_result",
           "grammar_manager", "lazy_chain", "mixed_chunk", "page_allocator", "prefill",
           "radix_cache", "request_states", "retraction", "schedule_policy", "scheduler",
           "unified", "way_of_a_batch"}  # fmt: skip
LONG = "async_scheduling_three_way_compare"  # to make it, every loop runs several times
MADE = [name for name in {**makers(), **museum_makers()} if name != LONG]
GROUPS = 8

# -- golden files ----------------------------------------------------------------------------------


@cache
def made(name: str) -> dict[str, str]:
    """The files of a maker."""
    return {**makers(), **museum_makers()}[name]()


@pytest.mark.parametrize("group", range(GROUPS))
def test_golden_files_are_byte_for_byte_what_the_code_makes(group: int) -> None:
    for name in MADE[group::GROUPS]:
        assert golden.stale_files(ROOT, made(name)) == [], f"minisched diagrams {name}"


def test_every_picture_is_drawn_from_the_text_beside_it() -> None:
    assert golden.stale_pictures(sorted(DIAGRAMS.glob("*.puml"))) == []
    assert {*SOURCES} >= {"decode", "prefill", "future_map", "scheduler", *titles()}
    assert {*PICTURES} == {*SOURCES} | {"compare"}
    for name, text in SOURCES.items():
        assert text.startswith("@startuml\n") and text.endswith("@enduml\n"), name
    for name, svg in PICTURES.items():
        words = "".join(ElementTree.fromstring(svg).itertext())
        assert "Syntax Error" not in words and len(words) > 100, name
        assert "http" not in svg.replace("http://www.w3.org/", ""), name


@pytest.mark.usefixtures("plantuml")
def test_nothing_is_stale_by_the_pinned_renderer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_diagrams([], True, True, ROOT) == 0, capsys.readouterr().out
    assert re.search(r"\n\d+ files checked, none stale\n$", "\n" + capsys.readouterr().out)


def test_every_kept_file_is_made_or_drawn_by_hand() -> None:
    """Nothing generated stays behind when what made it has gone."""
    names = {f"diagrams/{LONG}.md"}.union(*(made(name) for name in makers() if name != LONG))
    kept = {f"{path.parent.name}/{path.name}" for path in ROOT.glob("traces/*.*")}
    kept |= {f"diagrams/{path.name}" for path in DIAGRAMS.glob("*.md")}
    kept -= {f"traces/{name}.svg" for name in measured()} | {"traces/README.md"}
    assert kept == {name for name in names if name.startswith("traces/") or name.endswith(".md")}
    assert {name for name in SOURCES if f"diagrams/{name}.puml" not in names} == BY_HAND
    for topic in ("serial", "decode", "future_map"):
        assert native.read(ROOT / "traces" / f"{topic}.json") == trace_of(topic)


def test_the_driver_is_pinned_and_names_no_registry() -> None:
    package = json.loads((DRIVER.parent / "package.json").read_text())
    lock = (DRIVER.parent / "package-lock.json").read_text()
    assert package["dependencies"] == {"@plantuml/core": "1.2026.8"}
    assert json.loads(lock)["packages"]["node_modules/@plantuml/core"]["integrity"]
    assert not re.search(r"https?:|resolved", lock)


# -- the command that makes them -------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the command looks after, on a machine without a renderer."""
    for name in ("diagrams", "traces"):
        ignore = shutil.ignore_patterns("node_modules", "bench", "[a-ce-nt-z]*.svg")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    for name in ("overlap", "overlap_sequence", "compare"):
        shutil.copy(DIAGRAMS / f"{name}.svg", tmp_path / "diagrams")
    monkeypatch.setattr(render_puml, "DRIVER", tmp_path / "render.mjs")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_check_names_each_stale_file_and_changes_nothing(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["compare", "decode", "overlap"]
    trace, picture, text = (
        copy / name
        for name in ("traces/decode.json", "diagrams/compare.svg", "diagrams/decode.puml")
    )
    trace.unlink()
    picture.write_text(picture.read_text().replace("overlap", "overlap!", 1))
    text.write_text(text.read_text() + "' edited\n")
    before = contents(copy)
    assert run_diagrams(names, True, True, copy) == 1
    assert contents(copy) == before
    *lines, last = capsys.readouterr().out.splitlines()
    assert {"diagrams/compare.svg is stale", "traces/decode.json is stale",
            "diagrams/decode.svg is stale"} <= {*lines}  # fmt: skip
    assert last.endswith(f"`minisched diagrams {' '.join(names)}` brings them up to date")
    assert run_diagrams(names, False, True, copy) == 2, "without a renderer nothing is written"
    assert contents(copy) == before and capsys.readouterr().err.count("\n") == 1
    assert run_diagrams(names, False, False, copy) == 0
    assert trace.is_file() and "overlap!" not in picture.read_text()


def test_a_name_that_is_nothing_and_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    for name, says in (("overlapp", "did you mean"), ("zzz", "some are ")):
        with pytest.raises(ValueError, match=f"^'{name}' is no topic and no diagram; {says}"):
            run_diagrams([name], False, True, tmp_path)
    assert golden.checkout() == ROOT
    with pytest.raises(ValueError, match=r"which has no pyproject\.toml: run it in a git clone\.$"):
        golden.checkout(tmp_path)


def test_what_is_measured_is_drawn_when_named_and_never_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"traces/measured.svg": "<svg/>"}
    monkeypatch.setattr(golden, "measured", lambda: {"measured": lambda: files})
    monkeypatch.setattr(golden, "makers", lambda: {"empty": dict})
    golden.generate([], False, tmp_path)
    assert not (tmp_path / "traces/measured.svg").exists()
    golden.generate(["measured"], False, tmp_path)
    assert (tmp_path / "traces/measured.svg").read_text() == "<svg/>"
    with pytest.raises(ValueError, match=r"^'measured' is measured on a machine, so there is noth"):
        golden.check(["measured"], True, tmp_path)


# -- what the code defines -------------------------------------------------------------------------


DRAWN = SOURCES["class_structure"]
CLASS = re.compile(r'^  (class|interface) "\[\[\.\./(\S+)#(\w+) (\w+)\]\]" as (\w+)', re.M)


class Code(NamedTuple):
    """What the package's code has, file by file."""

    names: set[str]  # whatever is defined or used as a name
    functions: set[str]  # and methods; a property is read, and not called
    symbols: dict[Path, set[str]]  # classes and functions of a file, methods with their class
    classes: dict[str, Members]


class Members(NamedTuple):
    """A class's own: its bases, its methods, and what its fields may be."""

    bases: tuple[str, ...]
    methods: frozenset[str]
    fields: dict[str, set[str]]


@cache
def code() -> Code:
    found = Code({*LOOPS}, set(), {}, {})
    drawn_at = {name: file for _, file, name, *_ in CLASS.findall(DRAWN)}
    for path in sorted((ROOT / "minisched").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        symbols, here = found.symbols.setdefault(path, set()), str(path.relative_to(ROOT))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                symbols.add(node.name)
            if isinstance(node, ast.ClassDef):
                own = (item.name for item in node.body if isinstance(item, ast.FunctionDef))
                symbols.update(f"{node.name}.{name}" for name in own)
                if drawn_at.get(node.name, here) == here:
                    found.classes[node.name] = members(node)
        for each in ast.walk(tree):
            if isinstance(each, ast.FunctionDef | ast.ClassDef):
                found.names.add(each.name)
                is_read = any("property" in ast.unparse(one) for one in each.decorator_list)
                if isinstance(each, ast.FunctionDef) and not is_read:
                    found.functions.add(each.name)
            for kind, field in ((ast.Name, "id"), (ast.Attribute, "attr"), (ast.arg, "arg")):
                if isinstance(each, kind):
                    found.names.add(getattr(each, field))
    return found


def words(node: ast.AST) -> set[str]:
    return set(re.findall(r"\w+", ast.unparse(node)))


def members(node: ast.ClassDef) -> Members:
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    fields: dict[str, set[str]] = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign):
            fields.setdefault(ast.unparse(item.target), set()).update(words(item.annotation))
    for method in methods:
        arguments = [*method.args.args, *method.args.kwonlyargs]
        notes = {arg.arg: words(arg.annotation) for arg in arguments if arg.annotation}
        for step in ast.walk(method):
            if isinstance(step, ast.Assign | ast.AnnAssign) and step.value is not None:
                targets = step.targets if isinstance(step, ast.Assign) else [step.target]
                kinds = words(step.value)
                kinds |= set().union(*(notes.get(name, set()) for name in kinds))
                if isinstance(step, ast.AnnAssign):
                    kinds |= words(step.annotation)
                for target in targets:
                    if ast.unparse(target).startswith("self."):
                        fields.setdefault(ast.unparse(target)[5:], set()).update(kinds)
    bases = tuple(ast.unparse(base) for base in node.bases)
    return Members(bases, frozenset(method.name for method in methods), fields)


# -- names and links -------------------------------------------------------------------------------

FOREIGN = {  # names that stand in the originals only
    "max_num_batched_tokens": "vLLM v1/core/sched/scheduler.py",
    "step_with_batch_queue": "vLLM v1/engine/core.py",
    "EngineCore": "vLLM v1/engine/core.py",
    "AsyncScheduler": "vLLM v1/core/sched/async_scheduler.py",
    "StructuredOutputManager": "vLLM v1/structured_output/__init__.py",
    "get_grammar_bitmask": "vLLM v1/core/sched/scheduler.py",
    "event_loop_overlap": "SGLang managers/scheduler.py",
    "table_idx": "mini-sglang scheduler/table.py",
    "LlmEngine": "MindIE-LLM src/engine/llm_engine.cpp",
    "AddNextTokenPlaceHolder": "MindIE-LLM src/engine/llm_engine.cpp",
    "ReplacePlaceHolderWithToken": "MindIE-LLM src/scheduler/scheduler.cpp",
}
LINK = re.compile(r"\[\[(\S+) ([^\]]+)\]\]")
ARROW = re.compile(
    r"^\s*(?:\[\*\]|\w+)\s+[<*o|]*[-.](?:\[[^\]]*\])?(?:\w+)?[-.>|o*]*\s+(?:\[\*\]|\w+)\s*:\s*(.*)$"
)


def named(text: str) -> set[str]:
    """Calls, CamelCase words and words with an underscore, without PlantUML's own."""
    text = re.sub(r"<style>.*?</style>", "", LINK.sub(r"\2", text), flags=re.S)
    text = re.sub(r"(?m)^(skinparam|hide|!pragma) .*$", "", text)
    declared = set(re.findall(r" as (\w+)$", text, re.M))  # the diagram's own lanes and actors
    text = re.sub(r"(#|line:)[0-9A-F]{6}|\[\w+\]", "", text).replace(r"\n", " ")
    calls = set(re.findall(r"\b([a-z]\w*)\(", text))
    classes = set(re.findall(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b", text))
    return (calls | classes | set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text))) - declared


def said(source: str) -> list[str]:
    """What arrows say, and the actions and questions of an activity diagram, one after another."""
    body = re.sub(r"<style>.*?</style>", "", source, flags=re.S)
    arrows = [found[1] for line in body.splitlines() if (found := ARROW.match(line))]
    actions = re.findall(r"^\s*:(.*?);$", body, re.M | re.S)
    return arrows + actions + re.findall(r"^\s*(?:if|while) \((.*)\) (?:then|is) ", body, re.M)


def unlinked(text: str) -> set[str]:
    """Calls that are in no link, and names with a dot or an underscore that are functions."""
    rest = LINK.sub(" ", text).replace(r"\n", " ")
    calls = set(re.findall(r"\b([A-Za-z_][\w.]*)\((?! )", rest))
    found = set(re.findall(r"\b[A-Za-z]\w*(?:[._]\w+)+\b", rest))
    return calls | {word for word in found if word.rpartition(".")[2] in code().functions}


def anchors_of(svg: str) -> list[tuple[str, str]]:
    """Address and text of every anchor of a picture."""
    name = "{http://www.w3.org/2000/svg}"
    return [
        (anchor.attrib["href"], "".join(text.text or "" for text in anchor.iter(f"{name}text")))
        for anchor in ElementTree.fromstring(svg).iter(f"{name}a")
    ]


def test_the_search_finds_names_and_what_is_not_linked() -> None:
    text = "title x (LeasePool)\n:min_of_it() and then [num_reqs] skip_me\\nPrefillAdder;"
    assert named(text) == {"LeasePool", "PrefillAdder", "min_of_it", "skip_me"}
    assert {"LeasePool", "PrefillAdder", "computed_len", "add_one_req"} <= code().names
    assert named('participant "LeasePool" as the_pool\nthe_pool -> x : y') == {"LeasePool"}
    assert not {"LeasePond", "add_two_reqs"} & code().names
    for line, names in {
        "a -> b : add_one_req() of it": {"add_one_req"},
        "a -[#1F2328]>> b : step 5, then Engine.chain": {"Engine.chain"},
        "  [*] --> waiting : receive()": {"receive"},
        "a *-- b : next_batch and step_5": {"next_batch"},
        "b o-left- a : run_batch": {"run_batch"},
        "a --> b : [[../minisched/x.py#f next_batch()]] of (1 2), rows (3)": set(),
        ":grow();\nif (may(), or\\nmust()?) then (yes)": {"grow", "may", "must"},
    }.items():
        assert set().union(*map(unlinked, said(line))) == names and said(line), line


def test_what_a_diagram_names_exists() -> None:
    missing = {name: named(text) - code().names - {*FOREIGN} for name, text in SOURCES.items()}
    assert not {name: names for name, names in missing.items() if names}


def test_an_arrow_that_names_a_function_leads_to_it_in_the_text_and_in_the_picture() -> None:
    own = set(dir(builtins))  # such as ``min``
    with_links = {name for name, text in SOURCES.items() if LINK.search(text)}
    for name, source in SOURCES.items():
        bare = {word for text in said(source) for word in unlinked(text) - own}
        assert not bare, f"{name}: {bare} without a link"
        places: dict[str, str] = {}
        for target, label in LINK.findall(source):
            file, _, symbol = target.partition("#")
            known = code().symbols.get((DIAGRAMS / file).resolve(), set())
            assert symbol in known, f"{name}: {file} has no {symbol}"
            assert places.setdefault(label, target) == target, f"{name}: two places for {label}"
        assert not places or all(f"\n{line}\n" in source for line in LINK_STYLE), name
        assert Counter(anchors_of(PICTURES[name])) == Counter(LINK.findall(source)), name
    sequences = {name for name in SOURCES if name.endswith("_sequence")}
    by_hand = {"request_states", "way_of_a_batch", "class_structure", "decode", "prefill"}
    assert sequences | by_hand <= with_links and len(with_links) >= 35


@given(st.text("abc _():,", max_size=12), st.sampled_from(["resolve_future", "store_to_map"]))
def test_a_name_becomes_a_link_and_nothing_else_changes(around: str, name: str) -> None:
    places = {"resolve_future": FutureMapRing.resolve_future, "store_to_map": Engine.chain}
    plain = f"{around} {name}() and my_{name} and {name}_too"
    text = linked(plain, places)
    assert LINK.findall(text) == [(address(places[name]), f"{name}()")]
    assert LINK.sub(r"\2", text) == plain and linked(text, {}) == text
    # An inherited method leads to the class that defines it.
    assert address(Engine.chain) == "../minisched/engine/engine.py#Engine.chain"
    assert address(Engine.run_batch) == "../minisched/engine/step_phases.py#StepPhases.run_batch"


@pytest.mark.parametrize("name", ["overlap_sequence", "request_states", "prefill",
                                  "class_structure", "way_of_a_batch"])  # fmt: skip
def test_a_click_opens_the_code(browser: Browser, name: str) -> None:
    """In a sequence, states, an activity, classes and components."""
    anchors = anchors_of(PICTURES[name])
    target, label = anchors[-1]
    with watch(browser) as watched:
        page = watched.page
        page.goto((DIAGRAMS / f"{name}.svg").as_uri())
        assert page.locator("a").count() == len(anchors)
        anchor = page.locator("a").last
        assert anchor.locator("text").inner_html() == label
        assert anchor.locator("title").inner_html() == target[3:].replace("#", ": ")
        assert anchor.locator("text").get_attribute("fill") == LINK_COLOUR
        anchor.locator("text").click()
        page.wait_for_url(lambda url: ".py" in url)
        file, _, symbol = target.partition("#")
        assert page.url == f"{(DIAGRAMS / file).resolve().as_uri()}#{symbol}"
        defined = re.compile(rf"^ *(?:def|class) {symbol.rpartition('.')[2]}\b", re.M)
        assert defined.search(page.inner_text("body"))


# -- classes ---------------------------------------------------------------------------------------

BODY = re.compile(r"as (\w+) \{\n(.*?)\n  \}", re.S)
HAS = re.compile(r"^(\w+) (<\|--|--\|>|<\|\.\.|[*o]-\w*-) (\w+)(?: : (\w+))?$", re.M)


def family(name: str) -> list[Members]:
    """A class and those it inherits from."""
    own = code().classes.get(name)
    return [own, *(one for base in own.bases for one in family(base))] if own else []


def has_method(name: str, method: str) -> bool:
    return any(method in one.methods for one in family(name))


def kinds_of(name: str, field: str) -> set[str]:
    return set().union(*(one.fields.get(field, set()) for one in family(name)))


def test_what_the_picture_of_classes_draws_is_so_in_the_code() -> None:
    """No line is left unread; every class, member and arrow is true."""
    body = re.sub(r"<style>.*?</style>|^legend.*?^end legend", "", DRAWN, flags=re.S | re.M)
    plain = r"@|skinparam|title|hide|package|\}|\w+ -\[hidden\]- \w+|$"
    for line in BODY.sub(r"as \1", body).splitlines():
        assert CLASS.match(line) or HAS.match(line) or re.match(plain, line), line
    drawn, arrows = CLASS.findall(DRAWN), HAS.findall(DRAWN)
    assert len(drawn) >= 25 and len(arrows) >= 25
    for kind, _, symbol, label, name in drawn:
        assert symbol == label == name
        assert (kind == "interface") == ("Protocol" in code().classes[name].bases), name
    for name, inside in BODY.findall(DRAWN):
        for member in re.findall(r"[\w]+(?:\(\))?", inside):
            is_there = has_method(name, member[:-2]) if "(" in member else kinds_of(name, member)
            assert is_there, f"{name} has no {member}"
    assert {end for a, _, b, _ in arrows for end in (a, b)} <= {name for *_, name in drawn}
    for one, arrow, other, field in arrows:
        if arrow == "--|>":
            assert other in code().classes[one].bases
        elif arrow == "<|--":
            assert one in code().classes[other].bases
        elif arrow == "<|..":
            lacking = [name for name in code().classes[one].methods if not has_method(other, name)]
            assert not lacking, f"{other} lacks {lacking}"
        else:
            assert other in kinds_of(one, field), f"{one}.{field} is no {other}"
