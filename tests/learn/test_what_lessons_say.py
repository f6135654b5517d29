"""What lessons 4 to 12 say of their runs, in numbers, is so."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import jupytext
import pytest

import minisched as ms
from minisched import learn
from minisched.checks.overlap import measure
from minisched.core import SamplingParams
from minisched.learn.exercise import exercises
from minisched.learn.exercises.l12_your_engine import PROFILES, longest_wait
from minisched.learn.grade import grade
from minisched.learn.keep import keep
from minisched.learn.runs import makespan_ms
from minisched.learn.rush import STAGES, answer_ms, run_after, rush

LESSONS = Path(__file__).resolve().parents[2] / "lessons"


def read(lesson: str) -> str:
    """The text of a lesson in one line."""
    text = (LESSONS / f"{lesson}.py").read_text(encoding="utf-8")
    return " ".join(text.replace("\n# ", " ").split())


@pytest.mark.parametrize("at", STAGES)
@pytest.mark.parametrize("folder", ["", "zh"])
def test_a_lesson_begins_and_ends_with_the_time_of_an_answer(at: int, folder: str) -> None:
    for path in (LESSONS / folder).glob(f"{at:02}_*.py"):
        texts = [cell.source for cell in jupytext.read(path).cells]
        number = texts.index(f"learn.rush({at})")
        checks = [n for n, text in enumerate(texts) if "\nlearn.check(" in text]
        assert max(checks) < number
        before, after = (f"{answer_ms(lesson):,.0f} ms" for lesson in (at - 1, at))
        begin = re.search(r"\*\*(The server\.|服务器。)\*\*.*?(\n\n|$)", texts[0], re.S)
        end = re.split(r"## (?:The server|服务器)\n", texts[number - 1])[-1]
        assert begin and re.findall(r"[\d,]+ ms", begin[0]) == [before]
        said = re.findall(r"[\d,]+ ms", end)
        assert said[0] == after and (said[1:2] == [before]) == bool(STAGES[at].loop)


@pytest.mark.thorough
def test_the_rush_falls_with_the_same_tokens_and_the_readme_has_its_table() -> None:
    runs = [run_after(at) for at in range(-1, 15)]
    times = [answer_ms(at) for at in range(-1, 15)]
    assert times == sorted(times, reverse=True) and len({*times}) == 8
    assert all(run.outputs == runs[0].outputs and not run.errors for run in runs)
    assert not any(run.metrics.num_retractions for run in runs)
    assert measure(runs[-1].trace).device_busy_percent > 99
    longest = [max(max(one.itls) for one in run.metrics.ended if one.itls) for run in runs]
    assert f"from {longest[7] / 1e6:.0f} ms to {longest[8] / 1e6:.0f} ms" in read(
        "07_mixed_or_apart"
    )
    text = (LESSONS / "README.md").read_text(encoding="utf-8")
    for name, change, time, _ in rush(14).rows:
        assert (f"| {name} | {change} | {time} |" in text) == (not change.startswith("kept"))


Rows = dict[str, list[float]]  # what the first column says -> the numbers of the others


def tables(lesson: str) -> list[Rows]:
    """Each table that a lesson makes from ``rows``, by running its own cells."""
    names, found = dict[str, Any](), list[Rows]()
    for cell in jupytext.read(LESSONS / f"{lesson}.py").cells:
        if cell.cell_type == "code" and "exercise" not in cell.metadata.get("tags", []):
            exec(cell.source, names)
            if "tuple(rows)" in cell.source:
                found.append({name: [*map(number, rest)] for name, *rest in names["rows"]})
    return found


def number(words: str) -> float:
    """The number that a cell begins with."""
    return float(words.split()[0].replace(",", ""))


@pytest.mark.thorough
def test_lesson_4_chunks_alone_help_nobody() -> None:
    (rows,) = tables("04_long_prompt")
    whole, chunks, mixed = (rows[name] for name in ("one piece", "chunks", "mixed chunks"))
    assert whole[0] < chunks[0] < 1.1 * whole[0] and mixed[0] == 134 < whole[0] / 10
    assert -(-30_000 // 2048) == 15
    assert min(whole[2], chunks[2], mixed[2]) > 1300  # late waits in all three


def test_lesson_4_the_least_work_first_computes_17_tokens_more() -> None:
    one = exercises()["order"]
    text = one.solution.replace("-one.cached_len", "one.prompt_len - one.cached_len")
    verdict = grade(one, one.lines(text))
    assert "prompt tokens computed is 67, and 50 with" in verdict.sentences[1]
    assert "67 tokens of prompts are computed instead of 50" in read("04_long_prompt")


def test_lesson_1_a_colour_is_a_step_in_its_first_picture_and_a_phase_in_detail() -> None:
    run = learn.simulate("serial")
    svg, detail = learn.timing(run).svg, learn.timing(run, detail=True).svg
    assert svg.count('class="lane"') == 2 and svg.index(">host<") < svg.index(">device<")
    steps = re.findall(r">(plan|run|read) (\d+)<", svg)
    assert {verb for verb, _ in steps} == {"plan", "run", "read"}
    assert detail.count('class="lane"') == 3 and ">Copy stream<" in detail


def test_lesson_12_its_sglang_traces_contain_the_step_names_of_both_systems() -> None:
    for name, steps in (("sglang_decode", "DECODE bs=32"), ("sglang_extend", "EXTEND bs=15")):
        with gzip.open(learn.profile_path(name), "rt", encoding="utf-8") as file:
            ranges = {
                event["name"]: (event["ts"], event["ts"] + event["dur"])
                for event in json.load(file)["traceEvents"]
                if event.get("cat") == "user_annotation"
            }
        inner, outer = (
            next(time for range_name, time in ranges.items() if range_name.startswith(begin))
            for begin in (f"step[{steps}", "execute_")
        )
        assert outer[0] < inner[0] < inner[1] < outer[1]


def test_lesson_5_what_begins_alike_is_computed_once() -> None:
    (rows,) = tables("05_whose_page")
    assert (rows["without"][0], rows["with"][0]) == (1260, 210 + 5 * 10)


def test_lesson_6_bold_is_done_first_and_somebody_pauses() -> None:
    (rows,) = tables("06_full")
    bold, half_way, careful = (rows[name] for name in ("bold", "half-way", "careful"))
    assert [row[0] for row in (bold, half_way, careful)] == [2, 1, 0]
    assert bold[1] > 2 * careful[1] and bold[2] < half_way[2] < careful[2]
    assert bold[3] < careful[3] and bold[4] > careful[4]


@pytest.mark.thorough
def test_lesson_7_of_three_claims_one_holds_and_the_factor_of_30_is_in_the_pause() -> None:
    rows, office = tables("07_mixed_or_apart")
    assert [rows[name][0] for name in ("mixed chunks", "two machines")] == [134, 12]
    assert rows["two machines"][1] > rows["mixed chunks"][1] > 1000
    whole, mixed = office["one piece"], office["mixed chunks"]
    assert mixed[0] > whole[0] and mixed[1] < whole[1]  # neither sooner, nor more
    assert (whole[2], mixed[2]) == (100_000, 2048) and 29 < whole[3] / mixed[3] < 31


OPEN = {  # lesson -> its open problem, with the points of some answers as the lesson has them
    "04_long_prompt": ("decodes_first", {"False": 143, "chunks >= 1": 418, "True": 498}),
    "06_full": ("kept", {
        "max_new_tokens - num_outputs": 205, "(max_new_tokens - num_outputs) / 3": 243,
        "5": 245,
    }),
    "07_mixed_or_apart": ("chunk_size", {"256": 221, "48 + 8 * waiting": 283}),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("lesson", OPEN)
def test_the_points_of_an_open_problem(lesson: str) -> None:
    name, answers = OPEN[lesson]
    one, text = exercises()[name], read(lesson)
    head, _, _ = one.solution.rpartition("return")
    for answer, points in answers.items():
        verdict = grade(one, one.lines(f"{head}return {answer}\n"))
        assert round(float(verdict.sentences[0].split()[1])) == points, answer
        assert f"{points} points" in text or f"has {points}" in text


def test_lesson_8_one_batch_at_a_time_keeps_a_stage_busy_for_less_than_a_quarter() -> None:
    costs = {"host_ms": 2, "device_ms": 0, "token_ms": 20, "copy_ms": 1, "requests": 4, "chunk": 4}
    one, queue = (
        learn.simulate(loop, **costs)  # type: ignore[arg-type]
        for loop in ("vllm_pp4:host:depth=1", "vllm_pp4")
    )
    busy = [measure(run.trace).device_busy_percent for run in (one, queue)]
    assert busy[0] < 25 and 74 < busy[1] < 78
    assert 3 < makespan_ms(one) / makespan_ms(queue) < 3.5


def test_lesson_9_a_placeholder_alone_saves_nothing() -> None:
    loops = ("serial", "mindie_placeholder", "mindie_dual", "mindie_single", "multi_step")
    runs = {loop: learn.simulate(loop) for loop in loops}
    took = {loop: makespan_ms(run) for loop, run in runs.items()}
    assert took["mindie_placeholder"] >= took["serial"] and min(took.values()) == 127
    steps = {loop: measure(run.trace).steps for loop, run in runs.items()}
    assert steps["mindie_dual"] == steps["mindie_single"] + 1
    assert steps["multi_step"] == 1 + 3 * 4 and measure(runs["multi_step"].trace).wasted_rows == 2


def test_lesson_10_what_is_left_of_the_speed_up_depends_on_what_waits() -> None:
    loops = ["overlap", "mindie_plugin", "mlx_async"]
    rule = SamplingParams(max_new_tokens=24, regex="([a-z]+ ){3}[a-z]+")
    found = ms.compare(ms.requests(4, rule), loops)
    assert [round(found.speedup[loop] or 0, 2) for loop in loops] == [1.70, 1.28, 0.91]
    assert found.num_waits["overlap"] == {"grammar": 23}


@pytest.mark.thorough
def test_lesson_13_the_command_that_it_prints_holds_for_its_solution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    one = exercises()["capstone"]
    assert keep(one, one.lines(one.solution)).startswith("Kept in `mine.py`")
    assert "minisched check --loop mine.py --workloads 300" in read("13_capstone")
    assert "`minisched check --loop mine.py`" in one.why
    code, out, _ = cli("check --loop mine.py --workloads 60 --json")
    assert code == 0 and json.loads(out)["failures"] == [] and json.loads(out)["cases"] == 60


def test_lesson_12_its_profiles_say_what_was_read_in_the_originals() -> None:
    waits = {name: longest_wait(learn.host_calls(learn.profile(name))) for name in PROFILES}
    assert waits == {
        "sglang_decode": ("hipMemcpyWithStream", "aten::copy_"),
        "sglang_extend": ("hipMemcpyWithStream", "aten::to"),
        "vllm_decode": ("hipEventSynchronize", "<built-in method synchronize of torch.Event>"),
        "vllm_mixed": ("hipEventSynchronize", "gpu_model_runner.py(3380): execute_model"),
        "two_gpus": ("cudaStreamSynchronize", "aten::is_nonzero"),
    }
    blocked = {
        name: sum(item.duration for item in learn.profile(name).slices if item.name == "wait") / 1e6
        for name in PROFILES
    }
    assert round(blocked["sglang_decode"]) == 463 and round(blocked["vllm_decode"], 3) == 0.002


def test_lesson_11_the_clocks_of_its_example() -> None:
    table, text = learn.clocks_of_example(), read("11_reviewer")
    clocks = [" ".join(row[-3:]) for row in table.rows]
    assert (clocks[3], clocks[4], clocks[5]) == ("1 2 0", "1 2 1", "2 2 2")
    assert all(f"`{clocks[at]}`" in text for at in (3, 4, 5))
    assert int(clocks[1].split()[0]) > int(clocks[3].split()[0]) >= int(clocks[0].split()[0])
    svg = learn.picture_of_example().svg
    assert all(f">{clock}<" in svg for clock in clocks)


def test_lesson_12_a_joined_profile_is_as_busy_as_its_ops() -> None:
    trace = learn.profile("two_gpus")
    joined = learn.joined(trace)
    assert len(trace.slices) == 3584 > 1.5 * len(joined.slices)
    busy = [round(measure(it).device_busy_percent) for it in (trace, joined)]
    assert busy == [99, 99]
