"""``bench cuda`` without a GPU: the whole script on the CPU, with what only a GPU has played."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from minisched.bench.calibration.calibrate import observe_all
from minisched.bench.calibration.design import Design
from minisched.bench.cuda import cuda, foreseen
from minisched.bench.cuda import sanitized as sanitized_run
from minisched.bench.cuda.cuda import (
    FEW,
    LOOPS,
    PEER,
    PEER_SHARE,
    Load,
    TransformersPeer,
    answer,
    cuda_figures,
)
from minisched.bench.cuda.random_llama import COMMON, SHAPES, num_parameters, write_random_llama
from minisched.bench.steady import steady_busy_percent
from minisched.cli import bench_cuda
from minisched.cli.bench_call import BenchCall
from minisched.cli.bench_cuda import RACE, measure, sanitized
from minisched.devices.cost import SIM_COST
from minisched.models.llama_graphs import LlamaGraphs
from minisched.trace import Recorder, Slice, Trace
from tests.test_llama_graphs import PlayedGraph

SMALL = {
    **COMMON, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8, "vocab_size": 200,
}  # fmt: skip


class StandIn:
    """A peer that writes down what is done, and when its tokens are asked for."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        events.append("make")

    def generate(self, prompts: Sequence[list[int]], new_tokens: int) -> None:
        self.events.append(f"peer {len(prompts)} x {len(prompts[0])} + {new_tokens}")

    def close(self) -> None:
        self.events.append("close")


def without_a_gpu(monkeypatch: pytest.MonkeyPatch, load: Load) -> list[Any]:
    """What only a GPU has is played; gives what costs are asked for."""
    monkeypatch.setattr(cuda, "DEVICE", "thread")
    monkeypatch.setattr(cuda, "bytes_per_second", lambda: 1e9)
    asked_for: list[Any] = []

    def calibrated(
        device: str, model: Any, loops: list[str], *others: int, report: Any, design: Design
    ) -> Any:
        asked_for.append((device, loops))
        assert design.config == load.config()
        return SIM_COST

    monkeypatch.setattr(foreseen, "calibrate", calibrated)
    monkeypatch.setattr(foreseen, "observe_all", calibrated)
    return asked_for


def small_llama(folder: Path, capture: Any) -> LlamaGraphs:
    return LlamaGraphs(
        write_random_llama(folder, SMALL), "bfloat16", scripted=False, capture=capture
    )


def test_every_figure_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, events = Load(rows=2, prompt_len=20, new_tokens=12), list[str]()
    asked_for = without_a_gpu(monkeypatch, load)
    model = small_llama(tmp_path, PlayedGraph())
    keep = partial(bench_cuda.keep_pair, tmp_path / "kept", "small")
    rows = cuda_figures(
        "small", SMALL, model, lambda: StandIn(events), load, 2, lambda doing: None, keep
    )
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept >= {"small-overlap.svg", "small-overlap-measured.json"} and len(kept) == 9
    names = [row.name for row in rows]
    assert len(set(names)) == len(names) == len(LOOPS) * 9 + 7
    assert asked_for == [("thread", list(LOOPS))] * 2  # to capture graphs, and to measure
    for row in rows:
        assert row.median is not None and row.min is not None and row.max is not None
        assert row.min <= row.median <= row.max
        if row.name.endswith("races"):
            assert row.met
    by_name = {row.name: row for row in rows}
    for loop in LOOPS:  # what is measured here is far from what these costs say
        measured, said = (
            by_name[f"small: {loop}, makespan"],
            f"small: {loop}, makespan that sim predicts",
        )
        wrong = 100 * (by_name[said].median / measured.max - 1)
        assert by_name[f"small: {loop}, makespan, off by"].min == pytest.approx(wrong)


