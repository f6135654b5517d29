"""Replay: everybody finishes, twice the same, and as the ordinary worker would have it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import FinishReason, Request
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.profiles import (
    H100,
    LLAMA_8B,
    PROFILES,
    AttentionCost,
    Profile,
    find_profile,
)
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.registry import LOOPS
from minisched.loops.run import drive, make_engine
from minisched.models.length import LengthModel
from minisched.replay.arrival import Arrival
from minisched.replay.defaults import default_settings
from minisched.replay.mooncake import BLOCK
from minisched.replay.play import Played, check_replayable, play
from minisched.replay.trace_file import TraceFile
from minisched.scheduler import SchedulerConfig

MILLISECOND = 10**6
NO_MEMORY = Profile("none", "a machine without room", find_profile("llama8b-h100").cost, 0)
POLICIES = ("fcfs", "lpm", "dfs-weight", "lof", "random", "priority")


def write(path: Path, rows: list[Arrival]) -> TraceFile:
    """A Mooncake file if prompts have blocks, else one with seconds."""
    lines = []
    for row in rows:
        if row.hash_ids:
            record = {
                "timestamp": row.time / MILLISECOND,
                "input_length": row.prompt_len,
                "output_length": row.output_len,
                "hash_ids": row.hash_ids,
            }
            lines.append(json.dumps(record))
        else:
            lines.append(f"{row.time / 10**9},{row.prompt_len},{row.output_len}")
    header = [] if rows[0].hash_ids else ["arrived_at,num_prefill_tokens,num_decode_tokens"]
    path.write_text("\n".join([*header, *lines]) + "\n")
    return TraceFile(path)


def is_replayable(loop: str) -> bool:
    try:
        check_replayable(loop, LOOPS[loop])
    except ValueError:
        return False
    return True


REPLAYED = [loop for loop in LOOPS if is_replayable(loop) and loop != "mixed"]  # needs chunks


def replay(
    trace: TraceFile,
    loop: str = "overlap",
    machine: Profile = NO_MEMORY,
    page_size: int | None = None,
    **settings: Any,
) -> Played:
    """As the command does it; on a machine whose pool holds the longest request and little more."""
    survey = trace.survey()
    fields = default_settings(survey, machine, page_size or survey.format.page_size)
    config = SchedulerConfig(**{**fields, **settings})
    model = LengthModel(survey.highest_id + 1, survey.requests, survey.longest)
    return play(loop, model, trace.requests(), config, machine.cost)


def seen(run: Played) -> tuple[Any, ...]:
    """Everything that is virtual about a run."""
    tally = run.tally.busy_ns, run.tally.end
    return run.metrics.ended, tally, run.num_steps, run.peak_tokens, run.num_retractions


@st.composite
def traces(draw: st.DrawFn) -> list[Arrival]:
    """A few requests of up to three blocks, close together; with or without shared prefixes."""
    with_blocks, time, rows = draw(st.booleans()), 0, []
    for _ in range(draw(st.integers(1, 7))):
        length = draw(st.sampled_from([1, 30, BLOCK, BLOCK + 1, 3 * BLOCK - 7]))
        ids = draw(st.tuples(*[st.integers(0, 2)] * -(-length // BLOCK)))
        output = draw(st.sampled_from([1, 2, 40, 300]))
        rows.append(Arrival(time, length, output, ids if with_blocks else ()))
        time += draw(st.sampled_from([0, 1, 20, 5000])) * MILLISECOND
    return rows


settings_of_all_kinds = st.fixed_dictionaries({
    "schedule_policy": st.sampled_from(POLICIES),
    "run_first": st.sampled_from(["prefill", "decode", "unified"]),
    "disable_radix_cache": st.booleans(),
    "page_size": st.sampled_from([1, 16, BLOCK]),
    "max_running_requests": st.sampled_from([1, 2, 256]),
    "schedule_conservativeness": st.sampled_from([0.0, 1.0]),
})  # fmt: skip
chunks = st.sampled_from([
    {"chunked_prefill_size": -1},
    {"chunked_prefill_size": BLOCK},
    {"chunked_prefill_size": BLOCK, "enable_mixed_chunk": True, "run_first": "prefill"},
])  # fmt: skip


@pytest.mark.parametrize("loop", REPLAYED)
@given(
    rows=traces(),
    options=settings_of_all_kinds,
    chunk=chunks,
    room=st.sampled_from([0, 5 * BLOCK]),
)
@settings(max_examples=50, deadline=None)
def test_everybody_finishes_with_what_the_file_says_and_twice_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    loop: str,
    rows: list[Arrival],
    options: dict[str, Any],
    chunk: dict[str, Any],
    room: int,
) -> None:
    trace = write(tmp_path_factory.getbasetemp() / "replay", rows)
    machine = replace(NO_MEMORY, kv_tokens=room)
    run = replay(trace, loop, machine, **{**options, **chunk})
    ended = {item.rid: item for item in run.metrics.ended}
    assert run.metrics.num_finished == len(ended) == len(rows)
    for number, row in enumerate(rows):
        item = ended[f"r{number}"]
        assert item.finish_reason is FinishReason.LENGTH
        assert (item.prompt_tokens, item.output_tokens) == (row.prompt_len, row.output_len)
        assert item.arrival == row.time and item.scheduled is not None
        assert item.scheduled >= row.time, "nobody is served before coming"
    assert seen(replay(trace, loop, machine, **{**options, **chunk})) == seen(run)


def test_small_pools_do_retract(tmp_path: Path) -> None:
    """That the law above holds under pressure would mean little if there was none."""
    rows = [Arrival(n * 20 * MILLISECOND, 100, 600) for n in range(5)]
    trace = write(tmp_path / "trace", rows)
    for loop in REPLAYED:
        run = replay(trace, loop, kv_tokens=1600, schedule_conservativeness=0.0)
        assert run.num_retractions > 0 and run.metrics.num_finished == 5


@pytest.mark.parametrize("loop", REPLAYED)
@given(rows=traces(), options=settings_of_all_kinds, chunk=chunks)
@settings(max_examples=15, deadline=None)
def test_the_worker_that_ships_nothing_takes_the_ordinary_worker_s_time(
    tmp_path_factory: pytest.TempPathFactory,
    loop: str,
    rows: list[Arrival],
    options: dict[str, Any],
    chunk: dict[str, Any],
) -> None:
    rows = [row._replace(output_len=min(row.output_len, 40)) for row in rows]
    trace = write(tmp_path_factory.getbasetemp() / "compared", rows)
    lean = replay(trace, loop, replace(NO_MEMORY, cost=SIM_COST), **{**options, **chunk})
    device, survey = SimDevice(), trace.survey()
    model = LengthModel(survey.highest_id + 1, survey.requests, survey.longest)
    requests = list(trace.requests())
    engine = make_engine(loop, device, model, lean.config, Frontend(requests), SIM_COST)
    drive(LOOPS[loop].start(engine), engine)
    recorded = device.recorder.trace(loop, "sim", "length", "virtual")
    assert engine.metrics.ended == lean.metrics.ended
    assert recorded.end == lean.tally.end
    for lane in ("host", "forward", "copy"):
        busy = sum(item.duration for item in recorded.on(lane) if item.name != "wait")
        assert busy == lean.tally.busy_ns[lane]
    assert {item.step for item in recorded.on("forward")} == set(range(1, lean.num_steps + 1))
    tokens = [token for req in requests for token in req.output_ids]
    assert len(set(tokens)) == len(rows) and max(tokens) < model.vocab_size
    assert min(tokens) > max(max(req.prompt) for req in requests), "answers are nobody's prompt"


def apart(*prompts: tuple[int, ...], length: int = 0) -> list[Arrival]:
    """One request after another, each long after the last has ended."""
    return [
        Arrival(n * 10**10, length or BLOCK * len(ids), 2, ids) for n, ids in enumerate(prompts)
    ]


def test_the_hit_rate_of_a_worked_example(tmp_path: Path) -> None:
    """A prompt's last token is always computed: the third time, 1 2 finds one page of two."""
    rows = apart((1, 2), (1, 2, 3), (1, 9), (1, 2), (2, 1))
    trace = write(tmp_path / "trace", rows)
    machine = find_profile("llama8b-h100")
    run = replay(trace, machine=machine)
    assert [item.cached_tokens // BLOCK for item in run.metrics.ended] == [0, 2, 1, 1, 0]
    assert run.metrics.cache_hit_rate == 4 / 11
    by_token = replay(trace, machine=machine, page_size=1)
    assert [item.cached_tokens for item in by_token.metrics.ended] == [0, 1024, 512, 1023, 0]
    assert replay(trace, machine=machine, disable_radix_cache=True).metrics.cache_hit_rate == 0


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=9)
)
@settings(max_examples=40, deadline=None)
def test_with_memory_for_all_the_cache_gives_what_a_set_of_prefixes_would(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]]
) -> None:
    rows = apart(*map(tuple, prompts))
    trace = write(tmp_path_factory.getbasetemp() / "hits", rows)
    run = replay(trace, machine=find_profile("llama8b-h100"))
    known: set[tuple[int, ...]] = set()
    for row, item in zip(rows, run.metrics.ended, strict=True):
        prefixes = [row.hash_ids[:n] for n in range(1, len(row.hash_ids) + 1)]
        hits = sum(prefix in known for prefix in prefixes[:-1])  # never the last token
        assert item.cached_tokens == hits * BLOCK
        known.update(prefixes)


