"""The repository: its topics are complete, its layers hold, and what the README says is so."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from minisched.export.golden import draw, hashes, trace_of
from minisched.topics import SAME_PICTURE, TOPICS, view_of

ROOT = Path(__file__).resolve().parents[2]

# -- topics ----------------------------------------------------------------------------------------


def parts(topic: str) -> dict[str, str]:
    """Where each part of a topic belongs, as a pattern of paths from the repository's root."""
    view = view_of(topic)
    return {
        "code": f"minisched/{TOPICS[topic]}.py",
        "diagram": f"diagrams/{topic}.puml",
        "picture": f"traces/{SAME_PICTURE.get(topic, topic)}.svg",
        "trace": f"traces/{topic}.json",
        "view": f"minisched/export/{f'views/{view}' if view else 'runs'}.py",
    }


def is_tested(topic: str) -> bool:
    """Whether a file of its folder tests it: by its name, or by a heading ``# -- pd: ..`` in it."""
    heading = re.compile(rf"^# -- {topic}: ", re.M)
    paths = ROOT.glob(f"tests/{TOPICS[topic].partition('/')[0]}/test_*.py")
    return any(it.stem == f"test_{topic}" or heading.search(it.read_text("utf-8")) for it in paths)


def is_kept(pattern: str) -> bool:
    """Whether a part of a topic is a file, or a generated one that is kept as its hash."""
    return any(ROOT.glob(pattern)) or pattern in hashes(ROOT)


def test_every_topic_is_complete_and_some_lesson_teaches_it() -> None:
    assert {topic for topic in TOPICS if not is_tested(topic)} == set()
    lacking = {
        (topic, part)
        for topic in TOPICS
        for part, pattern in parts(topic).items()
        if not is_kept(pattern)
    }
    assert lacking == set()
    taught = set()  # by the header of a lesson
    for path in ROOT.glob("lessons/[0-9][0-9]_*.py"):
        header = re.search(r"^#\s+topics: \[(.*)\]$", path.read_text("utf-8"), re.M)
        taught |= {*re.findall(r"\w+", header[1] if header else "")}
    assert taught == set(TOPICS)


def test_the_slices_of_a_run_without_a_picture_are_those_of_the_picture_that_is_kept() -> None:
    for name, like in SAME_PICTURE.items():
        own, other = (
            re.findall("<title>(.*?)</title>", draw(topic, trace_of(topic), part="timing"))
            for topic in (name, like)
        )
        assert [title.replace(name, like) for title in own] == other and len(other) > 20


# -- layers ----------------------------------------------------------------------------------------

PACKAGE = ROOT / "minisched"
TIERS = (
    "core, record.py, record_torch.py, trace, memory, policy, scheduler, "
    "devices models relay speculative grammar, "
    "worker, engine, features, loops, checks, topics.py, recipes.py, export replay, "
    "comparison.py defaults.py, sweep, bench, fidelity museum, learn, "
    "own_loops.py, checking.py, cli pytest_plugin.py, __init__.py __main__.py"
)
TIER = {name: number for number, tier in enumerate(TIERS.split(", ")) for name in tier.split()}
STANDARD = ("core", "trace", "memory", "policy", "scheduler", "engine", "loops", "worker")


@cache
def named_in(path: Path) -> list[ast.Import | ast.ImportFrom | ast.ClassDef]:
    """Every import and every class of a file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [it for it in nodes if isinstance(it, ast.Import | ast.ImportFrom | ast.ClassDef)]


@cache
def imports() -> list[tuple[Path, str, bool]]:
    """Every import of the package: the file, what it names, and whether that is the package's."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in named_in(path):
            if isinstance(node, ast.ClassDef):
                continue
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.Import):
                found += [(path, name, False) for name in names]
            elif not node.level:
                found.append((path, node.module or "", False))
            else:
                base = path.parents[node.level - 1].relative_to(PACKAGE)
                for name in [node.module] if node.module else names:
                    first = (base / name.replace(".", "/")).parts[0]
                    is_folder = (PACKAGE / first).is_dir()
                    found.append((path, first if is_folder else f"{first}.py", True))
    return found


