"""A Llama on torch and on MLX: in any batch what it is alone, to the bit; alone, the published one.

On MLX that is so with the stock kernels, with which these tests run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from safetensors.torch import load_file, save_file

from minisched.checks.draw import PLAIN, Letters, Scale
from minisched.checks.laws import bad_end
from minisched.core import Request, SamplingParams
from minisched.features.logprobs import logprobs_of
from minisched.loops.run import Run, run_loop
from minisched.memory import self_check
from minisched.models import sampling
from minisched.models.llama_torch import (
    BLOCK,
    ROWS,
    Group,
    LlamaTorch,
    PagedKV,
    llama_step,
    multiply,
    silu,
)
from minisched.models.mlx_lm import MlxLm
from minisched.models.pretrained import DTYPES
from minisched.models.registry import open_model
from minisched.scheduler import SchedulerConfig
from tests.support import (
    LLAMAS,
    OTHERS,
    SOME_LOOP_OPTIONS,
    Workload,
    every,
    many,
    open_device,
    play,
    prompt,
    runs_on,
    workloads,
)

DEVICES = ("thread", "mlx")
ON_BOTH = pytest.mark.parametrize("device", DEVICES)
CONTEXT = 448  # several blocks of attention
FEW = [("thread", "llama"), ("thread", "tied"), ("mlx", "llama"), ("mlx", "qwen3 scaled")]
MORE = [*(("thread", kind) for kind in LLAMAS), *(("mlx", kind) for kind in (*LLAMAS, *OTHERS))]
EXACT: list[Any] = [
    pair if pair in FEW else pytest.param(*pair, marks=pytest.mark.thorough) for pair in MORE
]
CONFIG = SchedulerConfig(chunked_prefill_size=64, page_size=4, context_len=CONTEXT)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def some(new_tokens: int = 16, **options: Any) -> list[Request]:
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True, **options)
    return [Request(f"r{i}", prompt(i, n), params) for i, n in enumerate((3, 40, 150, 200))]


def said(folder: Path, device: str, dtype: str = "auto") -> Run:
    """A run of them, through the door that users take."""
    model = open_model(str(folder), device, dtype)
    run = run_loop("overlap", open_device(device), model, some(), CONFIG)
    assert not run.errors and run.trace.dtype == getattr(model, "dtype", "")
    return run


# -- alone, and all at once: no scheduler, worker or page allocator --------------------------------


def alone_on_torch(model: LlamaTorch, tokens: tuple[int, ...]) -> list[float]:
    """Logits [vocab] after ``tokens``, not compiled: position p has KV slot p + 1, and row 1."""
    count = len(tokens)
    padding = [0] * (-count % ROWS)
    shape = (model.num_layers, count + 1, *model.kv_shape)
    dtype = model.weights.embed.dtype
    table = torch.tensor([0] * count + list(range(1, count + 1)))
    kv = PagedKV(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype), table, count)
    group = Group(0, 1, count, -(-count // BLOCK) * BLOCK)
    ids, positions, rows = [*tokens, *padding], [*range(count), *padding], [1] * count + padding
    inputs = (torch.tensor(values) for values in (ids, positions, rows, [count - 1]))
    last: list[float] = llama_step(model.weights, kv, [group], *inputs)[0].tolist()
    return last


def alone_on_mlx(model: MlxLm, tokens: tuple[int, ...]) -> list[float]:
    count, alone = len(tokens), model.first_layers(model.num_layers)  # with memory of its own
    device: Any = None
    alone.allocate(device, count + 1, count)
    batch: Any = SimpleNamespace(
        rows=[1], prefix_lens=[0], extend_lens=[count], positions=mx.arange(count),
        logit_lens=[1], logits_at=mx.array([count - 1]),
    )  # fmt: skip
    table = mx.array([0] * count + list(range(1, count + 1)))
    last: list[float] = alone.forward(batch, mx.array(tokens), table)[0].tolist()
    return last


class Keeps:
    """A model that keeps the logits of every row of every step, and knows what they should be."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.kept: list[tuple[str, int, Any]] = []  # request id, tokens seen, logits [vocab]
        alone: Any = alone_on_mlx if isinstance(self, MlxLm) else alone_on_torch
        self.logits_after = lru_cache(4000)(lambda tokens: alone(self, tokens))

    def sample(self, logits: Any, batch: Any) -> Any:
        rows = zip(batch.rids, batch.prefix_lens, batch.extend_lens, strict=True)
        for row, (rid, start, length) in enumerate(rows):
            self.kept.append((rid, start + length, logits[row] + 0))
        return super().sample(logits, batch)  # type: ignore[misc]