def test_a_trace_without_content_shares_nothing(tmp_path: Path) -> None:
    rows = [row._replace(hash_ids=()) for row in apart((1,), (1,), (1,))]
    run = replay(write(tmp_path / "trace", rows), machine=find_profile("llama8b-h100"), page_size=1)
    assert run.metrics.cache_hit_rate == 0


def test_time_passes_between_arrivals_and_counts_as_idle(tmp_path: Path) -> None:
    rows = [Arrival(10**18, 10, 1), Arrival(3 * 10**18, 10, 1)]
    run = replay(write(tmp_path / "trace", rows))
    assert run.metrics.first_arrival == 10**18 and run.tally.end > 3 * 10**18
    assert 0 < run.device_busy < 1e-9
    alone = replay(write(tmp_path / "trace", rows[:1]))
    assert 0.5 < alone.device_busy <= 1, "what came before the first request does not count"


def test_ctrl_c_ends_a_replay_and_leaves_the_handler_as_it_was(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Request]:
        for number, req in enumerate(write(tmp_path / "trace", apart(*[(1,)] * 9)).requests()):
            if number == 5:
                signal.raise_signal(signal.SIGINT)
            yield req

    before = signal.getsignal(signal.SIGINT)
    model = LengthModel(10, 10, 1000)
    config = SchedulerConfig(kv_tokens=2048)
    with pytest.raises(KeyboardInterrupt):
        play("overlap", model, interrupted(), config, NO_MEMORY.cost)
    assert signal.getsignal(signal.SIGINT) is before


