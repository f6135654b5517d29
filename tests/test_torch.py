"""torch: the laws on threads, with the exact model, a tiny Llama bit by bit, and a real one."""

from __future__ import annotations

import faulthandler
import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices import host_work
from minisched.devices.cuda import CudaDevice
from minisched.devices.thread import SWITCH_INTERVAL, ThreadDevice
from minisched.loops.run import run_loop
from minisched.models import hash_torch, mix, sampling, sampling_torch
from minisched.models.forward_batch import ForwardBatch
from minisched.models.hash_torch import HashTorch
from minisched.models.llama_torch import DTYPES, LlamaTorch
from minisched.models.llama_torch_attention import BLOCK, ROWS, Group, PagedKV
from minisched.models.llama_torch_layers import llama_step, silu
from minisched.scheduler import Scheduler, SchedulerConfig
from tests.llama_kinds import KINDS
from tests.support import (
    LOOP_OPTIONS,
    PROMPTS,
    SOME_LOOPS,
    VOCAB,
    Workload,
    check_all,
    check_ends,
    check_leaks,
    check_no_thread_left,
    check_trace,
    llama_workload,
    params,
    play,
    runs_on,
    some_requests,
    workloads,
)

ON_CUDA = [item for item in LOOP_OPTIONS if runs_on(item[0], "cuda")]
EVERY_LOOP_ON_CUDA = pytest.mark.parametrize(("loop", "relay", "options"), ON_CUDA, ids=str)
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
TIMEOUT = 600  # seconds a test may take before its threads are shown and the run is ended
CONTEXT = 448  # of the tiny Llama: several blocks of attention


@pytest.fixture(autouse=True)
def a_deadlock_ends_the_run() -> Iterator[None]:
    faulthandler.dump_traceback_later(TIMEOUT, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the oracle and the device, which takes one less, agree
    yield
    torch.set_num_threads(before)


def check_nothing_left_behind() -> None:
    check_no_thread_left()
    assert sys.getswitchinterval() > SWITCH_INTERVAL
    assert torch.get_num_threads() == 1


# -- sampling ----------------------------------------------------------------------------------

numbers = st.one_of(st.integers(0, mix.P - 1), st.sampled_from([0, 1, mix.P - 2, mix.P - 1]))
keys = st.integers(0, 2**63 - 1)


@given(pairs=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=40))
@settings(deadline=None)
def test_the_hash_is_exact_in_64_bits(pairs: list[tuple[int, int]]) -> None:
    a, b = (torch.tensor(side) for side in zip(*pairs, strict=True))
    assert hash_torch.mix(a, b).tolist() == [mix.mix(*pair) for pair in pairs]


rows_to_sample = st.lists(
    st.tuples(
        st.lists(st.integers(0, 12), min_size=VOCAB, max_size=VOCAB),  # many ties
        params,
        keys,
        st.integers(0, 5000),
    ),
    min_size=1,
    max_size=5,
)


@given(rows=rows_to_sample, first_look=st.sampled_from([1, 2, 5, 1024]))
@settings(max_examples=300, deadline=None)
def test_a_batch_samples_what_each_request_samples_alone(
    rows: list[tuple[list[int], SamplingParams, int, int]], first_look: int
) -> None:
    logits = [[value / 3 for value in row] for row, *_ in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling_torch, "FIRST_LOOK", first_look)  # both ways of finding the best
        drawn = sampling_torch.choose(
            torch.tensor(logits, dtype=torch.float64), [(p, key, at) for _, p, key, at in rows]
        )
    assert drawn.tolist() == [
        sampling.choose(row, *rest) for row, (_, *rest) in zip(logits, rows, strict=True)
    ]


# -- a tiny Llama, bit by bit ------------------------------------------------------------------