@pytest.fixture(scope="module")
def subjects(kinds: dict[str, Path]) -> Callable[..., Any]:
    bases = {"thread": LlamaTorch, "mlx": MlxLm}
    classes: Any = {device: type(device, (Keeps, base), {}) for device, base in bases.items()}
    opened = {"thread": classes["thread"], "mlx": classes["mlx"].from_directory}
    return cache(lambda device, kind, *how: opened[device](kinds[kind], *how))


def play_exact(workload: Workload, device: str, model: Any, *how: Any) -> int:
    model.kept.clear()
    engine, outputs = play(workload, *how, open_device(device), model)
    for req in workload.requests:
        assert not list(bad_end(req, [output for output in outputs if output.rid == req.rid]))
        assert req.output_ids  # a request that fails has none
    self_check(engine.scheduler.leases)
    requests = {req.rid: req for req in workload.requests}
    for req in workload.requests:
        tokens = list(req.prompt)
        for token in req.output_ids:
            logits = model.logits_after(tuple(tokens))
            assert token == sampling.choose(logits, req.params, req.sampling_key, len(tokens))
            tokens.append(token)
    seen = 0
    for rid, length, logits in model.kept:
        tokens = [*requests[rid].prompt, *requests[rid].output_ids]
        if length < len(tokens):  # a wasted row computes on a token that was never delivered
            assert logits.tolist() == model.logits_after(tuple(tokens[:length]))
            seen += 1
    return seen


LONG = Scale(
    themes=("any",),
    letters=Letters(512, PLAIN.stops, PLAIN.eos),
    wishes=("none",),
    num_requests=range(1, 6),
    beginnings=((), (), range(40)),
    prompt_lens=(*range(1, 9), *range(55, 76, 3), *range(120, 401, 40)),
    page_sizes=(1, 4, 16),
    chunks=(7, 33, 100),
    max_prefill_tokens=(16384,),
    spare_pages=range(41),
    search_share=0,
    context_len=CONTEXT,
)
"""Windows of several widths meet in a batch."""
ON_MLX = replace(LONG, prompt_lens=(*range(1, 9), *range(25, 41, 2), *range(60, 91, 4)))


def long_workloads(device: str = "thread") -> st.SearchStrategy[Workload]:
    """Prompts of up to 440 tokens (130 on MLX); only short ones have chunks of a page."""
    long = {"thread": LONG, "mlx": ON_MLX}[device]
    short = replace(long, prompt_lens=long.prompt_lens[:-8], num_requests=(1, 2), chunks=(1,))
    scales = (long, long, long, short)
    return st.one_of(*(workloads(5, False, "wishes", scale) for scale in scales))


def any_loop(data: st.DataObject, device: str) -> tuple[str, str, dict[str, Any]]:
    loops = [item for item in SOME_LOOP_OPTIONS if runs_on(item[0], device)]
    return data.draw(st.sampled_from(loops))


@pytest.mark.parametrize(("device", "kind"), EXACT)
@given(data=st.data())
@settings(max_examples=many(3, 9))
def test_a_llama_is_exact_to_the_bit(
    kind: str, device: str, data: st.DataObject, subjects: Callable[..., Any]
) -> None:
    dtypes = [*DTYPES] if device == "thread" else ["float32", "bfloat16"]
    model = subjects(device, kind, data.draw(st.sampled_from(dtypes)))
    workload = data.draw(long_workloads(device))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "scripted", data.draw(st.booleans()), raising=False)
        if data.draw(st.booleans()):
            each = data.draw(st.sampled_from([1, 2_000, 20_000, 1 << 22, None]))  # bytes a position
            patch.setattr("minisched.models.llama_torch.bytes_each", lambda keys: each)
        seen = play_exact(workload, device, model, *any_loop(data, device))
    assert seen >= sum(len(req.output_ids) for req in workload.requests)


