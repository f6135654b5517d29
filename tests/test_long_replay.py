"""A replay of any length: recorded straight into a file, and with figures that take no room."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import Request, SamplingParams
from minisched.devices.profiles import find_profile
from minisched.engine.metrics import Metrics, percentiles
from minisched.export import native
from minisched.export.native_stream import StreamRecorder
from minisched.loops.registry import LOOPS
from minisched.models.length import LengthModel
from minisched.replay import flat_metrics
from minisched.replay.flat_metrics import FlatMetrics, Sample
from minisched.replay.play import Played, check_replayable, play
from minisched.replay.tally import RecordedTally, Tally
from minisched.scheduler import SchedulerConfig
from minisched.trace import Recorder, Slice

MODEL = LengthModel(20, 20, 400)
TIGHT = SchedulerConfig(max_running_requests=4, kv_tokens=512, page_size=16)
COST = find_profile("llama8b-h100").cost
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 30_000_000), st.integers(1, 200), st.integers(1, 40)),
    min_size=1,
    max_size=12,
)


def can_be_replayed(loop: str) -> bool:
    """Whether lengths alone say what its steps take."""
    try:
        check_replayable(loop, LOOPS[loop])
    except ValueError:
        return False
    return True


REPLAYABLE = sorted(filter(can_be_replayed, LOOPS))


def run(
    loop: str, arrivals: list[tuple[int, int, int]], tally: Tally, metrics: Metrics | None = None
) -> Played:
    """Requests of (gap in ns, prompt, answer) through a loop."""
    time, requests = 0, []
    for index, (gap, prompt, answer) in enumerate(arrivals):
        time += gap
        params = SamplingParams(max_new_tokens=answer, ignore_eos=True, seed=index)
        requests.append(Request(f"r{index}", (index,) * prompt, params, time))
    return play(
        loop, MODEL, iter(requests), TIGHT, COST, tally=tally, metrics=metrics or FlatMetrics()
    )


@pytest.mark.parametrize("loop", REPLAYABLE)
@settings(max_examples=4, deadline=None)
@given(arrivals=ARRIVALS)
def test_the_file_says_what_a_recorder_keeps(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[tuple[int, int, int]], loop: str
) -> None:
    path = tmp_path_factory.mktemp("streamed") / "run.json"
    kept, streamed = Recorder(), StreamRecorder(path, loop, "sim", "length")
    one, other = (
        run(loop, arrivals, RecordedTally(kept)),
        run(loop, arrivals, RecordedTally(streamed)),
    )
    streamed.close()
    in_memory = kept.trace(loop, "sim", "length", "virtual")
    assert native.read(path) == replace(in_memory, program=())
    assert in_memory.slices and in_memory.edges and in_memory.marks[-1].time > 0
    assert in_memory.counters[-1].time > 0
    assert [path] == list(path.parent.iterdir())
    for run_of in (one, other):
        assert run_of.tally.busy_ns["forward"] == sum(
            item.duration for item in in_memory.on("forward")
        )
        assert run_of.tally.end == in_memory.end


def test_neither_recording_nor_flat_figures_change_one() -> None:
    arrivals = [(1_000_000 * index, 10 + 17 * index, 5 + index) for index in range(12)]
    plain = run("overlap", arrivals, Tally(), Metrics())
    recorded = run("overlap", arrivals, RecordedTally(Recorder()))
    for figure in ("ttft", "itl", "queue", "num_finished", "num_retractions", "throughput"):
        assert getattr(plain.metrics, figure) == getattr(recorded.metrics, figure), figure
    assert plain.metrics.num_finished == 12
    assert not recorded.metrics.ended and not recorded.metrics.live


def test_an_edge_waits_for_its_slice_and_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    recorder = StreamRecorder(path, "a", "sim", "b")
    first, second, never = recorder.new_id(), recorder.new_id(), recorder.new_id()
    recorder.edge("launch", 0, first)  # launched outside every slice
    recorder.edge("copy", first, second)
    recorder.edge("copy", first, second)
    recorder.edge("copy", first, never)
    recorder.slice(Slice(first, "forward", "forward", 0, 5))
    recorder.slice(Slice(second, "copy", "copy", 5, 6))
    recorder.edge("token", first, second)
    recorder.edge("token", first, second)
    recorder.close()
    edges = json.loads(path.read_text())["edges"]
    assert edges == [
        {"src": 1, "dst": 2, "kind": "copy"},
        {"src": 1, "dst": 2, "kind": "token"},
    ]


@settings(max_examples=100)
@given(values=st.lists(st.integers(0, 10**12), min_size=1, max_size=60), exact=st.integers(0, 80))
def test_percentiles_are_right_to_four_digits(values: list[int], exact: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat_metrics, "EXACT", exact)
        sample = Sample()
        for at in range(0, len(values), 7):
            sample.extend(values[at : at + 7])
    right, found = percentiles(values), sample.percentiles
    assert right and found
    if len(values) <= exact:
        assert found == right
    for one, other in zip(found, right, strict=True):
        assert abs(one - other) * 2000 <= other


def test_no_values_have_no_percentiles() -> None:
    assert Sample().percentiles is None
