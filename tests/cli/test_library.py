"""``import minisched``: three lines in a notebook, a script or a terminal, and what it refuses."""

import doctest
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minisched as ms
import minisched.core.request
import minisched.core.sampling
from minisched.loops.serial import serial

PACKAGE = Path(ms.__file__).parent
README = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
NAMES = ["Request", "SamplingParams", "check", "compare", "requests", "run", "show"]


def alone(program: str) -> str:
    """What a program prints in an interpreter of its own, without site-packages."""
    program = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{program}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_three_lines_of_the_readme_need_nothing_installed() -> None:
    (lines,) = re.findall(r"## In Python\n\n```python\n(.*?)```", README, re.DOTALL)
    assert lines.count("\n") == 3
    said = alone(lines)
    assert "Identical: overlap gave every request the same tokens as serial." in said
    assert re.search(r"^overlap +65 +256 +614\.8 ", said, re.MULTILINE)


def test_the_import_is_the_standard_library_and_little_else() -> None:
    """And its functions are still there once modules of the commands' names were loaded."""
    loaded = "print(*[m for m in sys.modules if m.startswith('minisched.')])"
    said = alone(f"import minisched\n{loaded}\nimport minisched.checking, minisched.comparison\n"
                 f"print(*[callable(getattr(minisched, name)) for name in {NAMES!r}])")  # fmt: skip
    modules, callables = said.splitlines()
    assert all(name.startswith("minisched.core") for name in modules.split())
    assert callables.split() == ["True"] * len(NAMES) and sorted(ms.__all__) == NAMES
    assert not {path.stem for path in PACKAGE.iterdir()} & set(NAMES)


def test_a_run_with_a_regex_and_its_pictures_need_only_the_standard_library_too() -> None:
    asked = '[ms.Request("r", [1]), ms.Request("g", [4], ms.SamplingParams(regex="(ab?)+c"))]'
    alone(f"""import minisched as ms
from minisched.export.html import to_html
from minisched.export.runs import compare
from minisched.export.scene_svg import to_svg
found = ms.compare({asked}, loops=["overlap", "mlx_async"])
traces = [run.trace for run in found.runs]
assert found.identical and to_svg(compare(traces)) and to_html(traces)""")


def test_every_name_has_an_example_and_the_examples_are_true() -> None:
    assert all(">>> " in getattr(ms, name).__doc__ for name in NAMES)
    for module in (ms, minisched.core.request, minisched.core.sampling):
        tried = doctest.testmod(module)
        assert tried.attempted >= 2 and tried.failed == 0


def test_the_defaults_are_those_of_the_command_line(cli: Any) -> None:
    result = json.loads(cli("compare --json")[1])
    found = ms.compare()
    assert found.runs[0].outputs == result["outputs"]
    times = [item["makespan_ns"] for item in result["runs"]]
    assert [item.makespan_ns for item in found.reports] == times
    assert found.speedup == result["speedup"] and found.ideal == result["ideal"]
    assert ms.run().trace.end == found.reports[1].makespan_ns


def test_requests_are_as_they_were_and_run_again() -> None:
    asked = ms.requests(3, ms.SamplingParams(max_new_tokens=5))
    first, second = ms.run(asked), ms.run(iter(asked), "serial")
    assert first.outputs == second.outputs and set(map(len, first.outputs.values())) == {5}
    assert ms.compare(asked).identical
    assert all(not request.output_ids and request.finish_reason is None for request in asked)


one: Any = ms  # whose arguments are of wrong types here
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: one.compare(ms.requests(2), loops="overlap"), "not the string 'overlap'."),
    (lambda: one.run([one.Request("a", "hello")]), "prompt is 'hello', but it must be"),
    (lambda: ms.run([ms.Request("a", [1]), ms.Request("a", [2])]), "have the id 'a'"),
    (lambda: one.run(loop=["overlap"]), "loop is a name, such as 'overlap', a function or a"),
    (lambda: ms.run(config={"pagesize": 4}), "no setting 'pagesize'; did you mean 'page_size'?"),
    (lambda: ms.requests("hello"), "prompts is a list of texts"),
    (lambda: ms.requests(10_001), "prompts is 10001, but it must be at most 10000"),
    (lambda: one.run(serial), "but it is the function serial; name the loop as loop=serial."),
    (lambda: ms.check("overlap"), "it is check(loops=['overlap'])."),
    (lambda: ms.check("no_such_file.json"), "no_such_file.json can't be read"),
    (lambda: one.check(3), "check takes runs, traces, their files or one loop, but not 3."),
    (lambda: one.check(len), "len has no `yield`"),
    (lambda: ms.check(serial, "out.json"), "loops and recorded runs can't be checked together"),
    (lambda: ms.check(ms.run(ms.requests(2)), ms.run(ms.requests(3))), "can't be compared"),
    (lambda: ms.show(ms.run(ms.requests(1)), height=0), "at least 1 pixel high"),
]


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_said_in_one_sentence(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_loop_that_holds_every_law_is_told_so() -> None:
    """Of one that breaks a law: ``test_own_loops.py``."""
    good: Any = ms.check(serial, workloads=12)
    assert good.holds is True and len(good.tally.cases) == 12 and repr(good).startswith("✓ ")
