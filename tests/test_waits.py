"""Time lost by reason: each bubble is charged to one, and every picture shows the waits."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import measure
from minisched.checks.overlap.waits import ARRIVAL, HOST, idle_times, lost_ns, num_waits
from minisched.comparison import lost_time
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, SIM_COST, CostModel
from minisched.devices.registry import open_device
from minisched.export.chrome import to_chrome
from minisched.export.html import to_html
from minisched.export.layout import make_view
from minisched.export.pictures.waits import PICTURES
from minisched.export.puml_style import WAIT
from minisched.export.puml_timing import Panel, draw_panels
from minisched.export.svg import to_svg
from minisched.export.text import to_text
from minisched.export.three_way_waits import row_of
from minisched.export.wait_runs import FEATURES, refusal, run_with
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Counter as CounterEvent
from minisched.trace import Mark, Slice, Trace
from tests.support import LOOP_OPTIONS, VOCAB, Workload, demanding, play

law = settings(max_examples=500, deadline=None)
LANES = (["forward"], ["stage 0", "stage 1"], ["prefill forward", "decode forward"])
US = 1000  # nanoseconds
OPS = ("forward", "sample", "recv")


def wait(time: int, step: int, reason: str, op: str, **attrs: str) -> Mark:
    return Mark("wait", time, {"step": step, "reason": reason, "op": op, **attrs})


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Slices on one or two devices, with waits, counters and messages; times are a few ns."""
    lanes = draw(st.sampled_from(LANES))
    sides = sorted({side_of(lane) for lane in lanes})
    few, side, step = st.integers(0, 3), st.sampled_from(sides), st.integers(1, 3)
    slices: list[Slice] = []
    for lane in [*lanes, *(f"{one} host".strip() for one in sides)]:
        time = draw(few)
        ops = OPS if lane in lanes else ("receive", "process")
        for _ in range(draw(st.integers(1, 6))):
            start = time + draw(few)
            time = start + draw(few)
            op = draw(st.sampled_from(ops))
            slices.append(Slice(len(slices) + 1, lane, op, start, time, draw(step)))
    marks = []
    for reason in draw(st.lists(st.sampled_from(["grammar", "penalty"]), max_size=4)):
        attrs = {"side": draw(side)} if sides != [""] else {}
        marks.append(wait(0, draw(step), reason, draw(st.sampled_from(OPS)), **attrs))
    name = st.sampled_from(["running", "waiting", "kv used", "other"])
    counter = st.builds(
        lambda *parts: CounterEvent(" ".join(parts[:2]).strip(), *parts[2:]),
        side, name, st.integers(0, 20), st.sampled_from([0, 0, 1]),
    )  # fmt: skip
    counters = sorted(draw(st.lists(counter, max_size=6)), key=lambda item: item.time)
    slices.sort(key=lambda item: (item.start, item.end, item.id))
    return Trace("odd", "sim", "hash", "virtual", tuple(slices), (), tuple(counters), tuple(marks))


def side_of(lane: str) -> str:
    """The first word, where there are two."""
    return lane.split()[0] if lane.endswith(" forward") else ""


def reason_of(trace: Trace, lane: str, moment: int) -> str | None:
    """Why a device did nothing for one nanosecond from ``moment`` on; None if it did something."""
    ops = [item for item in trace.slices if item.lane == lane]
    ran = [item for item in ops if item.start < item.end]
    if any(item.start <= moment < item.end for item in ran):
        return None
    until = min(item.start for item in ran if item.start > moment)
    side, late = side_of(lane), []
    for mark in trace.marks:
        if mark.attrs.get("side", "") != side:
            continue
        of_step = [item for item in ops if item.step == mark.attrs["step"]]
        named = [item for item in of_step if mark.attrs["op"] in ("forward", item.name)]
        if named and moment < named[0].start <= until:
            late.append((named[0].start, mark.attrs["reason"]))
    if late:
        return str(min(late, key=lambda found: found[0])[1])
    last: dict[str, int] = {}
    for counter in trace.counters:
        if counter.time <= moment and counter.name.startswith(side) and "other" not in counter.name:
            last[counter.name] = counter.value
    hosts = [item for item in trace.slices if item.lane == f"{side} host".strip()]
    hears = any(s.start <= moment < s.end and s.name == "receive" for s in hosts)
    return ARRIVAL if last and not any(last.values()) and not hears else HOST