def test_nothing_is_made_within_a_timing_and_each_begins_with_an_empty_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, events, played = Load(rows=2, prompt_len=20, new_tokens=12), list[str](), PlayedGraph()
    without_a_gpu(monkeypatch, load)

    def captured(step: Any) -> Any:
        events.append("make")
        return played(step)

    def answered(model: Any, loop: str, load: Load, new_tokens: int) -> Any:
        events.append(f"{loop} {load.rows} x {load.prompt_len} + {new_tokens}")
        return answer(model, loop, load, new_tokens)

    def looked() -> float:
        events.append("clock")
        return float(len(events))

    monkeypatch.setattr(cuda, "answer", answered)
    monkeypatch.setattr(cuda, "time", SimpleNamespace(perf_counter=looked))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("empty"))
    model = small_llama(tmp_path, captured)
    cuda_figures("small", SMALL, model, lambda: StandIn(events), load, 3, lambda doing: None)
    sides = [*LOOPS, "peer"] * 3
    looks = [at for at, event in enumerate(events) if event == "clock"]
    begun = looks[::2]
    assert [events[at - 2 : at + 3] for at in begun] == [
        ["empty", f"{side} 2 x 20 + {FEW}", "clock", f"{side} 2 x 20 + 12", "clock"]
        for side in sides
    ]
    assert looks == [at for first in begun for at in (first, first + 2)]
    made = [at for at, event in enumerate(events) if event == "make"]
    assert len(made) == 1 + played.captured > 1 and made[-1] < begun[0]
    assert events.count("close") == 1 and events.index("close") > looks[-1]


@pytest.mark.parametrize("fails", ["make", "generate"])
def test_a_peer_that_fails_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    load, events = Load(rows=2, prompt_len=20, new_tokens=12), list[str]()
    without_a_gpu(monkeypatch, load)

    def broken(*args: Any) -> Any:
        raise OSError("no such kernel\nand more")

    monkeypatch.setattr(StandIn, "__init__" if fails == "make" else fails, broken)
    monkeypatch.setattr(StandIn, "events", events, raising=False)
    model = small_llama(tmp_path, PlayedGraph())
    rows = cuda_figures("small", SMALL, model, lambda: StandIn(events), load, 1, lambda doing: None)
    [row] = [row for row in rows if row.name == "small: transformers / overlap"]
    assert (row.median, row.reason) == (None, "transformers: no such kernel")
    assert not any(PEER in row.name for row in rows)


def test_transformers_keeps_what_it_made_and_computes_all_of_it_again(tmp_path: Path) -> None:
    """The library itself, on the CPU: as many tokens as asked for, run after run."""
    load = Load(rows=2, prompt_len=20, new_tokens=12)
    prompts = [request.prompt for request in load.requests()]
    peer = TransformersPeer(write_random_llama(tmp_path, SMALL), load, "cpu")
    manager, cache = peer.manager, peer.manager.batch_processor.cache
    assert manager.continuous_batching_config.max_memory_percent == PEER_SHARE
    assert not cache.use_prefix_sharing
    try:
        for new_tokens in (12, FEW, 12):
            peer.generate(prompts, new_tokens)
            assert peer.manager is manager and manager.batch_processor.cache is cache
        with pytest.raises(RuntimeError, match="it made 0 tokens, not 24"):
            peer.generate([[1] * 10_000] * 2, 12)  # no room for these
    finally:
        peer.close()
    assert not manager.is_running()


def test_costs_are_fitted_to_what_is_to_be_predicted(tmp_path: Path) -> None:
    """Every number of rows and the longest step are in it, and nobody makes new graphs for it."""
    load, played = Load(rows=4, prompt_len=48, new_tokens=20), PlayedGraph()
    model: Any = LlamaGraphs(
        write_random_llama(tmp_path, SMALL), "bfloat16", scripted=False, capture=played
    )
    design = foreseen.design_of(load.requests(), load.config())
    observe_all("thread", model, LOOPS, design=design)
    captured = played.captured
    runs = observe_all("thread", model, LOOPS, design=design)
    assert played.captured == captured > 0
    passes = [rows for run in runs for rows in run.rows.values()]
    is_decode = [all(length == 1 for _, length in rows) for rows in passes]
    decodes = {len(rows) for rows, yes in zip(passes, is_decode, strict=True) if yes}
    prompts = {
        sum(length for _, length in rows)
        for rows, yes in zip(passes, is_decode, strict=True)
        if not yes
    }
    assert decodes >= {1, 2, 4} and max(decodes) == load.rows
    assert min(prompts) > load.rows and max(prompts) == load.rows * load.prompt_len