# -- profiles -----------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=9),
    base=st.integers(0, 99),
    token=st.integers(0, 99),
)
def test_attention_costs_the_same_in_one_piece_and_in_chunks(
    lengths: list[int], base: int, token: int
) -> None:
    pairs_only = AttentionCost(attention_ps=1_000_000)
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    chunks = list(zip(starts, lengths, strict=True))
    total = sum(lengths)
    in_chunks = sum(pairs_only.forward_rows([chunk]) for chunk in chunks)
    assert in_chunks == pairs_only.forward_rows([(0, total)])
    assert in_chunks == 1000 * sum(range(1, total + 1)), "each token attends to itself and before"
    plain = AttentionCost(forward_base=base, forward_per_token=token)
    assert plain.forward_rows(chunks) == CostModel({}, base, token).forward(total)


def test_a_profile_is_what_its_sources_say() -> None:
    """Worked out by hand: 8.03 G weights of 2 bytes at 80 % of 3.35 TB/s, and so on."""
    profile = PROFILES["llama8b-h100"]
    assert LLAMA_8B.kv_bytes == 131_072
    assert profile.cost.forward_base == pytest.approx(5.993e6, rel=1e-3)
    assert profile.cost.forward_per_token == pytest.approx(32_478, rel=1e-3)
    assert profile.cost.kv_read_ps == pytest.approx(48_907, rel=1e-3)
    assert profile.cost.attention_ps == pytest.approx(1_060, rel=1e-3)
    assert profile.kv_tokens * 131_072 + 2 * 8.03e9 == pytest.approx(0.9 * H100.memory, rel=0.01)
    assert all(item.kv_tokens > 2**18 for item in PROFILES.values())
    with pytest.raises(ValueError, match=r"^unknown profile 'x'; the profiles are llama8b-h100, "):
        find_profile("x")