def test_imports_point_up() -> None:
    own = [(path, name) for path, name, is_own in imports() if is_own]
    assert len(own) > 1000
    wrong = [(path, n) for path, n in own if TIER[n] > TIER[path.relative_to(PACKAGE).parts[0]]]
    assert wrong == []


def test_a_class_name_means_one_thing_in_the_whole_package() -> None:
    """Except in ``nano.py``, which does in one file what the classes of the same names do."""
    named: dict[str, list[str]] = {}
    for path in sorted({*PACKAGE.rglob("*.py")} - {PACKAGE / "nano.py"}):
        for node in named_in(path):
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in named.items() if len(where) > 1} == {}


def test_no_two_modules_import_each_other() -> None:
    """Neither directly nor in a ring, and an import for types alone counts, too."""
    files = {path.relative_to(ROOT).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
    modules = {name[:-1] if name[-1] == "__init__" else name: p for name, p in files.items()}
    graph: dict[tuple[str, ...], set[tuple[str, ...]]] = {name: set() for name in modules}
    for name, path in modules.items():
        folder = path.relative_to(ROOT).parts[:-1]
        for node in named_in(path):
            if not isinstance(node, ast.ImportFrom):
                continue
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            named = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                other = (*named, alias.name) if (*named, alias.name) in modules else named
                graph[name] |= {other} & modules.keys() - {name}
    while True:  # who imports nobody is in no ring, nor is whom nobody imports
        imported = set().union(*graph.values())
        free = {name for name, others in graph.items() if not others or name not in imported}
        if not free:
            break
        graph = {name: others - free for name, others in graph.items() if name not in free}
    assert graph == {}


def test_the_scheduler_knows_no_tensor_library() -> None:
    wrong = [
        (path, name)
        for path, name, is_own in imports()
        if not is_own and path.relative_to(PACKAGE).parts[0] in STANDARD
        if name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert wrong == []


# -- the README ------------------------------------------------------------------------------------

README, CHINESE = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
)
DOCS = {path.name: path.read_text("utf-8") for path in ROOT.glob("lessons/site/docs/*.md")}
TEXTS = "\n".join([README, *DOCS.values()])
BLOCKS = re.findall(r"```sh\n(.*?)```", TEXTS, re.DOTALL)
LINES = re.findall(r"^minisched (.*?) *(?:#.*)?$", "\n".join(BLOCKS), re.MULTILINE)
# They need an original's sources, a GPU, or a quiet machine for minutes; tests run them made small.
# The files of recipes come from an engine elsewhere; tests/checks reads such files.
# Other tests run two of them: test_coverage.py `check`, and test_diagrams.py `diagrams --check`.
ELSEWHERE = re.compile(
    r"fidelity |bench |diagrams --check$|.*--device cuda"
    r"|check$|check .*(/tmp/|tests/data/|without_overlap|trace\.(sqlite|json))"
)
OURS = [line for line in dict.fromkeys(LINES) if not ELSEWHERE.match(line)]
LONG = re.compile(r"compare .*--|diagrams|check|sweep")  # about a second, or more
CSV, GRID = (  # the files that they tell how to make
    re.findall(rf"```{kind}\n(.*?)```", TEXTS, re.DOTALL)[0] for kind in ("csv", "toml")
)


def marks(line: str) -> list[pytest.MarkDecorator]:
    """What a command needs: SmolLM2's weights, or time."""
    weights = [pytest.mark.weights] * ("smollm2" in line)
    return weights + [pytest.mark.thorough] * bool(LONG.match(line))


def compared_before(line: str) -> str:
    """The `compare` that its block tells last before it, and the shortest of all without one."""
    block = next(block for block in BLOCKS if f"minisched {line}" in block)
    told = re.findall(r"^minisched (compare.*)$", block.partition(f"minisched {line}")[0], re.M)
    return told[-1] if told else "compare"


@pytest.mark.parametrize("line", [pytest.param(line, marks=marks(line)) for line in OURS])
def test_a_command_of_the_readme_and_the_pages(
    line: str, cli: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "smollm2" in line:
        request.getfixturevalue("smollm2")  # the fetch, if it has not happened yet
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    (tmp_path / "requests.csv").write_text(CSV, encoding="utf-8")
    (tmp_path / "grid.toml").write_text(GRID, encoding="utf-8")
    if " out/" in line:  # what a comparison has left: the one told above it, or the first of all
        assert cli(compared_before(line))[0] == 0
    code, out, err = cli(line)
    assert code == 0, err
    if line.startswith("compare"):
        assert "Identical:" in out and (tmp_path / "out" / "compare.html").is_file()


def test_ci_runs_the_two_commands_as_they_stand_here_and_first() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    steps = [line.split(" | ")[0] for line in ci.splitlines() if line and not line.startswith("#")]
    start = steps.index("pip install -e .")
    first = ["pip install -e .", "minisched compare", "pip install -e '.[dev]'", "pytest"]
    assert steps[start : start + 4] == first


def test_every_file_that_the_readme_and_the_pages_name_exists() -> None:
    texts = {ROOT / "README.md": README, ROOT / "README.zh-CN.md": CHINESE}
    texts |= {ROOT / "lessons" / "site" / "docs" / name: text for name, text in DOCS.items()}
    for path, text in texts.items():
        for link in re.findall(r"\]\((?!https?:)([^)#]*)(?:#[\w-]+)?\)", text):
            assert not link or (path.parent / link).is_file(), (path.name, link)
        for module in re.findall(r"`(minisched/[\w/]+\.py)`", text):
            assert (ROOT / module).is_file(), (path.name, module)


def test_every_page_is_reached_from_the_readme() -> None:
    pages = {path.name for path in ROOT.glob("lessons/site/docs/*.py")} | set(DOCS)
    assert pages == set(re.findall(r"lessons/site/docs/(\w+\.\w+)", README))
    assert README.count("\n") <= 130


def test_the_glossary_has_every_word_that_the_readme_and_the_lessons_explain() -> None:
    """Bold words of the README's list, and of the paragraphs in italics that begin a lesson."""
    entries = re.findall(r"^## (.+)$", DOCS["glossary.md"], re.M)
    assert entries == sorted(entries, key=str.lower)
    known = {entry.lower() for entry in entries}
    explained = re.findall(r"^- \*\*(\w+)\*\*: ", README, re.M)
    for path in ROOT.glob("lessons/[0-9][0-9]_*.py"):
        prose = re.sub(r"^# ?", "", path.read_text(encoding="utf-8"), flags=re.M)
        for paragraph in re.findall(r"^\*[^*\s].*?\*$(?=\n\n)", prose, re.M | re.S):
            explained += re.findall(r"\*\*([^*]+)\*\*", paragraph)
    assert len(explained) > 20
    named = {word.lower().rstrip(".:") for word in explained}
    assert {word for word in named if not {word, word.removesuffix("s")} & known} == set()


def test_the_chinese_readme_says_the_same() -> None:
    """Commands, code, links, figures and headings stand in both in the same order."""
    for what in (
        r"```\w+\n.*?```",
        r"\]\(((?!README)[^)]+)\)",
        r"^#+ |^\d\. `[^`]+`",
        r"`[^`\n]+`",
    ):
        both = [re.findall(what, text, re.DOTALL | re.MULTILINE)
                for text in (README, CHINESE.replace("_zh.svg", ".svg"))]  # fmt: skip
        assert both[0] == both[1], what
    figures = [sorted(re.findall(r"\b\d[\d,]*\b", text)) for text in (README, CHINESE)]
    assert figures[0] == figures[1]