@law
@given(traces())
def test_each_moment_is_lost_for_one_reason(trace: Trace) -> None:
    """Against a count by hand, one nanosecond after the other."""
    counted: Counter[str] = Counter()
    for lane in {item.lane for item in trace.slices if not item.lane.endswith("host")}:
        ran = [item for item in trace.slices if item.lane == lane and item.start < item.end]
        if ran:
            for moment in range(min(s.start for s in ran), max(s.end for s in ran)):
                if reason := reason_of(trace, lane, moment):
                    counted[reason] += 1
    lost = lost_ns(trace)
    assert {reason: ns for reason, ns in lost.items() if ns} == counted
    assert lost.keys() == {HOST, ARRIVAL} | num_waits(trace).keys()


@law
@given(traces())
def test_the_reasons_make_up_the_bubbles(trace: Trace) -> None:
    assert sum(lost_ns(trace).values()) == measure(trace).bubble_ns
    assert sum(idle.end - idle.start for idle in idle_times(trace)) == measure(trace).bubble_ns


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(LOOP_OPTIONS), demanding(max_requests=4), st.integers(0, 30))
def test_so_they_do_in_real_runs(item: Any, workload: Workload, host: int) -> None:
    loop, relay, options = item
    device = open_device("sim")
    cost = CostModel({"schedule": host, "launch": 2, "process": 3, "mask": 4}, 9, 1, 2, 1)
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, relay, options, device, model, cost)
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    lost = lost_ns(trace)
    assert sum(lost.values()) == measure(trace).bubble_ns
    assert min(lost.values()) >= 0


def tokens(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, ignore_eos=True)


def test_nobody_there_is_not_the_hosts_fault() -> None:
    """One request ends, and the next comes two seconds later."""
    later = 2000 * MILLISECOND
    requests = [Request("a", [1, 2], tokens(3)), Request("b", [3, 4], tokens(3), later)]
    run = run_loop("serial", open_device("sim"), HashModel(), requests, cost=SIM_COST)
    processed = [item.end for item in run.trace.on("host") if item.name == "process"]
    lost = lost_ns(run.trace)
    assert lost[ARRIVAL] == later - processed[2]
    assert lost[HOST] == measure(run.trace).bubble_ns - lost[ARRIVAL]


def prefills() -> Trace:
    """Three prompts in four chunks, one after the other, none of which may overlap."""
    requests = [Request(f"r{i}", range(40 * i, 40 * i + 40), tokens(6)) for i in range(3)]
    config = SchedulerConfig(chunked_prefill_size=32)
    run = run_loop(
        "overlap", open_device("sim"), HashModel(), requests, config, SIM_COST,
        disable_consecutive_prefill_overlap=True,
    )  # fmt: skip
    return run.trace


def test_consecutive_prefills_that_may_not_overlap_are_a_wait() -> None:
    trace = prefills()
    assert num_waits(trace) == {"prefill": 3}
    copy, process, output, prepare, launch = 500, 2200, 800, 1000, 500  # microseconds
    first = copy + process + prepare + launch  # its chunk gives nobody a token
    assert lost_ns(trace) == {"prefill": 1000 * (3 * first + 2 * output), HOST: 0, ARRIVAL: 0}