# -- the command --------------------------------------------------------------------------------

KEYS = {
    "requests", "finished", "ttft_ms", "itl_ms", "queue_ms", "cache_hit_rate", "retractions",
    "device_busy", "makespan_ns", "tokens_per_second", "steps", "peak_tokens", "loop", "policy",
    "profile", "kv_tokens", "page_size", "host_seconds", "requests_per_second",
}  # fmt: skip


@pytest.fixture
def cli(cli: Any, tmp_path: Path) -> Any:
    """The command line, in a folder with two traces."""
    write(tmp_path / "shared.jsonl", apart((1, 2), (1, 2, 3), (1,)))
    write(tmp_path / "lengths.csv", [Arrival(0, 20, 3), Arrival(10**7, 2000, 5)])
    return cli


@pytest.mark.parametrize(("file", "page"), [("shared.jsonl", 512), ("lengths.csv", 16)])
def test_the_json_and_the_file_say_the_same(cli: Any, tmp_path: Path, file: str, page: int) -> None:
    code, out, err = cli(f"replay {file} --json --out result.json")
    result = json.loads(out)
    assert (code, err) == (0, "") and set(result) == KEYS
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert result["finished"] == result["requests"] > 0
    assert result["page_size"] == page and result["loop"] == "overlap"
    assert 0 < result["device_busy"] <= 1 and result["makespan_ns"] > 0
    assert result["ttft_ms"]["p50"] <= result["ttft_ms"]["p99"]
    assert set(result["itl_ms"]) == {"p50", "p90", "p99"}


def test_options_reach_the_replay(cli: Any) -> None:
    line = "replay shared.jsonl --json --schedule-policy lpm --kv-tokens 4096 --page-size 256"
    result = json.loads(cli(line + " --disable-overlap-schedule --profile smollm2-h100")[1])
    assert (result["policy"], result["kv_tokens"], result["page_size"]) == ("lpm", 4096, 256)
    assert (result["loop"], result["profile"]) == ("serial", "smollm2-h100")
    assert json.loads(cli("replay lengths.csv --json --requests 1")[1])["requests"] == 1
    advice = json.loads(cli("replay lengths.csv --json --advise")[1])["advice"]
    assert advice[0]["name"] == "token usage"


def test_it_says_it_in_words_too(cli: Any) -> None:
    code, out, _ = cli("replay shared.jsonl --advise --loop mlx_async")
    said = " ".join(out.split())
    assert code == 0 and "TTFT" in out and "Advice for mlx_async" in out
    assert "3 of 3 requests (Mooncake) finished in" in said
    assert "The cache gave 33.3 % of the tokens" in said
    assert "Prefill batch" in cli("replay lengths.csv --log")[2]


def test_requests_that_do_not_fit_are_named_and_the_others_finish(cli: Any) -> None:
    code, out, err = cli("replay lengths.csv --json --kv-tokens 64")
    result = json.loads(out)
    assert code == 2 and (result["requests"], result["finished"]) == (2, 1)
    assert err == (
        "request r1: the prompt has 2000 tokens and max_new_tokens is 5, together more than the KV "
        "pool of 64 slots.\n"
    )
    assert result["itl_ms"]["p50"] is not None


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nowhere.csv", "nowhere.csv can't be read: No such file or directory."),
        (".", ". can't be read: Is a directory."),
        ("lengths.csv --requests 0", "--requests is 0, but it must be at least 1."),
        ("lengths.csv --profile x", "unknown profile 'x'; the profiles are"),
        ("lengths.csv --loop x", "unknown loop 'x'; the loops are"),
        ("lengths.csv --loop overlap --disable-overlap-schedule", "leaves only serial"),
        ("lengths.csv --schedule-policy x", "--schedule-policy is 'x', but it must be one of"),
        ("lengths.csv --chunk 0", "--chunked-prefill-size is 0, but it must be at least 1"),
        ("lengths.csv --page-size 0", "--page-size is 0, but it must be at least 1."),
        ("shared.jsonl --chunk 100", "must be a multiple of the page size, 512"),
        ("shared.jsonl --kv-tokens 9", "--kv-tokens is 9, but it must be at least one page of 512"),
        ("lengths.csv --kv-tokens 1000000000", "the KV pool would have 62500000 pages, but it may"),
        ("lengths.csv --max-running-requests 9999999", "but it may be at most 1048576."),
        ("lengths.csv --out .", "--out . can't be written: Is a directory."),
        ("lengths.csv --out a/b.json", "--out a/b.json can't be written: there is no folder a."),
        ("lengths.csv --out ./lengths.csv", "--out lengths.csv is the trace itself,"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    cli: Any, tmp_path: Path, line: str, sentence: str
) -> None:
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = cli(f"replay {line}")
    assert (code, out) == (2, "")
    assert sentence in err and len(err.splitlines()) == 1 and "Traceback" not in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing is written"