class Recording(LlamaTorch):
    """Keeps the logits of every row of every step."""

    def __init__(self, directory: Path, dtype: str = "float32", scripted: bool = True) -> None:
        super().__init__(directory, dtype, CONTEXT, scripted)
        self.kept: list[tuple[str, int, torch.Tensor]] = []  # (request id, tokens seen, logits)

    def sample(self, logits: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        rows = zip(batch.label.rids, batch.prefix_lens, batch.extend_lens, strict=True)
        for row, (rid, start, length) in enumerate(rows):
            self.kept.append((rid, start + length, logits[row].clone()))
        return super().sample(logits, batch)


def alone(model: LlamaTorch, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits [vocab] after ``tokens``: one request, all at once, not compiled, a cache of its own.

    No scheduler, worker or page allocator: position p has KV slot p + 1, and row 1.
    """
    count = len(tokens)
    padding = [0] * (-count % ROWS)
    shape = (len(model.weights.qkv), count + 1, *model.kv_shape)
    kv = PagedKV(
        keys=torch.zeros(shape, dtype=model.weights.embed.dtype),
        values=torch.zeros(shape, dtype=model.weights.embed.dtype),
        page_table=torch.tensor([0] * count + list(range(1, count + 1))),
        max_len=count,
    )
    group = Group(0, 1, count, -(-count // BLOCK) * BLOCK)
    ids, positions, rows = [*tokens, *padding], [*range(count), *padding], [1] * count + padding
    inputs = (torch.tensor(values) for values in (ids, positions, rows, [count - 1]))
    return llama_step(model.weights, kv, [group], *inputs)[0]


class Subject:
    """A model under test, and the truth about it."""

    def __init__(self, model: Recording) -> None:
        self.model = model
        self.logits_after = lru_cache(maxsize=4000)(lambda tokens: alone(model, tokens))

    def check(self, workload: Workload) -> int:
        """Every token and every logit is what the request gets alone; how many rows were seen."""
        requests = {req.rid: req for req in workload.requests}
        for req in workload.requests:
            tokens = list(req.prompt)
            for token in req.output_ids:
                logits = self.logits_after(tuple(tokens))[None]
                how = (req.params, req.sampling_key, len(tokens))
                assert token == int(sampling_torch.choose(logits, [how]))
                tokens.append(token)
            assert req.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
        seen = 0
        for rid, length, logits in self.model.kept:
            tokens = [*requests[rid].prompt, *requests[rid].output_ids]
            if length < len(tokens):  # a wasted row computes on a token that was never delivered
                assert torch.equal(logits, self.logits_after(tuple(tokens[:length])))
                seen += 1
        return seen


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> Subject:
    return Subject(Recording(tiny_llama))


WHICH = [*((kind, "float32") for kind in KINDS), ("llama", "bfloat16"), ("biases", "bfloat16"),
         ("qwen3 biases", "bfloat16"), ("qwen3 biases", "float64")]  # fmt: skip


@pytest.fixture(scope="module")
def subjects(kinds: dict[str, Path]) -> dict[tuple[str, str], Subject]:
    """Every kind of model, and the dtypes."""
    return {(kind, dtype): Subject(Recording(kinds[kind], dtype)) for kind, dtype in WHICH}


@st.composite
def llama_workloads(draw: st.DrawFn) -> Workload:
    """Prompts of up to 400 tokens, so that windows of several widths meet in a batch."""
    count = draw(st.integers(1, 5))
    length = st.one_of(st.integers(1, 8), st.integers(55, 75), st.integers(120, 400))
    token = st.integers(0, 511)
    prompts = []
    for n in [draw(length) for _ in range(count)]:
        start, stride = draw(token), draw(token)
        prompts.append([(start + at * stride + at * at) % 512 for at in range(n)])
    return llama_workload(draw, prompts, [1, 7, 33, 125], CONTEXT)


@SOME_LOOPS
@given(workload=llama_workloads(), which=st.sampled_from(WHICH))
@settings(max_examples=25, deadline=None)
def test_a_llama_is_exact_to_the_bit(
    loop: str,
    relay: str,
    options: dict[str, Any],
    workload: Workload,
    which: tuple[str, str],
    subjects: dict[tuple[str, str], Subject],
) -> None:
    subject = subjects[which]
    subject.model.kept.clear()
    engine, outputs = play(workload, loop, relay, options, ThreadDevice(), subject.model)
    check_ends(workload, outputs)
    check_leaks(engine)
    check_nothing_left_behind()
    assert subject.check(workload) >= sum(len(req.output_ids) for req in workload.requests)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scripted", [True, False])
@pytest.mark.parametrize("kind", ["llama", "biases", "qwen3 biases"])
def test_every_dtype_is_exact_to_the_bit_compiled_or_not(
    dtype: str, scripted: bool, kind: str, kinds: dict[str, Path]
) -> None:
    subject = Subject(Recording(kinds[kind], dtype, scripted))
    params = SamplingParams(max_new_tokens=6)
    for chunk_size in (50, 300):
        requests = [
            Request(f"r{i}", [(7 * i + at) % 512 for at in range(length)], params)
            for i, length in enumerate([3, 64, 130, 290])
        ]
        config = SchedulerConfig(chunked_prefill_size=chunk_size, context_len=CONTEXT)
        workload = Workload(requests, [0, 0, 1, 2], {}, config)
        subject.model.kept.clear()
        play(workload, "overlap", "pool", {}, ThreadDevice(), subject.model)
        assert subject.check(workload) >= 4


def test_a_tiny_llama_says_more_than_one_word(tiny: Subject) -> None:
    request = Request("r", [5, 7, 11], SamplingParams(max_new_tokens=32, ignore_eos=True))
    run_loop("serial", ThreadDevice(), tiny.model, [request])
    assert len(set(request.output_ids)) > 10  # else the law above could not fail


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_transformers(kind: str, kinds: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(kinds[kind], dtype=torch.float64)
    ours = LlamaTorch(kinds[kind], "float64")
    tokens = tuple((3 + 5 * at * at) % 512 for at in range(200))
    with torch.no_grad():
        truth = theirs(torch.tensor([tokens])).logits[0]
    for count in (1, 2, 63, 64, 65, 200):
        difference = (alone(ours, tokens[:count]) - truth[count - 1]).abs().max()
        assert difference < 1e-4  # theirs computes norms in 32 bits, whatever the dtype


@pytest.mark.parametrize("threads", [1, 3, 5, 7])
@pytest.mark.parametrize("width", [96, 1376])
def test_silu_does_not_depend_on_threads(threads: int, width: int) -> None:
    x = torch.randn(132, 2 * width, generator=torch.Generator().manual_seed(0))
    gate = x.chunk(2, -1)[0]
    alone = torch.cat([silu(gate[at : at + ROWS]) for at in range(0, 132, ROWS)])
    torch.set_num_threads(threads)
    together = silu(gate)
    torch.set_num_threads(1)
    assert torch.equal(together, alone)


def test_an_unknown_dtype_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match="dtype is 'int4', but with torch it must be one of "):
        LlamaTorch(tiny_llama, "int4")


# -- the device --------------------------------------------------------------------------------


@SOME_LOOPS
def test_the_trace_tells_what_happened(loop: str, relay: str, options: dict[str, Any]) -> None:
    model = HashTorch(eos_ids=frozenset())
    run = run_loop(loop, ThreadDevice(), model, some_requests(), relay=relay, **options)
    check_trace(run.trace)


def test_host_work_is_an_amount_and_not_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    device = ThreadDevice()
    host_work.nanoseconds_per_round()  # measured once, and not with a stand-in
    monkeypatch.setattr(host_work, "work", done.append)
    for cost in (0, 1_000_000, 20_000_000):
        with device.host("schedule", cost):
            pass
    device.close()
    rate = host_work.nanoseconds_per_round()
    assert done == [round(1_000_000 / rate), round(20_000_000 / rate)]  # none of it costs nothing
    assert done[0] > 100


def test_an_error_is_passed_on_and_the_device_goes_on() -> None:
    device = ThreadDevice()
    stream = device.stream("forward")

    def fail() -> None:
        raise RuntimeError("no such luck")

    failed = stream.launch(fail, name="fails")
    heir = stream.launch(lambda value: value + 1, failed, name="builds on it")
    sound = stream.launch(lambda: torch.arange(3) * 2, name="sound")
    other = device.stream("copy")
    other.wait(sound)
    landing = device.host_memory("landing", 5)
    copied = other.launch(device.copy_to_host, landing, sound, 2, name="copy")
    for op in (failed, heir):
        with pytest.raises(RuntimeError, match="no such luck"):
            op.synchronize()
    assert copied.synchronize().tolist() == [0, 2]
    assert landing.tolist() == [0, 2, 1, 1, 1]  # 1: valid but wrong
    assert copied.query() and failed.query()
    device.close()
    device.close()
    check_nothing_left_behind()


@pytest.fixture
def nobody_collects() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run_out(kept: list[weakref.ref[torch.Tensor]]) -> None:
    """Fail beside a tensor, after another failure beside another."""
    first = torch.zeros(1)
    kept.append(weakref.ref(first))
    try:
        raise KeyError("a first reason")
    except KeyError:
        second = torch.zeros(1)
        kept.append(weakref.ref(second))
        raise MemoryError("no room") from None


@pytest.mark.usefixtures("nobody_collects")
def test_an_op_that_fails_keeps_nothing_of_what_it_was_working_on() -> None:
    device, kept = ThreadDevice(), list[weakref.ref[torch.Tensor]]()
    op = device.stream("forward").launch(run_out, kept, name="fails")
    with pytest.raises(MemoryError, match="no room") as caught:
        op.synchronize()
    assert [ref() for ref in kept] == [None, None]
    assert "in run_out" in "".join(traceback.format_exception(caught.value))  # it is still said
    device.close()


class RunsOut(HashTorch):
    """Finds no memory in its third step, in the forward pass or as it samples."""

    def __init__(self, where: str = "forward") -> None:
        super().__init__(eos_ids=frozenset())
        self.where = where
        self.logits: list[weakref.ref[torch.Tensor]] = []
        self.kept: list[weakref.ref[torch.Tensor]] = []
        self.passes = 0

    def forward(self, batch: ForwardBatch, ids: torch.Tensor, page_table: torch.Tensor) -> Any:
        self.passes += 1
        logits = super().forward(batch, ids, page_table)
        self.logits.append(weakref.ref(logits))
        if self.passes == 3 and self.where == "forward":
            run_out(self.kept)
        return logits

    def sample(self, logits: torch.Tensor, batch: ForwardBatch) -> Any:
        if self.passes == 3 and self.where == "sample":
            run_out(self.kept)
        return super().sample(logits, batch)


@pytest.mark.usefixtures("nobody_collects")
@pytest.mark.parametrize("loop", ["serial", "overlap", "overlap_thread", "vllm_batch_queue"])
@pytest.mark.parametrize("where", ["forward", "sample"])
def test_a_failed_step_leaves_no_activations_behind(loop: str, where: str) -> None:
    model, config = RunsOut(where), SchedulerConfig(chunked_prefill_size=4)
    run = run_loop(loop, ThreadDevice(), model, some_requests(), config)
    assert any("out of device memory" in error for error in run.errors.values())
    *before, last = model.logits  # a loop may hold the last step's until it is collected itself
    assert last and len(before) >= 2 and len(model.kept) == 2
    assert not [ref for ref in (*before, *model.kept) if ref() is not None]


def test_closing_drops_what_is_queued_even_behind_a_wait() -> None:
    device = ThreadDevice()
    forward, copy = device.stream("forward"), device.stream("copy")
    started, go = threading.Event(), threading.Event()

    def slow() -> int:
        started.set()
        go.wait()
        return 7

    running = forward.launch(slow, name="running")
    queued = forward.launch(lambda: 8, name="queued")
    copy.wait(queued)
    behind = copy.launch(lambda: 9, name="behind")
    started.wait()
    closing = threading.Thread(target=device.close)
    closing.start()
    while not device.is_closed:
        pass
    go.set()
    closing.join()
    assert running.synchronize() == 7
    for op in (queued, behind):
        with pytest.raises(RuntimeError, match=f"{op.name} was dropped: the device was closed"):
            op.synchronize()
    with pytest.raises(RuntimeError, match="late can't be launched: the device is closed"):
        forward.launch(lambda: 0, name="late")
    check_nothing_left_behind()


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
@SOME_LOOPS
def test_an_error_of_the_loop_leaves_no_thread(
    loop: str,
    relay: str,
    options: dict[str, Any],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def burst(scheduler: Scheduler, *result: object) -> None:
        raise error("no such step")

    monkeypatch.setattr(Scheduler, "process", burst)
    with pytest.raises(error, match="no such step"):
        run_loop(loop, ThreadDevice(), HashTorch(), some_requests(), relay=relay, **options)
    check_nothing_left_behind()


def test_a_chain_of_steps_does_not_hold_on_to_its_past() -> None:
    device = ThreadDevice()
    stream = device.stream("forward")
    op = stream.launch(lambda: torch.zeros(1), name="first")
    first = weakref.ref(op)
    for _ in range(3):
        op = stream.launch(lambda value: value + 1, op, name="next")
    assert op.synchronize().tolist() == [3]
    stream.launch(lambda: 0, name="the thread forgets its last op").synchronize()
    assert first() is None
    device.close()


# -- a GPU -------------------------------------------------------------------------------------


def test_without_a_gpu_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^torch sees no GPU, which device 'cuda' needs; .*\.$"):
        CudaDevice()


@NO_GPU
@pytest.mark.cuda
@EVERY_LOOP_ON_CUDA
@given(workload=workloads())
@settings(max_examples=30, deadline=None)
def test_laws_on_cuda(loop: str, relay: str, options: dict[str, Any], workload: Workload) -> None:
    model = HashTorch(VOCAB, eos_ids=workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, CudaDevice(), model)
    check_all(workload, engine, outputs)


@NO_GPU
@pytest.mark.cuda
@EVERY_LOOP_ON_CUDA
def test_the_trace_on_cuda(loop: str, relay: str, options: dict[str, Any]) -> None:
    model = HashTorch(eos_ids=frozenset())
    run = run_loop(loop, CudaDevice(), model, some_requests(), relay=relay, **options)
    check_trace(run.trace)


@NO_GPU
@pytest.mark.cuda
def test_a_llama_on_cuda_says_the_same_in_every_loop(tiny_llama: Path) -> None:
    model = LlamaTorch(tiny_llama, "float64", CONTEXT)
    runs = [
        run_loop(loop, CudaDevice(), model, some_requests(), relay=relay, **options).outputs
        for loop, relay, options in ON_CUDA
    ]
    assert all(outputs == runs[0] for outputs in runs)


# -- a real model ------------------------------------------------------------------------------


@pytest.mark.weights
def test_smollm2_says_what_transformers_says(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = LlamaTorch(smollm2)
    prompts = [model.tokenizer.encode(text) for text in PROMPTS]
    theirs: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    theirs.generation_config.eos_token_id = None  # every request runs to its length
    truth = {
        f"r{i}": theirs.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=64, pad_token_id=0
        )[0, len(prompt) :].tolist()
        for i, prompt in enumerate(prompts)
    }
    greedy = SamplingParams(max_new_tokens=64, ignore_eos=True)
    for loop in ("serial", "overlap"):
        requests = [Request(f"r{i}", prompt, greedy) for i, prompt in enumerate(prompts)]
        config = SchedulerConfig(chunked_prefill_size=12, page_size=4, max_running_requests=5)
        run = run_loop(loop, ThreadDevice(), model, requests, config)
        assert run.outputs == truth, loop