WAITING = {  # feature -> what waits for it, and why, in each loop that lets something wait
    "grammar": {
        **dict.fromkeys(["overlap", "overlap_pool_indexed", "overlap_thread", "vllm_async"],
                        ("sample", "grammar")),
        **dict.fromkeys(["mindie_plugin", "mindie_dual", "mlx_async"], ("forward", "grammar")),
        **dict.fromkeys(["mindie_single", "mixed", "pd"], ("sample", "grammar")),
    },
    "penalties": {
        **dict.fromkeys(["overlap", "overlap_pool_indexed", "overlap_thread", "vllm_async"],
                        ("sample", "penalty")),
        **dict.fromkeys(["mindie_plugin", "mindie_dual", "mlx_async"], ("forward", "penalty")),
        **dict.fromkeys(["mindie_single", "mixed", "pd"], ("sample", "penalty")),
    },
    "late penalties": {},
    "NGRAM": {},
    "NGRAM_GPU": {},
    "STANDALONE": {},
    "grammar with speculation": {
        "overlap": ("forward", "grammar"),
        "overlap_pool_indexed": ("forward", "grammar"),
        "vllm_async": ("sample", "grammar"),
    },
}  # fmt: skip
DECODES = ("decode", "target verify")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("feature", FEATURES)
def test_each_loop_waits_where_its_original_does(loop: str, feature: str) -> None:
    """The same op for the same reason at every token that the request decodes; or it refuses to.

    MLX chains nothing on a prompt in any case, and the first token of ``pd`` comes over the host.
    """
    if reason := refusal(loop, feature):
        assert loop not in WAITING[feature] and reason[0].isalpha() and reason[-1] != "."
        assert row_of(loop, loop, feature)[1] == f"refused: {reason}"
        return
    trace = run_with(loop, feature)
    marks = [mark for mark in trace.marks if mark.name == "wait"]
    said = {(str(mark.attrs["op"]), str(mark.attrs["reason"])) for mark in marks}
    assert said == ({WAITING[feature][loop]} if loop in WAITING[feature] else set())
    assert sum(lost_ns(trace).values()) == measure(trace).bubble_ns
    decodes = {
        item.step
        for item in trace.slices
        if item.name == "forward" and item.mode in DECODES and "a" in item.rids
    }
    first = {min(decodes)} if loop in ("mlx_async", "pd") else set()
    marked = [mark.attrs["step"] for mark in marks]
    assert sorted(marked) == (sorted(decodes - first) if marked else [])


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_of_a_wait_shows_it(name: str) -> None:
    """Only in one of its two runs; drafts wait for the host's ordinary work, which is no wait."""
    text = PICTURES[name]()
    shows = {
        panel for panel in ("p1", "p2") if re.search(f"{panel}_forward is .* {WAIT.fill}", text)
    }
    assert shows == {"wait_penalties": {"p1"}, "wait_speculation_drafts": set()}.get(name, {"p2"})


def late_sample() -> Trace:
    """Step 2's forward pass runs, its sampling waits for a grammar; step 3 is merely late."""
    ran = [
        ("host", "launch", 0, 10, 1),
        ("forward", "forward", 10, 20, 1),
        ("forward", "sample", 20, 22, 1),
        ("forward", "forward", 22, 30, 2),
        ("host", "mask", 30, 36, 2),
        ("forward", "sample", 36, 38, 2),
        ("forward", "forward", 41, 50, 3),
    ]
    slices = tuple(
        Slice(at, lane, name, start * US, end * US, step)
        for at, (lane, name, start, end, step) in enumerate(ran, 1)
    )
    marks = (wait(12 * US, 2, "grammar", "sample"), wait(40 * US, 9, "penalty", "sample"))
    return Trace("late", "sim", "hash", "virtual", slices, (), (), marks)


def test_a_wait_is_charged_the_gap_before_its_op() -> None:
    assert lost_ns(late_sample()) == {
        "grammar": 6 * US, "penalty": 0, HOST: 3 * US, ARRIVAL: 0,
    }  # fmt: skip


