"""Replay: everybody finishes, as the ordinary worker would have it, recorded or not."""

import csv
import gzip
import io
import json
import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minisched.checks.draw import Scale, draw_config
from minisched.core import FinishReason
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.design import LOOPS
from minisched.loops.run import drive, make_engine
from minisched.replay.profiles import H100, LLAMA_8B, PROFILES, MachineCost, Profile
from minisched.replay.replay import LengthModel, ReplayedRun, config_for, play
from minisched.replay.trace_file import BLOCK, TraceFile, TraceRequest
from minisched.trace import Recorder, Trace
from tests.support import many, randoms

MILLISECOND = 10**6
DOCS = Path(__file__).resolve().parents[2] / "lessons" / "site" / "docs"
MACHINE = PROFILES["llama8b-h100"]
NO_MEMORY = Profile("none", "a machine without room", MACHINE.cost, 0)
HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens"
REFUSED = {"mini_normal", "mini_overlap", "vllm_pp2", "vllm_pp4", "pd", "two_batch"}
REPLAYED = [loop for loop in LOOPS if loop not in REFUSED and loop != "mixed"]  # needs chunks


def write(path: Path, rows: list[TraceRequest]) -> TraceFile:
    """A Mooncake file if prompts have blocks, else one with seconds."""
    if rows[0].hash_ids:
        names = ("timestamp", "input_length", "output_length", "hash_ids")
        values = [((row.time or 0) / MILLISECOND, *row[1:4]) for row in rows]
        lines = [json.dumps(dict(zip(names, one, strict=True))) for one in values]
    else:
        lines = [HEADER, *(f"{(r.time or 0) / 10**9},{r.prompt_len},{r.output_len}" for r in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return TraceFile(path)


def replay(
    trace: TraceFile, loop: str = "overlap", machine: Profile = NO_MEMORY,
    page_size: int | None = None, recorder: Recorder | None = None, **changed: Any,
) -> ReplayedRun:  # fmt: skip
    """As the command does it; on a machine whose pool holds the longest request and little more."""
    survey = trace.survey()
    config = config_for(
        survey, machine, {"page_size": page_size, **changed} if page_size else changed
    )
    model = LengthModel(survey.num_ids, survey.requests, survey.longest)
    return play(loop, model, trace.requests(survey), config, machine.cost, recorder=recorder)


@st.composite
def traces(draw: st.DrawFn, longest: int = 300) -> list[TraceRequest]:
    """A few requests of up to three blocks, close together; with or without shared prefixes."""
    with_blocks, time, rows = draw(st.booleans()), 0, []
    for _ in range(draw(st.integers(1, 7))):
        length = draw(st.sampled_from([1, 30, BLOCK, BLOCK + 1, 3 * BLOCK - 7]))
        ids = draw(st.tuples(*[st.integers(0, 2)] * -(-length // BLOCK)))
        output = min(longest, draw(st.sampled_from([1, 2, 40, 300])))
        rows.append(TraceRequest(time, length, output, ids if with_blocks else ()))
        time += draw(st.sampled_from([0, 1, 20, 5000])) * MILLISECOND
    return rows


DRAWN = (
    "schedule_policy", "run_first", "disable_radix_cache", "page_size", "max_running_requests",
    "schedule_conservativeness", "radix_eviction_policy",
)  # fmt: skip
SCALE = Scale(page_sizes=(1, 16, BLOCK), max_running_requests=(1, 2, 256))


def draw_settings(rng: Random) -> dict[str, Any]:
    """Some of the settings that ``check`` draws, without chunks or with those of a block."""
    config = draw_config(rng, "any", "", SCALE)
    chunk = -1 if config.chunked_prefill_size == -1 else BLOCK
    return {"chunked_prefill_size": chunk, **{name: getattr(config, name) for name in DRAWN}}


any_settings = randoms.map(draw_settings)


# A preemption with a token in flight: vLLM's loops deliver it, in a replay as in a recorded run.
PREEMPTED = [TraceRequest(0, *sizes) for sizes in [(1, 1), (1, 100), (513, 1), (1529, 2), (1, 1)]]
PREEMPTING = {
    "page_size": 1, "max_running_requests": 2, "chunked_prefill_size": 512,
    "schedule_conservativeness": 0.0, "run_first": "unified",
}  # fmt: skip

# -- every loop --------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", REPLAYED)
@given(rows=traces(longest=100), options=any_settings, room=st.sampled_from([0, 5 * BLOCK]))
@example(rows=PREEMPTED, options=PREEMPTING, room=0)
@settings(max_examples=many(1, 15))
def test_everybody_finishes_as_the_file_says_at_the_ordinary_worker_s_time(
    tmp_path_factory: pytest.TempPathFactory,
    loop: str, rows: list[TraceRequest], options: dict[str, Any], room: int,
) -> None:  # fmt: skip
    trace = write(tmp_path_factory.getbasetemp() / "replay", rows)
    lean = replay(trace, loop, replace(NO_MEMORY, cost=SIM_COST, kv_tokens=room), **options)
    ended = {item.rid: item for item in lean.metrics.ended}
    assert lean.metrics.num_finished == len(ended) == len(rows)
    for number, row in enumerate(rows):
        item = ended[f"r{number}"]
        assert item.finish_reason is FinishReason.LENGTH and item.arrival == row.time
        assert (item.prompt_tokens, item.output_tokens) == (row.prompt_len, row.output_len)
        assert item.scheduled is not None and item.scheduled >= row.time
    device, survey = SimDevice(), trace.survey()
    model = LengthModel(survey.num_ids, survey.requests, survey.longest)
    asked = list(trace.requests(survey))
    engine = make_engine(loop, device, model, lean.config, Frontend(asked), SIM_COST)
    drive(LOOPS[loop].start(engine), engine)
    recorded = Trace.of(device.recorder, loop, "sim", "length", "virtual")
    assert engine.metrics.ended == lean.metrics.ended and recorded.end == lean.tally.end
    for lane in ("host", "forward", "copy"):
        busy = sum(item.duration for item in recorded.on(lane) if item.name != "wait")
        assert busy == lean.tally.busy_ns[lane]
    assert {item.step for item in recorded.on("forward")} == set(range(1, lean.num_steps + 1))
    tokens = [token for req in asked for token in req.output_ids]
    assert len(set(tokens)) == len(rows) and max(tokens) < model.vocab_size
    assert min(tokens) > max(max(req.prompt) for req in asked), "answers are nobody's prompt"


def test_small_pools_do_retract(tmp_path: Path) -> None:
    """That the law above holds under pressure would mean little if there was none."""
    rows = [TraceRequest(n * 20 * MILLISECOND, 100, 600) for n in range(5)]
    run = replay(write(tmp_path / "t", rows), kv_tokens=1600, rules="nano-vllm", loop="serial")
    assert run.metrics.num_retractions > 0 and run.metrics.num_finished == 5


@pytest.mark.parametrize("loop", sorted(REFUSED))
def test_what_cannot_be_replayed_says_why(tmp_path: Path, loop: str) -> None:
    with pytest.raises(ValueError, match=r"can't be replayed: (it|its) .*; take another"):
        replay(write(tmp_path / "trace", [TraceRequest(0, 10, 10)]), loop)


# -- the cache, and time -----------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=9))
def test_with_memory_for_all_the_cache_gives_what_a_set_of_prefixes_would(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]]
) -> None:
    """By the token, too; and a prompt's last token is always computed. Each comes long after."""
    rows = [TraceRequest(n * 10**10, BLOCK * len(ids), 2, (*ids,)) for n, ids in enumerate(prompts)]
    trace = write(tmp_path_factory.getbasetemp() / "hits", rows)
    by_page = replay(trace, machine=MACHINE).metrics
    by_token = replay(trace, machine=MACHINE, page_size=1).metrics
    known: set[tuple[int, ...]] = set()
    for row, paged, exact in zip(rows, by_page.ended, by_token.ended, strict=True):
        prefixes = [row.hash_ids[:n] for n in range(1, len(row.hash_ids) + 1)]
        assert paged.cached_tokens == sum(prefix in known for prefix in prefixes[:-1]) * BLOCK
        found = sum(prefix in known for prefix in prefixes) * BLOCK
        assert exact.cached_tokens == min(found, row.prompt_len - 1)
        known.update(prefixes)
    total = sum(item.cached_tokens for item in by_page.ended)
    assert by_page.cache_hit_rate == total / sum(row.prompt_len for row in rows)
    assert replay(trace, machine=MACHINE, disable_radix_cache=True).metrics.cache_hit_rate == 0


def test_time_passes_between_arrivals_and_counts_as_idle(tmp_path: Path) -> None:
    """The clock begins with the first request, and every figure counts from there."""
    rows = [TraceRequest(10**18, 10, 1), TraceRequest(3 * 10**18, 10, 1)]
    run = replay(write(tmp_path / "trace", rows))
    assert run.metrics.first_arrival == 0 and run.makespan_ns == run.tally.end > 2 * 10**18
    assert 0 < run.device_busy < 1e-9
    one, other = TraceRequest(10**18, 10, 9), TraceRequest(0, 10, 9)
    late, early = (replay(write(tmp_path / "trace", [row])) for row in (one, other))
    assert 0.5 < late.device_busy <= 1, "what came before the first request does not count"
    names = ("makespan_ns", "throughput", "device_busy")
    assert [getattr(late, name) for name in names] == [getattr(early, name) for name in names]
    assert late.throughput == 9e9 / late.makespan_ns


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(0, 99), st.integers(0, 99))
def test_attention_costs_the_same_in_one_piece_and_in_chunks(
    lengths: list[int], base: int, token: int
) -> None:
    pairs_only = MachineCost(attention_ps=1_000_000)
    chunks = [(sum(lengths[:n]), length) for n, length in enumerate(lengths)]
    total = sum(lengths)
    in_chunks = sum(pairs_only.forward_rows([chunk]) for chunk in chunks)
    assert in_chunks == pairs_only.forward_rows([(0, total)])
    assert in_chunks == 1000 * sum(range(1, total + 1)), "each token attends to itself and before"
    plain = MachineCost(forward_base=base, forward_per_token=token)
    assert plain.forward_rows(chunks) == CostModel({}, base, token).forward(total)


def test_a_profile_is_what_its_sources_say() -> None:
    """Worked out by hand: 8.03 G weights of 2 bytes at 80 % of 3.35 TB/s, and so on."""
    cost: Any = MACHINE.cost
    assert LLAMA_8B.kv_bytes == 131_072
    found = [cost.forward_base, cost.forward_per_token, cost.kv_read_ps, cost.attention_ps]
    assert found == pytest.approx([5.993e6, 32_478, 48_907, 1_060], rel=1e-3)
    assert MACHINE.kv_tokens * 131_072 + 2 * 8.03e9 == pytest.approx(0.9 * H100.memory, rel=0.01)
    assert all(item.kv_tokens > 2**18 for item in PROFILES.values())


# -- the guide's cases -----------------------------------------------------------------------------


@pytest.mark.thorough
@settings(max_examples=many(15, 100))
@given(
    prompt=st.integers(1, 300), answer=st.integers(1, 20), chunk=st.integers(16, 80),
    beside=st.integers(0, 6),
)  # fmt: skip
def test_a_prompt_takes_as_many_rounds_as_its_chunks_and_those_beside_it_say(
    prompt: int, answer: int, chunk: int, beside: int
) -> None:
    page, answered = long_document_page(), answer + 400
    reqs = [page["request"](f"d{n}", n, 10, answered, 0) for n in range(1, beside + 1)]
    reqs.append(page["request"]("it", 0, prompt, answer, 200_000_000))
    sizes = {"kv_tokens": prompt + (beside + 1) * (answered + 10), "chunked_prefill_size": chunk}
    sizes |= {"enable_mixed_chunk": beside > 0}
    chunks, steps, _ = page["rounds"](page["played"](reqs, NO_MEMORY, **sizes)[1], "it")
    each = chunk - beside
    assert chunks[:-1] == [each] * ((prompt - 1) // each) and sum(chunks) == prompt
    assert steps == len(chunks) + answer - 1


@cache
def long_document_page() -> dict[str, Any]:
    """What the page computes."""
    return runpy.run_path(str(DOCS / "long_document.py"))


@pytest.mark.thorough
def test_the_long_document_is_as_its_page_tells_it() -> None:
    page = long_document_page()
    text = (DOCS / "long_document.py").read_text("utf-8")
    (plain, chunked, mixed), slow = (list(it.values()) for it in page["outcomes"].values())
    assert plain[2] < 15 < slow[0][2] and chunked[3] < 0.3 < slow[1][3], "between two GPUs"
    assert plain[0] < mixed[0] and plain[5] > mixed[5], "no claim but the memory's holds"
    assert mixed[6] == 2048 < 0.4 * plain[6]
    assert f"{plain[4]:.2f} s without chunks and {mixed[4]:.2f} s\n# with mixed ones" in text
    assert round(plain[4] / mixed[4]) == 30
    found = {"A": (74, 2038, 1226, 2073), "B": (13, 4096, 848, 512), "C": (1, 10, 10, 7500)}
    assert page["found"] == found


# -- recorded or not ---------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["overlap", "vllm_async", "mixed"])
@given(rows=traces(longest=40))
@settings(max_examples=many(2, 10))
def test_a_recorder_changes_no_figure(
    tmp_path_factory: pytest.TempPathFactory, loop: str, rows: list[TraceRequest]
) -> None:
    folder = tmp_path_factory.mktemp("flat")
    trace, kept = write(folder / "rows", rows), Recorder()
    config = {"chunked_prefill_size": BLOCK, "page_size": 16, "max_running_requests": 4}
    one = replay(trace, loop, recorder=kept, **config)
    other = replay(trace, loop, **config)
    in_memory = Trace.of(kept, loop, "sim", "length", "virtual")
    assert in_memory.slices and in_memory.edges and in_memory.counters[-1].time > 0
    assert other.metrics.ended == one.metrics.ended and not other.metrics.live
    for figure in ("ttft", "itl", "queue", "num_finished", "num_retractions", "throughput"):
        assert getattr(one.metrics, figure) == getattr(other.metrics, figure), figure
    assert other.tally.busy_ns["forward"] == sum(s.duration for s in in_memory.on("forward"))
    assert one.tally.end == other.tally.end == in_memory.end


# -- files --------------------------------------------------------------------------------------


def test_csv_as_other_programs_write_it(tmp_path: Path) -> None:
    """Quoted, with a mark, other columns before and behind, in gzip whatever its name."""
    rows = [("0.0", "374", "44"), ("0.2", "396", "109"), ("3.5e-1", "91", "16")]
    names, text = HEADER.split(","), io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(["model, and its size", *names, "arrived_at again"])
    writer.writerows([["a, 'b'", *row, "x"] for row in rows])
    (tmp_path / "mine.csv").write_bytes(gzip.compress(text.getvalue().encode("utf-8-sig")))
    trace = TraceFile(tmp_path / "mine.csv")
    read = list(trace.requests(trace.survey()))
    found = [(r.arrival_time / 10**9, len(r.prompt), r.params.max_new_tokens) for r in read]
    assert found == [tuple(map(float, row)) for row in rows]