def test_a_bad_line_is_named_before_anything_runs(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text((tmp_path / "lengths.csv").read_text() + "x,1,1\n")
    code, out, err = cli("replay bad.csv --out result.json")
    assert (code, out) == (2, "") and not (tmp_path / "result.json").exists()
    assert err.startswith("minisched: bad.csv, line 4: arrived_at is 'x', but it must be a number")


def test_what_cannot_be_replayed_says_why(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace", [Arrival(0, 10, 10)])
    refused = {"mini_normal", "mini_overlap", "vllm_pp2", "vllm_pp4", "pd"}
    assert set(LOOPS) - set(REPLAYED) == refused | {"mixed"}
    for loop in refused:
        with pytest.raises(ValueError, match=r"can't be replayed: (it|its) .*; take another"):
            replay(trace, loop)


CSV_ROWS = [("0.0", "374", "44"), ("0.2", "396", "109"), ("3.5e-1", "91", "16")]
NAMES = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, csv.QUOTE_MINIMAL])
@pytest.mark.parametrize("more", [(), ("user", "model, and its size")], ids=["alone", "more"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_csv_as_other_programs_write_it(
    cli: Any, tmp_path: Path, quoting: Any, more: tuple[str, ...], packed: bool
) -> None:
    """Quoted, with other columns before and behind, in gzip whatever its name: the same run."""

    def written(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, quoting=quoting)
        writer.writerows([header, *rows])
        return text.getvalue().encode("utf-8-sig")

    rows = [(*(["a, 'b'"] * len(more)), *row, *["x"] * len(more)) for row in CSV_ROWS]
    data = written((*more, *NAMES, *(f"{name} again" for name in more)), rows)
    (tmp_path / "mine.csv").write_bytes(gzip.compress(data) if packed else data)
    (tmp_path / "plain.csv").write_text("\n".join(map(",".join, [NAMES, *CSV_ROWS])))
    lines = [cli(f"replay {name}.csv --json") for name in ("mine", "plain")]
    found = [json.loads(out) for _, out, _ in lines]
    for item in found:
        del item["host_seconds"], item["requests_per_second"]
    assert [code for code, _, _ in lines] == [0, 0] and found[0] == found[1]


def test_one_s_own_file_is_not_azure_s(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("\n".join(map(",".join, [NAMES, *CSV_ROWS])))
    out = cli("replay mine.csv")[1]
    assert "3 of 3 requests (CSV) finished" in out and "Azure" not in out


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (['"0.0","10","5"', '"0.0","10"'], "line 3: it has 2 fields, but it must have arrived_at,"),
        (["1.0,10,5", "0.5,10,5"], "line 3: it is 500.0 ms earlier than the request before it, but "
         "requests must be in order of arrival: sort it first."),
        (['"0.0,10,5'], "line 2: it has 1 fields"),
        ([f"0.0,10,{'9' * 200_000}"], "line 2: it is not CSV: field larger than field limit"),
    ],
)  # fmt: skip
def test_bad_csv(cli: Any, tmp_path: Path, rows: list[str], sentence: str) -> None:
    (tmp_path / "bad.csv").write_text("\n".join([",".join(NAMES), *rows]))
    code, out, err = cli("replay bad.csv")
    assert (code, out) == (2, "") and sentence in err and len(err.splitlines()) == 1
