"""Requirements on a recorded run: in the library, on the command line, and in pytest."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import minisched as ms
from minisched.checks.requirements import requirement
from minisched.trace import native
from tests.conftest import ROOT

pytest_plugins = ["pytester"]

PROFILES = Path(__file__).parent / "profiles"
SERIAL, AHEAD = PROFILES / "torch_serial.json", PROFILES / "torch_overlapped.json"
BLOCKED, ONE_STEP = PROFILES / "torch_blocked.json", PROFILES / "vllm_full_graph.json"
STEP = "launch"  # the range around what a step launches in these files


@pytest.mark.parametrize(("file", "text", "is_met", "says"), [
    (AHEAD, "overlapped>=90%", True, "100.0 % of the steps are overlapped."),
    (SERIAL, "overlapped >= 90", False, "0.0 % of the steps are overlapped."),
    (SERIAL, "overlapped<=0%", True, "0.0 %"),
    (AHEAD, "busy>=95%", True, "100.0 % of the time the device worked."),
    (SERIAL, "busy>95%", False, " % of the time the device worked."),
    (SERIAL, "idle<5%", False, " % of the time the device idled."),
    (AHEAD, "hidden>=50%", True, "of the host's work was done while the device was busy."),
    (BLOCKED, "no blocking aten::item", False, "cudaStreamSynchronize (aten::item) blocked the"),
    (BLOCKED, "no blocking cuda*Synchronize", False, "blocked the host"),
    (BLOCKED, "no blocking aten::nonzero", True, "No call aten::nonzero blocked the host."),
    (AHEAD, "no races", False, "Nothing to judge: no accesses are recorded that could race"),
    (ONE_STEP, "overlapped>=10%", False, "It cannot be judged. Unknown: 1 step here"),
    (ONE_STEP, "busy>=90%", True, "of the time the device worked."),
])  # fmt: skip
def test_a_requirement_is_met_or_there_is_a_reason(
    file: Path, text: str, is_met: bool, says: str
) -> None:
    step = "" if file == ONE_STEP else STEP
    found = ms.check(file, step=step, require=[text])
    [result] = found.required[str(file)]
    assert (result.is_met, found.holds) == (is_met, is_met) and says in result.sentence
    assert f"  {'✓' if is_met else '✗'} required    {text}: {result.sentence}" in found.lines
    [run] = found.as_json()["runs"]
    assert run["required"] == [{"requirement": text, "met": is_met, "sentence": result.sentence}]


def test_laws_may_be_required_of_a_run_of_its_own_format(tmp_path: Path) -> None:
    run = ms.run(ms.requests(2), "overlap")
    native.write(run.trace, tmp_path / "t.json")
    assert ms.check(run, require=["no races", "no leaks", "busy>=90%"]).holds
    assert ms.check(tmp_path / "t.json", run, require=["identical"]).holds
    assert ms.check(run, require=["identical"]).holds is False, "one run alone is not judged"


@pytest.mark.parametrize(("text", "says"), [
    ("buzy>=95%", "compares 'buzy', but a share is one of overlapped, hidden, busy, idle."),
    ("busy>=950%", "has 950 %, but it must be at most 100 %."),
    ("busy==95%", "is not understood; the forms are 'overlapped>=90%'"),
    ("", "is not understood"), ("no blocking ", "is not understood"),
    ("no race", "is not understood"),
])  # fmt: skip
def test_a_bad_requirement_is_one_sentence(cli: Any, text: str, says: str) -> None:
    with pytest.raises(ValueError, match="the requirement ") as caught:
        requirement(text)
    assert says in str(caught.value) and str(caught.value).endswith(".")
    code, out, err = cli(f"check {SERIAL} --require '{text}'")
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_the_command_fails_with_the_reason(cli: Any) -> None:
    line = f"check {SERIAL} --step {STEP} --require"
    assert cli(f"{line} 'busy<95%'")[0] == 0
    code, out, err = cli(f"{line} 'overlapped>=90%' --require 'busy<95%' --json")
    assert (code, err) == (1, "") and json.loads(out)["holds"] is False
    code, out, err = cli("check --require 'busy>=95%'")
    assert (code, err) == (
        2, "minisched: --require is about recorded runs, but none is named.\n"
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"require is 'busy>1%', but it must be a list, such as"):
        ms.check(SERIAL, require="busy>1%")
    with pytest.raises(ValueError, match="require is about recorded runs, but none is named"):
        ms.check(require=["busy>1%"])


# -- The plugin of pytest --------------------------------------------------------------------------

IS_INSTALLED = "minisched" in {item.name for item in entry_points(group="pytest11")}
WITH = [] if IS_INSTALLED else ["-p", "minisched.pytest_plugin"]


@pytest.fixture
def engine(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a project with a serial and an overlapped trace, and no test."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for path in (SERIAL, AHEAD):
        (pytester.path / path.name).write_bytes(path.read_bytes())
    return pytester


def test_each_named_file_is_a_test(engine: pytest.Pytester) -> None:
    run = engine.runpytest_subprocess(
        *WITH, "--minisched", "torch_*.json", "--minisched-step", STEP,
        "--minisched-require", "overlapped>=90%", "-p", "no:cacheprovider",
    )  # fmt: skip
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(
        ["*minisched?torch_serial.json?*", "*required*overlapped>=90%: 0.0 %*"]
    )
    run.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.thorough
def test_without_a_requirement_a_test_is_skipped(engine: pytest.Pytester) -> None:
    nothing = engine.runpytest_subprocess(*WITH, "--minisched", "torch_*.json")
    nothing.assert_outcomes(skipped=2)


@pytest.mark.thorough
def test_the_ini_file_names_files_and_requirements(engine: pytest.Pytester) -> None:
    engine.makeini(
        f"[pytest]\nminisched_traces = torch_overlapped.json\nminisched_step = {STEP}\n"
        "minisched_require =\n  overlapped>=90%\n  busy>=95%\n"
    )
    engine.runpytest_subprocess(*WITH).assert_outcomes(passed=1)


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "says"), [
    (["--minisched", "none*.json"], "*--minisched none*.json matches no file in *"),
    (["--minisched", "*.json", "--minisched-require", "fast"], "*'fast' is not understood*"),
])  # fmt: skip
def test_bad_options_are_one_sentence(
    engine: pytest.Pytester, options: list[str], says: str
) -> None:
    run = engine.runpytest_subprocess(*WITH, *options)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([says])


@pytest.mark.thorough
def test_the_fixture_holds_a_run_to_a_limit(engine: pytest.Pytester) -> None:
    engine.makepyfile(
        f"""
        import shutil, pytest

        def test_engine(minisched_trace):
            shutil.copyfile("{AHEAD}", minisched_trace.path)
            assert minisched_trace.require("overlapped>=90%", step="{STEP}").holds

        def test_serial(minisched_trace):
            with pytest.raises(AssertionError, match="0.0 % of the steps are overlapped"):
                minisched_trace.require("overlapped>=90%", path="{SERIAL}", step="{STEP}")
        """
    )
    engine.runpytest_subprocess(*WITH).assert_outcomes(passed=2)
