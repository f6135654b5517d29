"""The pictures of designs say what their runs did: order, numbers and queues, counted again."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from minisched.checks.overlap.overlap import measure
from minisched.core import Request
from minisched.devices.cost import MILLISECOND
from minisched.export.figures import figures_of
from minisched.export.golden_files import makers
from minisched.export.layout import make_view
from minisched.export.palette import SHARES
from minisched.export.pictures.compare import side_by_side
from minisched.export.pictures.mindie import scheduler_placeholders
from minisched.export.pictures.runs import run_of
from minisched.export.pictures.stages import prompt_run
from minisched.export.puml_story import to_story
from minisched.export.puml_timing import Panel, draw_panels
from minisched.export.recipes import recipes, trace_of
from minisched.export.recipes.recipe import Recipe, tokens
from minisched.export.requests_view import longest_pause, requests_view, works
from minisched.export.story import Actor, Story, events
from minisched.export.three_way import COLUMNS, to_three_way
from minisched.export.three_way_rows import ROWS
from minisched.export.window import steady_views
from minisched.loops.registry import LOOPS
from minisched.trace import Edge, Mark, Slice, Trace
from tests.export_readers import phase, read_timing

PROMISED = """
vllm_cpu_gpu_overlap_batch_queue sglang_cpu_gpu_overlap_event_loop sglang_futuremap_overlap
compare_cpu_gpu_overlap mindie_async_plugin_manager_pipeline mindie_scheduler_placeholder_async
three_way_async_scheduling_compare mindie_pipeline_refactor_compare mlx_two_graph_chain
decode_stage chunked_and_mixed_prefill pd_against_mixed_chunk async_scheduling_three_way_compare
"""
DEPTHS = {"serial": 1, "overlap": 2, "vllm_async": 2, "mini_overlap": 2, "mindie_single": 2}


def test_every_diagram_the_project_promises_is_made_from_runs() -> None:
    assert set(PROMISED.split()) <= set(makers())


# -- stories -----------------------------------------------------------------------------------

ABOUT = {1: ("decode", ("a", "b")), 2: ("decode", ("a",))}
SLICES = (
    (1, "host", "launch", 0, 5, 1),
    (2, "forward", "forward", 5, 20, 1),
    (3, "host", "launch", 6, 9, 2),
    (4, "host", "wait", 9, 21, 1),
    (5, "forward", "forward", 20, 30, 2),
    (6, "host", "process", 21, 25, 1),
    (7, "host", "process", 31, 32, 2),
    (8, "host", "output", 32, 33, 2),
    (9, "forward", "sample", 33, 34, 2),
)
TRACE = Trace(
    "two steps", "sim", "hash", "virtual",
    tuple(Slice(at, lane, name, start * MILLISECOND, end * MILLISECOND, step, *ABOUT[step])
          for at, lane, name, start, end, step in SLICES),
    (Edge(2, 5, "token"),), (),
    (Mark("slots", 5 * MILLISECOND, {"step": 1, "slots": "3 4"}),
     Mark("slots", 9 * MILLISECOND, {"step": 2, "slots": "5", "kind": "late"})),
)  # fmt: skip
STORY = Story(
    {"cpu": Actor("Host", "host"), "gpu": Actor("Device", "device")},
    {
        "launch": ["cpu: launch {step}\n{ms} ms"],
        "put": ["cpu ->> gpu: {step}, queue {queue}"],
        "forward": ["gpu: {mode} {step} of {rids} into {slots}"],
        "relay": ["gpu -> gpu: {src} to {step}"],
        "take": ["gpu --> cpu: {step}, left {queue}"],
        "process end": ["cpu -> cpu: done {step} after {before} at {at}"],
        "host process": ["cpu: process {step}"],
        "output": ["cpu: output {step}"],
        "sample": ["gpu: sample {step}"],
        "mark slots late": ["cpu -> cpu: {step} is late"],
    },
)


def test_a_story_is_told_in_the_runs_order_with_the_runs_numbers() -> None:
    text = to_story(TRACE, STORY, 1, 2, "A title")
    text = re.sub(r"</?color[^>]*>| #\w+(?= :)", "", text)
    assert "title A title\\ntwo steps on sim: steps 1 to 2, 34 ms; time runs down" in text
    assert text[text.rindex("end box") :].splitlines()[1:-1] == [
        "rnote over cpu : launch 1\\n5 ms",
        "cpu ->> gpu : 1, queue 1",
        "rnote over gpu : decode 1 of a, b into 3 4",
        "& rnote over cpu : launch 2\\n3 ms",  # while the device runs 1
        "cpu ->> gpu : 2, queue 1 2",
        "gpu --> cpu : 1, left 2",
        "cpu -> cpu : 2 is late",
        "gpu -> gpu : 1 to 2",
        "rnote over gpu : decode 2 of a into 5",
        "& rnote over cpu : process 1",
        "cpu -> cpu : done 1 after 0 at 25",
        "gpu --> cpu : 2, left empty",
        "rnote over cpu : process 2",
        "cpu -> cpu : done 2 after 1 at 32",
        "rnote over cpu : output 2",
        "rnote over gpu : sample 2",  # not beside it: it has ended
    ]


@pytest.mark.parametrize("loop", DEPTHS)
def test_the_queue_holds_what_is_launched_and_not_yet_taken(loop: str) -> None:
    trace = run_of(loop)
    told = events(trace, 0, trace.end)
    queues = [str(event.fields["queue"]).replace("empty", "").split() for event in told]
    assert max(map(len, queues)) == DEPTHS[loop]
    steps = {item.step for item in trace.slices if item.name == "forward"}
    for name in ("put", "take"):
        assert {event.fields["step"] for event in told if event.name == name} == steps
    for queue in queues:  # oldest first, none missing
        assert all(int(after) == int(before) + 1 for before, after in pairwise(queue))


@pytest.mark.parametrize("loop", ["overlap", "vllm_async", "mindie_dual", "overlap_thread"])
def test_every_slice_is_an_event_and_events_are_in_order(loop: str) -> None:
    trace = run_of(loop)
    told = events(trace, 0, trace.end + 1)
    assert all(before.start <= after.start for before, after in pairwise(told))
    slices = Counter((s.lane, s.name, s.start) for s in trace.slices if s.duration)
    begun = Counter((e.lane, e.name, e.start) for e in told if e.end > e.start)
    assert begun == slices
    relayed = sum(event.name == "relay" for event in told)
    lanes = {item.id: item.lane for item in trace.slices}
    assert relayed == sum(e.kind == "token" and lanes[e.dst] == "forward" for e in trace.edges)


def test_a_placeholder_is_booked_after_the_call_and_replaced_after_the_answer() -> None:
    text = re.sub(r"\[\[\S+ (\w+)\]\]", r"\1", scheduler_placeholders())
    said = re.findall(r"-+>+ \w+ : (execute|\d is on|a dummy|nothing is|tokens|Replace)", text)
    said = [re.sub(r"\d", "N", words) for words in said]
    send, answer = ["execute", "N is on"], ["tokens", "Replace"]
    assert said == [*send, "a dummy", "nothing is", *send, *answer, *send, *answer, *send]


# -- runs on one time axis ---------------------------------------------------------------------


def test_runs_side_by_side_show_what_each_shows_alone() -> None:
    loops = {"serial": "Serial", "overlap": "Overlap", "mindie_dual": "Dual"}
    views = steady_views([run_of(loop) for loop in loops], 3)
    text = side_by_side(loops, "title")
    shown = read_timing("\n".join(line for line in text.splitlines() if "run is" not in line))
    wanted = Counter(
        (f"{loop}_{box.lane.key}", phase(box.slice.name), *span)
        for loop, view in zip(loops, views, strict=True)
        for box in view.boxes
        if (span := view.clip(box.slice.start, box.slice.end))[0] < span[1]
    )
    assert shown.boxes == wanted
    for name, view in zip(loops.values(), views, strict=True):
        assert f"{name}: 3 steps in {view.duration / MILLISECOND:g} ms" in text
        busy = measure(view.trace).device_busy_percent
        assert f"whole run: device busy {busy:.0f} %" in text


def test_a_panels_bar_is_as_long_as_its_run() -> None:
    views = steady_views([run_of("serial"), run_of("overlap")], 3)
    panels = [Panel(view, f"r{at}_", f"run {at}") for at, view in enumerate(views)]
    lines = draw_panels(panels, "x").splitlines()
    ends = [lines.index(f"r{at}_run is {{-}}") for at in range(2)]
    moments = [next(line for line in lines[end::-1] if line.startswith("@")) for end in ends]
    assert moments == [f"@{view.duration / MILLISECOND:g}" for view in views]


# -- requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["serial", "overlap", "vllm_pp2", "multi_step", "pd"])
def test_a_request_has_a_box_for_every_step_it_was_in(loop: str) -> None:
    trace = replace_loop("decode" if loop == "overlap" else "mixed_chunk", loop)
    view = requests_view(trace)
    shares = Counter(
        (box.lane.name, box.step, box.slice.start)
        for box in view.boxes
        if box.lane.side == "request" and box.slice.name != "waiting"
    )
    lanes = {item.lane for item in trace.slices if item.name == "forward"}
    first = {"stage 0"} if "stage 0" in lanes else lanes
    assert shares == Counter(
        (rid, item.step, item.start)
        for item in trace.slices
        if item.name == "forward" and item.lane in first
        for rid in item.rids
    )
    wasted = sum(box.slice.name == "wasted" for box in view.boxes)
    assert wasted == sum(mark.name == "wasted row" for mark in trace.marks)
    for lane in view.lanes:
        spans = sorted((box.slice.start, box.slice.end) for box in view.on(lane))
        assert all(before[1] <= after[0] for before, after in pairwise(spans)), lane
    assert {box.slice.name for box in view.boxes if box.lane.side == "request"} <= set(SHARES)


def replace_loop(topic: str, loop: str) -> Trace:
    """The golden run of a topic, by another loop."""
    return replace(recipes()[topic], loop=loop).run()


def test_mixing_keeps_those_who_decode_from_waiting() -> None:
    whole, chunked, mixed = prompt_run(0, False), prompt_run(24, False), prompt_run(24, True)
    assert longest_pause(mixed) < longest_pause(whole) < longest_pause(chunked)
    tokens_of = [sum(step.tokens("prompt") for step in works(t)) for t in (whole, chunked, mixed)]
    assert len(set(tokens_of)) == 1


def test_a_pause_is_the_time_between_two_tokens() -> None:
    """One request alone: a settled step of the overlap loop takes as long as the device does."""
    trace = Recipe("overlap", [Request("a", range(6), tokens(12))]).run()
    ends = [item.end for item in trace.slices if item.name == "forward"]
    assert longest_pause(trace) == max(b - a for a, b in pairwise(ends))


def test_the_decode_stage_shows_its_retraction() -> None:
    view = requests_view(trace_of("decode"))
    names = Counter(box.slice.name for box in view.boxes)
    assert names["again"] == 1 and names["waiting"] > len(view.lanes) - 1
    assert view.bubbles == make_view(trace_of("decode")).bubbles


# -- the written comparison --------------------------------------------------------------------


def test_the_written_comparison_has_every_answer_and_every_loop() -> None:
    text = to_three_way()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(len(answers) == len(COLUMNS) for answers in ROWS.values())
    for question, answers in ROWS.items():
        (line,) = (line for line in lines if line.startswith(f"| **{question}** |"))
        assert line.count("|") == len(COLUMNS) + 2 and all(answers)
    figures = text[text.index("## Every loop") :]
    assert re.findall(r"^\| `(\w+)` \|", figures, re.M) == list(LOOPS)
    assert all(LOOPS[loop].source in text for loop in COLUMNS.values())


def test_its_figures_are_the_runs() -> None:
    serial, overlap = figures_of("serial"), figures_of("overlap")
    assert (serial.token_time, overlap.token_time) == (16_400_000, 9_200_000)  # d+h+c, and d
    assert overlap.speedup == run_of("serial").end / run_of("overlap").end
    assert "| SGLang (`overlap`) | 9.20 |" in to_three_way()


@pytest.mark.parametrize(
    ("loop", "by_stop", "by_length"),
    [("serial", 0, 0), ("overlap", 1, 1), ("overlap_thread", 1, 1), ("mlx_async", 1, 1),
     ("mindie_plugin", 1, 1), ("mindie_dual", 1, 1), ("mindie_single", 1, 0),
     ("vllm_step", 0, 0), ("vllm_async", 1, 0), ("mini_normal", 0, 0), ("mini_overlap", 1, 0)],
)  # fmt: skip
def test_an_end_costs_what_the_facts_say(loop: str, by_stop: int, by_length: int) -> None:
    found = figures_of(loop)
    assert (found.waste_of_stop, found.waste_of_length) == (by_stop, by_length)