def test_a_wait_that_cost_nothing_says_so() -> None:
    waits = {"grammar": 1, "penalty": 40}
    lost = {"grammar": 6_000_000, "penalty": 0, HOST: 3000, ARRIVAL: 0}
    assert lost_time("odd", lost, waits) == (
        "odd lost 6.0 ms of device time: 6.0 ms in 1 wait for grammar, less than 0.1 ms because of "
        "the host's ordinary work. 40 waits for penalty cost nothing: the device had other work "
        "meanwhile."
    )
    assert lost_time("calm", dict.fromkeys(lost, 0), waits).startswith(
        "calm lost no device time. 1 wait for grammar and 40 waits for penalty cost nothing"
    )


def test_a_mark_that_says_too_little_is_no_wait() -> None:
    odd = replace(late_sample(), marks=(Mark("wait", 3, {"step": 2}),))
    assert lost_ns(odd) == {HOST: 9 * US, ARRIVAL: 0}


def test_every_picture_shows_what_waits() -> None:
    """The same stretch, for the same reason, everywhere; and the flag where it was decided."""
    trace = late_sample()
    stretches = [(b.start, b.end, b.reason) for b in make_view(trace).bubbles]
    assert stretches == [(30 * US, 36 * US, "grammar"), (38 * US, 41 * US, "")]

    svg = ElementTree.fromstring(to_svg([trace], whole=True))
    shapes = [item for item in svg.iter() if item.get("class") in ("waited", "bubble", "flag")]
    assert Counter(item.get("class") for item in shapes) == {"waited": 2, "bubble": 2, "flag": 3}
    titles = ["".join(item.itertext()) for item in shapes]
    assert any("for grammar" in text for text in titles)
    assert "sample 2 waits for grammar at 0.012 ms" in titles

    timing = draw_panels([Panel(make_view(trace))], "late")
    assert re.findall(r'forward is "(?:<.*?>)?(grammar|idle)[^"]*"', timing) == ["grammar", "idle"]
    assert "the device waits for grammar" in timing

    line = next(text for text in to_text([trace], whole=True).splitlines() if "Forward" in text)
    assert "╳" in line and "╱" in line and "waits for grammar" in to_text([trace], whole=True)

    page = re.search(r'<script id="data"[^>]*>(.*?)</script>', to_html([trace]), re.S)
    assert page
    data = json.loads(page[1])
    bubbles = [b for lane in data["runs"][0]["lanes"] for b in lane["bubbles"]]
    assert [(s, e, data["names"][why]) for s, e, why in bubbles] == stretches

    events = json.loads(to_chrome(trace))["traceEvents"]
    times = {event["ph"]: event["ts"] for event in events if event.get("cat") == "waits for"}
    assert times == {"b": 30, "e": 36}
    assert [e["args"]["reason"] for e in events if e["ph"] == "i"] == ["grammar", "penalty"]


def test_a_picture_without_waits_says_nothing_of_them() -> None:
    calm = replace(late_sample(), marks=())
    for text in (to_svg([calm], whole=True), to_text([calm], whole=True), to_chrome(calm)):
        assert not re.search("waited|waits for|╳|flag", text)


@pytest.mark.parametrize("is_json", [True, False])
def test_compare_adds_it_up(cli: Any, is_json: bool) -> None:
    name = "overlap:disable_consecutive_prefill_overlap=true"
    line = f"compare --loops overlap,{name} --requests 4 --max-new-tokens 8"
    code, out, _ = cli(f"{line} --chunked-prefill-size 32{' --json' * is_json}")
    assert code == 0
    if is_json:
        serial, overlap, waits = json.loads(out)["runs"]
        assert all(sum(run["lost_ns"].values()) == run["bubble_ns"] for run in (serial, waits))
        assert serial["lost_ns"].keys() == overlap["lost_ns"].keys() == {HOST, ARRIVAL}
        assert waits["lost_ns"]["prefill"] > 0
    else:
        said = " ".join(out.split())
        assert re.search(name + r" lost [\d.]+ ms of device time: [\d.]+ ms in \d+ waits for", said)
        assert "serial lost" not in said and "overlap lost" not in said
