"""MLX: the laws on lazy graphs, with the exact model, a tiny Llama and a real one."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.host_work import compute, done_by
from minisched.devices.mlx import MlxDevice
from minisched.loops.run import run_loop
from minisched.models import hash_mlx, mix, sampling, sampling_mlx
from minisched.models.hash_mlx import HashMlx
from minisched.models.llama_mlx import LlamaMlx
from minisched.scheduler import Scheduler, SchedulerConfig
from tests.mlx_at_rest import A_STEP, come_to_rest, growth
from tests.mlx_llama import Recording, alone, llama_workloads
from tests.support import (
    PROMPTS,
    SOME_LOOPS,
    VOCAB,
    Workload,
    check_ends,
    check_leaks,
    check_no_thread_left,
    check_trace,
    named,
    params,
    play,
    some_requests,
)

NEW_TOKENS = 32


numbers = st.one_of(st.integers(0, mix.P - 1), st.sampled_from([0, 1, mix.P - 2, mix.P - 1]))
keys = st.integers(0, 2**63 - 1)


@given(pairs=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=40))
@settings(deadline=None)
def test_the_hash_is_exact_in_64_bits(pairs: list[tuple[int, int]]) -> None:
    a, b = (mx.array(list(side), dtype=mx.int64) for side in zip(*pairs, strict=True))
    assert hash_mlx.mix(a, b).tolist() == [mix.mix(*pair) for pair in pairs]


@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.integers(0, 12), min_size=VOCAB, max_size=VOCAB),  # many ties
            params,
            keys,
            st.integers(0, 5000),
        ),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=200, deadline=None)
def test_a_batch_samples_what_each_request_samples_alone(
    rows: list[tuple[list[int], SamplingParams, int, int]],
) -> None:
    logits = [[value / 3 for value in row] for row, *_ in rows]
    with mx.stream(mx.cpu):  # the only place for float64
        drawn = sampling_mlx.sample(
            mx.array(logits, dtype=mx.float64), [(p, key, at) for _, p, key, at in rows]
        )
    assert drawn.tolist() == [
        sampling.choose(row, *rest) for row, (_, *rest) in zip(logits, rows, strict=True)
    ]


# -- a tiny Llama, bit by bit ------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> Recording:
    return Recording(tiny_llama)


Truth = Callable[[tuple[int, ...]], list[float]]

# mlx-lm adds a bias before it rounds to 16 bits, computes the rotation's tables in another order
# where it scales them, and its Qwen3 has no biases: then ours alone is the truth
SAME_AS_MLX_LM = [("llama", "float32"), ("llama", "bfloat16"), ("norms", "float32"),
                  ("biases", "float32"), ("qwen2", "float32"), ("qwen3", "float32"),
                  ("qwen3", "bfloat16")]  # fmt: skip
WHICH = [*SAME_AS_MLX_LM, ("llama 3.1", "float32"), ("llama 3.2", "bfloat16"),
         ("linear", "float32"), ("mlp bias", "float32"), ("biases", "bfloat16"),
         ("qwen2 tied", "float32"), ("qwen3 biases", "float32"),
         ("qwen3 biases", "bfloat16")]  # fmt: skip


@pytest.fixture(scope="module")
def subjects(kinds: dict[str, Path]) -> dict[tuple[str, str], tuple[Recording, Truth]]:
    """Models, and what they should compute: from all tokens at once, with no cache of a run's.

    Where that is mlx-lm's, it is nothing of ours.
    """
    found = {}
    for kind, dtype in WHICH:
        model = Recording(kinds[kind], dtype)
        truth = cache(partial(alone, model))
        if (kind, dtype) in SAME_AS_MLX_LM:
            lm: Any = load_model(kinds[kind])[0]
            lm.set_dtype(getattr(mx, dtype))
            truth = cache(partial(lm_alone, lm))
        found[kind, dtype] = model, truth
    return found


def lm_alone(lm: Any, tokens: tuple[int, ...]) -> list[float]:
    """Logits [vocab] of mlx-lm."""
    last: list[float] = lm(mx.array([tokens]))[0, -1].tolist()
    return last


@SOME_LOOPS
@given(workload=llama_workloads(), which=st.sampled_from(WHICH))
@settings(max_examples=25, deadline=None)
def test_a_llama_is_exact_to_the_bit(
    loop: str,
    relay: str,
    options: dict[str, Any],
    workload: Workload,
    which: tuple[str, str],
    subjects: dict[tuple[str, str], tuple[Recording, Truth]],
) -> None:
    tiny, logits_after = subjects[which]
    tiny.kept.clear()
    engine, outputs = play(workload, loop, relay, options, MlxDevice(), tiny)
    check_ends(workload, outputs)
    check_leaks(engine)
    requests = {req.rid: req for req in workload.requests}
    for req in workload.requests:
        tokens = list(req.prompt)
        for token in req.output_ids:
            logits = logits_after(tuple(tokens))
            assert token == sampling.choose(logits, req.params, req.sampling_key, len(tokens))
            tokens.append(token)
        assert req.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
    for rid, seen, logits in tiny.kept:
        tokens = [*requests[rid].prompt, *requests[rid].output_ids]
        if seen < len(tokens):  # a wasted row computes on a token that was never delivered
            assert logits.tolist() == logits_after(tuple(tokens[:seen]))


def test_a_tiny_llama_says_more_than_one_word(tiny: Recording) -> None:
    request = Request("r", [5, 7, 11], SamplingParams(max_new_tokens=32, ignore_eos=True))
    run_loop("serial", MlxDevice(), tiny, [request])
    assert len(set(request.output_ids)) > 10  # else the law above could not fail


# -- the device --------------------------------------------------------------------------------


@SOME_LOOPS
def test_the_trace_tells_what_happened(loop: str, relay: str, options: dict[str, Any]) -> None:
    """And the work that each ``schedule`` costs is done once, inside its slice."""
    device = MlxDevice()
    cost = CostModel({"schedule": 1_000_000})
    amounts: list[int] = []

    def work(amount: int) -> None:
        amounts.append(amount)
        device.recorder.mark("work begins")
        compute(amount)
        device.recorder.mark("work ends")

    with done_by(work):
        run = run_loop(
            loop, device, HashMlx(eos_ids=frozenset()), some_requests(), cost=cost, relay=relay,
            **options,
        )  # fmt: skip
    check_trace(run.trace)
    schedules = [item for item in run.trace.on("host") if item.name == "schedule"]
    assert amounts == [1_000_000] * len(schedules) != []
    begins, ends = (
        [mark.time for mark in run.trace.marks if mark.name == f"work {word}"]
        for word in ("begins", "ends")
    )
    for item, begin, end in zip(schedules, begins, ends, strict=True):
        assert item.start <= begin <= end <= item.end


@pytest.mark.parametrize("every", [0, 1, 7])
def test_the_cache_is_cleared_every_so_many_decode_steps(every: int) -> None:
    run = run_loop(
        "mlx_async", MlxDevice(), HashMlx(eos_ids=frozenset()), some_requests(30),
        clear_cache_every=every,
    )  # fmt: skip
    decodes = [item for item in named(run.trace, "forward").values() if item.mode == "decode"]
    marks = [mark for mark in run.trace.marks if mark.name == "clear cache"]
    assert len(marks) == (len(decodes) // every if every else 0)


@SOME_LOOPS
def test_no_graph_outlives_its_step(
    loop: str, relay: str, options: dict[str, Any], tiny: Recording
) -> None:
    device = MlxDevice()
    run_loop(loop, device, tiny, some_requests(40), relay=relay, **options)
    state = [*device.arrays, *(layer.pool for layer in tiny.caches)]
    assert [operations_behind(array) for array in state] == [0] * len(state)
    assert operations_behind(state[0] + 1) > 0  # the count can see one


def operations_behind(array: mx.array) -> int:
    """How many operations would have to run to know this array's numbers."""
    dot = io.StringIO()
    mx.export_to_dot(dot, array)
    return dot.getvalue().count("shape=rectangle")