@pytest.mark.parametrize("matrices", [1, 2])
def test_a_row_of_a_product_does_not_depend_on_the_number_of_rows(matrices: int) -> None:
    """oneDNN's bfloat16 kernel for a single matrix adds in another order, for a few rows."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(many(10, 40)):
        a = torch.randn(matrices, 440, 64, generator=draw).softmax(-1).bfloat16()
        b = torch.randn(matrices, 64, 16, generator=draw).bfloat16()
        whole, parts = multiply(a, b), [multiply(part, b) for part in a.split(ROWS, 1)]
        assert torch.equal(whole, torch.cat(parts, 1))


@ON_BOTH
@given(data=st.data())
@settings(max_examples=many(3, 15))
def test_log_probabilities_are_the_same_bits(
    device: str, data: st.DataObject, subjects: Callable[..., Any]
) -> None:
    workload, model = data.draw(long_workloads(device)), subjects(device, "llama", "float32")
    for req in workload.requests:
        wishes = {"return_logprob": True, "top_logprobs_num": data.draw(st.integers(0, 2))}
        start = data.draw(st.integers(-1, len(req.prompt) - 1))
        req.params = replace(req.params, **wishes, logprob_start_len=start)
    play(workload, *any_loop(data, device), open_device(device), model)
    alone_at = dict(disable_radix_cache=True, chunked_prefill_size=-1, max_running_requests=1)
    config = SchedulerConfig(**alone_at, context_len=CONTEXT)  # type: ignore[arg-type]
    alone = [Request(req.rid, req.prompt, req.params) for req in workload.requests]
    run_loop("serial", open_device(device), model, alone, config)
    for req, truth in zip(workload.requests, alone, strict=True):
        assert req.output_ids == truth.output_ids and logprobs_of(req) == logprobs_of(truth)


# -- beside other libraries ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", every(3, (*LLAMAS, *OTHERS)))
def test_both_libraries_say_the_same_in_float32(kind: str, kinds: dict[str, Path]) -> None:
    one, two = (said(kinds[kind], device, "float32").outputs for device in DEVICES)
    assert one == two
    assert min(len(set(tokens)) for tokens in one.values()) > 4  # else few laws here could fail


@pytest.mark.parametrize("kind", [
    "llama", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in [*LLAMAS][1:])
])  # fmt: skip
def test_torch_computes_what_transformers_computes(kind: str, kinds: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM  # which takes seconds

    theirs: Any = AutoModelForCausalLM.from_pretrained(kinds[kind], dtype=torch.float32)
    assert type(theirs).__name__ == "LlamaForCausalLM"
    truth = {
        req.rid: theirs.generate(
            torch.tensor([req.prompt]), attention_mask=torch.ones(1, len(req.prompt)).long(),
            do_sample=False, max_new_tokens=16, pad_token_id=0, eos_token_id=None,
        )[0, len(req.prompt) :].tolist()
        for req in some()
    }  # fmt: skip
    assert said(kinds[kind], "thread").outputs == truth
    ours, tokens = LlamaTorch(kinds[kind], "float64"), tuple(prompt(1, 200))
    with torch.no_grad():
        logits = theirs.double()(torch.tensor([tokens])).logits[0]
    for count in (1, 2, 63, 64, 65, 200):
        difference = torch.tensor(alone_on_torch(ours, tokens[:count])) - logits[count - 1]
        assert difference.abs().max() < 1e-4  # theirs computes norms in 32 bits, whatever the dtype


# -- the dtype -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
def test_auto_means_the_same_on_every_device(
    stored: str, kinds: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / stored
    shutil.copytree(kinds["llama"], folder)
    tensors = load_file(folder / "model.safetensors")
    of_dtype = {name: value.to(getattr(torch, stored)) for name, value in tensors.items()}
    save_file(of_dtype, folder / "model.safetensors")  # config.json says what it said
    computed = "bfloat16" if stored == "bfloat16" else "float32"
    for device in DEVICES:
        model: Any = open_model(str(folder), device)
        run = run_loop("serial", open_device(device), model, some(2), CONFIG)
        kept = model.keys if device == "thread" else model.caches[0].pools[0]
        if device == "thread":
            dtypes = [model.weights.embed.dtype, model.weights.final_norm.dtype, kept.dtype]
        else:
            weights = tree_flatten(model.model[model.body].body.parameters())
            dtypes = [kept.dtype, *(weight.dtype for _, weight in weights)]
        assert [str(dtype).split(".")[-1] for dtype in dtypes] == [computed] * len(dtypes)
        assert (model.dtype, run.trace.dtype) == (computed, computed)


def test_a_dtype_that_a_device_can_not_do_is_refused(kinds: dict[str, Path]) -> None:
    for device, dtype in (("thread", "float16"), ("thread", ""), ("mlx", "float64")):
        with pytest.raises(ValueError, match=f"^dtype is '{dtype}', but with .* one of auto"):
            open_model(str(kinds["llama"]), device, dtype)
    with pytest.raises(ValueError, match=r"^dtype is 'float32', but model 'hash' computes"):
        open_model("hash", "sim", "float32")


# -- what is quicker changes no bit ----------------------------------------------------------------


def test_silu_does_not_depend_on_threads() -> None:
    for threads, width in product((1, 3, 5, 7), (96, 1376)):
        x = torch.randn(132, 2 * width, generator=torch.Generator().manual_seed(0))
        gate = x.chunk(2, -1)[0]
        alone = torch.cat([silu(gate[at : at + ROWS]) for at in range(0, 132, ROWS)])
        torch.set_num_threads(threads)
        together = silu(gate)
        torch.set_num_threads(1)
        assert torch.equal(together, alone)