@pytest.mark.parametrize("rows", [1, 32, 100])
def test_a_prompt_has_more_tokens_than_any_decode_has_rows(rows: int) -> None:
    design = foreseen.design_of(Load(rows=rows).requests(), Load(rows=rows).config())
    assert min(load.prompt for load in (*design.serial, *design.loops)) > rows
    assert max(load.requests for load in design.serial) == rows


def played(reports: int, code: int) -> Any:
    """A run under the sanitizer that says so many races and ends with a code."""
    said = f"{RACE} on tensor\n" * reports + "the last line"
    return lambda *args, **options: SimpleNamespace(returncode=code, stdout="", stderr=said)


@pytest.mark.parametrize(("reports", "code", "median"), [(0, 0, 0), (2, 1, 2), (0, 1, None)])
def test_a_race_is_counted_although_torch_ends_the_run_at_it(
    monkeypatch: pytest.MonkeyPatch, reports: int, code: int, median: float | None
) -> None:
    monkeypatch.setattr(subprocess, "run", played(reports, code))
    row = sanitized("1B", "overlap", Path("nowhere"), BenchCall("cuda"))
    assert row.median == median
    assert row.reason == ("" if median is not None else "the run ended with 1: the last line")


def test_what_the_sanitizer_watches_runs(tmp_path: Path) -> None:
    """As on a GPU, but for the device: with these weights, which have no tokenizer."""
    watched = sanitized_run.watched(write_random_llama(tmp_path, SMALL), "overlap", "thread")
    assert watched == sanitized_run.LOAD.rows * sanitized_run.LOAD.new_tokens


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (BenchCall("cuda", requests=0), "--requests is 0"),
        (BenchCall("cuda", max_new_tokens=3), "--max-new-tokens is 3"),
        (BenchCall("cuda", max_new_tokens=600), "between 16 and 512"),
    ],
)
def test_a_bad_load_is_one_sentence(call: BenchCall, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        measure(call)


def test_weights_are_of_the_published_sizes(tmp_path: Path) -> None:
    for shape, billions in (("1B", 1.24), ("8B", 7.5)):
        assert num_parameters({**COMMON, **SHAPES[shape]}) / 1e9 == pytest.approx(billions, 0.01)
    write_random_llama(tmp_path, SMALL)
    assert LlamaGraphs(tmp_path, "bfloat16").weights.embed.dtype == torch.bfloat16
    tensors = load_file(tmp_path / "model.safetensors")
    read = sum(tensor.numel() for name, tensor in tensors.items() if "embed" not in name)
    assert read == num_parameters(SMALL)


def steps(busy: int) -> Trace:
    """Ten decode steps of 100 ns, of which the device works for some; a prefill goes before."""
    recorder = Recorder()
    spans = [(0, 1000), *((start, start + busy) for start in range(1000, 2000, 100))]
    for number, (start, end) in enumerate(spans):
        mode = "decode" if number else "extend"
        recorder.slice(
            Slice(recorder.new_id(), "forward", "forward", start, end, step=number, mode=mode)
        )
    return recorder.trace("serial", "cuda", "hash", "wall")


@pytest.mark.parametrize("busy", [1, 50, 99, 100])
def test_busy_is_of_settled_decode_steps_alone(busy: int) -> None:
    assert steady_busy_percent(steps(busy)) == busy


def test_a_short_run_has_no_steady_part() -> None:
    recorder: Any = Recorder()
    with pytest.raises(ValueError, match="0 steps has no steady part"):
        steady_busy_percent(recorder.trace("serial", "cuda", "hash", "wall"))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--device thread", "--device is 'thread', but bench cuda measures cuda only."),
        ("--model 3B", "--model is '3B'; bench cuda knows 1B, 8B."),
        ("--vidur .", "--vidur is of no use to bench cuda."),
    ],
)
def test_a_bad_option_is_one_sentence(cli: Any, line: str, sentence: str) -> None:
    code, out, err = cli(f"bench cuda {line}")
    assert (code, out) == (2, "") and sentence in err and len(err.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_without_a_gpu_it_says_so(cli: Any) -> None:
    code, out, err = cli("bench cuda")
    assert (code, out) == (2, "") and "torch sees no GPU" in err