def test_memory_stays_flat_over_a_long_run(tiny: Recording) -> None:
    used: list[int] = []
    request = Request("r", [1, 2, 3], SamplingParams(max_new_tokens=400, ignore_eos=True))

    device = MlxDevice()

    def look(output: object) -> None:
        tiny.kept.clear()
        come_to_rest(device)
        used.append(mx.get_active_memory())

    run_loop("serial", device, tiny, [request], on_output=look)
    assert len(used) == 400
    assert growth(used) < A_STEP


def test_an_error_is_passed_on_and_the_device_goes_on() -> None:
    device = MlxDevice()
    stream = device.stream("forward")

    def fail() -> None:
        raise RuntimeError("no such luck")

    failed = stream.launch(fail, name="fails")
    heir = stream.launch(lambda value: value + 1, failed, name="builds on it")
    sound = stream.launch(lambda: mx.arange(3) * 2, name="sound")
    other = device.stream("copy")
    other.wait(sound)
    copied = other.launch(device.copy_to_host, None, sound, 2, name="copy")
    device.flush(copied)
    for op in (failed, heir):
        with pytest.raises(RuntimeError, match="no such luck"):
            op.synchronize()
    assert copied.synchronize().tolist() == [0, 2]
    assert copied.query() and failed.query()
    assert stream.launch(lambda: mx.array([4]) + 1, name="not flushed").synchronize().tolist() == [
        5
    ]
    device.close()
    device.close()
    check_no_thread_left()


@pytest.fixture
def no_device_left_open() -> Iterator[None]:
    yield
    check_no_thread_left()


def test_an_error_of_the_loop_leaves_no_thread(
    no_device_left_open: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def burst(scheduler: Scheduler) -> None:
        raise KeyError("no batch today")

    monkeypatch.setattr(Scheduler, "next_batch", burst)
    with pytest.raises(KeyError, match="no batch today"):
        run_loop("mlx_async", MlxDevice(), HashMlx(), some_requests())


# -- a real model ------------------------------------------------------------------------------


@pytest.mark.weights
def test_smollm2_says_what_mlx_lm_says(smollm2: Path) -> None:
    model, lm = LlamaMlx(smollm2), load_model(smollm2)[0]
    prompts = [model.tokenizer.encode(text) for text in PROMPTS]
    truth = {
        f"r{i}": [
            int(token) for token, _ in generate_step(mx.array(prompt), lm, max_tokens=NEW_TOKENS)
        ]
        for i, prompt in enumerate(prompts)
    }
    sampling_params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for loop in ("serial", "mlx_async"):
        requests = [Request(f"r{i}", p, sampling_params) for i, p in enumerate(prompts)]
        config = SchedulerConfig(chunked_prefill_size=12, page_size=4, max_running_requests=5)
        run = run_loop(loop, MlxDevice(), model, requests, config)
        assert run.outputs == truth, loop
