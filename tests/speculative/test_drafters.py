"""Drafters: prompt lookup and draft models, which say the same whatever was rejected before, and
whoever had the row before; and what their targets are to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.judge import judge
from minisched.checks.many import case_of
from minisched.checks.tokens.oracle import hash_logits
from minisched.core import (
    ForwardMode,
    Lease,
    Request,
    Result,
    SamplingParams,
    ScheduleBatch,
    get_model_worker_batch,
)
from minisched.devices.base import Device
from minisched.devices.registry import library, load, open_device
from minisched.devices.vector import Vector
from minisched.engine.engine import Engine
from minisched.loops.run import run_loop
from minisched.models.base import Model
from minisched.models.forward_batch import make_forward_batch
from minisched.models.hash import HashModel
from minisched.models.registry import open_model
from minisched.scheduler import SchedulerConfig
from minisched.speculative.hash_draft import open_hash_draft
from minisched.speculative.prompt_lookup import lookup, propose
from minisched.speculative.registry import (
    LOOKUPS,
    MAX_N,
    MIN_N,
    check_fits,
    open_draft_model,
)
from tests.support import EVERY_BACKEND, Workload, check_ends, check_leaks, many, play

Oracle = Callable[[list[int], int], list[int]]


@contextmanager
def opened(backend: str) -> Iterator[Device]:
    device = open_device(backend)
    try:
        yield device
    finally:
        device.close()


def alone(model: Model, device: Device) -> Oracle:
    """What a model says greedily after a text: all of it at once, in memory of its own."""
    num_slots = 80
    model.allocate(device, num_slots, num_slots)
    page_table = device.memory("page table", 2 * num_slots)
    page_table[device.xp.asarray(range(num_slots, 2 * num_slots))] = device.xp.asarray(
        range(num_slots)
    )

    @cache
    def next_token(text: tuple[int, ...]) -> int:
        batch = ScheduleBatch(1, ForwardMode.EXTEND, 1)
        batch.reqs, batch.leases = [Request("alone", text)], [Lease(1)]
        batch.starts, batch.ids, batch.delivers = [0], [text], [True]
        flat = get_model_worker_batch(batch, list(text), [1], num_slots, 1)
        inputs = make_forward_batch(flat, device.xp, model.pad_to)
        token: int = model.sample(model.forward(inputs, inputs.ids, page_table), inputs).tolist()[0]
        return token

    def drafts(text: list[int], count: int) -> list[int]:
        tokens = list(text)
        for _ in range(count):
            tokens.append(next_token(tuple(tokens)))
        return tokens[len(text) :]

    return drafts


# -- prompt lookup ---------------------------------------------------------------------------------

histories = st.integers(1, 3).flatmap(  # letters in the alphabet
    lambda letters: st.lists(st.integers(0, letters - 1), min_size=1, max_size=24)
)
sizes = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda n: (n[0], n[0] + n[1]))


@given(history=histories, count=st.integers(1, 6), ns=sizes)
def test_a_lookup_finds_the_longest_suffix_and_its_latest_occurrence(
    history: list[int], count: int, ns: tuple[int, int]
) -> None:
    length = len(history)
    occurrences = [
        (n, start)
        for n in range(ns[0], ns[1] + 1)
        for start in range(length - n)
        if history[start : start + n] == history[length - n :]
    ]
    text = list(history)
    if occurrences:
        n, start = max(occurrences)
        for at in range(start + n, start + n + count):
            text.append(text[at])  # what followed, and then what was drafted
    assert propose(history, count, *ns) == text[length:]
    assert propose(tuple(history), count, *ns) == text[length:]


@pytest.mark.parametrize("backend", ["thread", "mlx"])
@given(rows=st.lists(histories, min_size=1, max_size=5), count=st.integers(1, 6), ns=sizes)
def test_the_device_looks_up_what_the_host_does(
    backend: str, rows: list[list[int]], count: int, ns: tuple[int, int]
) -> None:
    extra = library(backend)
    on_device: Any = load(LOOKUPS[extra], "lookup", extra, "a test")
    width = 30
    numbers = [row for row in range(len(rows), 0, -1)]
    flat = [7] * width * (len(rows) + 1)  # what lies behind a row's end is no token of it
    for number, tokens in zip(numbers, rows, strict=True):
        flat[number * width : number * width + len(tokens)] = tokens
        flat[number * width + len(tokens) : (number + 1) * width] = tokens[-1:] * (
            width - len(tokens)
        )
    lengths = list(map(len, rows))
    with opened(backend) as device:
        xp = device.xp
        drafts = on_device(
            xp.asarray(flat), width, numbers, xp.asarray(lengths), count, *ns
        ).tolist()
    at_host = [propose(tokens, count, *ns) or [tokens[-1]] * count for tokens in rows]
    assert drafts == [token for row in at_host for token in row]
    assert lookup(Vector(flat), width, numbers, Vector(lengths), count, *ns) == drafts


# -- drafts are of the settled tokens alone --------------------------------------------------------


class Watched:
    """Holds every draft of a run against an oracle: of nothing rejected, and of no other's row."""

    def __init__(self, oracle: Oracle, context_len: int) -> None:
        self.oracle, self.context_len, self.seen = oracle, context_len, 0

    def patch(self, engine: Engine) -> None:
        process, k = engine.scheduler.process, engine.scheduler.config.num_draft_tokens

        def checked(batch: ScheduleBatch, result: Result) -> Any:
            outputs = process(batch, result)
            for at, row in enumerate(batch.rows):
                going = row.req.lease is row.lease and not row.req.finished
                if result.drafts and row.deliver and going:
                    text = list(row.req.known_tokens(0, row.req.known_len))
                    used = min(k, self.context_len + 1 - len(text))  # others have no place to go
                    assert result.drafts[at * k : at * k + used] == self.oracle(text, used), text
                    self.seen += used
            return outputs

        engine.scheduler.process = checked  # type: ignore[method-assign]


@EVERY_BACKEND
@pytest.mark.parametrize(("algorithm", "first"), [("NGRAM_GPU", 5), ("STANDALONE", 7)])
@pytest.mark.parametrize(
    "loop", ["overlap:pool", pytest.param("vllm_async:pool:depth=4", marks=pytest.mark.thorough)]
)
def test_drafts_are_what_a_drafter_says_of_the_settled_tokens_alone(
    backend: str, algorithm: str, first: int, loop: str
) -> None:
    """Over drawn workloads: chunks, cached prefixes, retractions, requests that end."""
    seen = 0
    for seed in range(first, first + 8 * many(3, 60), 8):
        case = case_of(seed, loop, backend)
        config, vocab_size = case.workload.config, case.workload.vocab_size
        assert config.speculative_algorithm == algorithm
        with opened("sim") as sim:
            if algorithm == "STANDALONE":
                agree = int(config.speculative_draft_model_path.partition(":")[2])
                draft = open_hash_draft("sim", HashModel(vocab_size), agree)
                oracle = alone(draft, sim)
            else:
                oracle = looked_up
            watched = Watched(oracle, config.context_len)
            verdict = judge(case, watched.patch)
        assert verdict.holds, (seed, verdict.findings)
        seen += watched.seen
    assert seen > 10


def looked_up(text: list[int], count: int) -> list[int]:
    return propose(text, count, MIN_N, MAX_N) or [text[-1]] * count


@pytest.fixture(scope="module", params=["thread", "mlx"])
def llama(request: pytest.FixtureRequest, kinds: dict[str, Path]) -> tuple[str, Any]:
    """A backend, and a tiny Llama on it that normalizes queries and keys and has biases."""
    return request.param, open_model(str(kinds["qwen3 biases"]), request.param)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_llama_drafts_from_the_settled_tokens_alone_and_verifies_to_the_bit(
    llama: tuple[str, Any], layers: int
) -> None:
    """Logits at several places of a row are those of a step for each token."""
    backend, model = llama
    told = []
    for algorithm in ("", "STANDALONE"):
        params = SamplingParams(
            max_new_tokens=12, ignore_eos=True, return_logprob=True, top_logprobs_num=4
        )
        prompts = [[5, 6, 7], [9] * 11, [5, 6, 7, 1, 2, 3, 4], [3]]
        requests = [Request(f"r{at}", prompt, params) for at, prompt in enumerate(prompts)]
        config = SchedulerConfig(
            kv_tokens=90, page_size=2, chunked_prefill_size=4, context_len=64,
            schedule_conservativeness=0.0, speculative_algorithm=algorithm,
            speculative_num_draft_tokens=3,
            speculative_draft_model_path=f"first_layers:{layers}" if algorithm else "",
        )  # fmt: skip
        workload = Workload(requests, [0, 0, 2, 5], {}, config)
        with opened(backend) as device:
            watched = Watched(alone(model.first_layers(layers), device), 64)
            engine, outputs = play(
                workload, "overlap", "pool", {}, open_device(backend), model, patch=watched.patch
            )
        check_ends(workload, outputs)
        check_leaks(engine)
        assert watched.seen > 20 or not algorithm
        told.append([(req.output_ids, req.output_token_logprobs) for req in requests])
    assert told[0] == told[1]


# -- draft models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("agree", [0, 3, 7, 10])
def test_a_hash_draft_agrees_as_often_as_it_was_told(agree: int) -> None:
    target, rnd, tries = HashModel(257), Random(0), 400
    texts = [[rnd.randrange(257) for _ in range(rnd.randint(1, 20))] for _ in range(tries)]
    with opened("sim") as device:
        draft = alone(open_hash_draft("sim", target, agree), device)
        right = [draft(text, 1)[0] for text in texts]
    chosen = [max(range(257), key=hash_logits(text, 257).__getitem__) for text in texts]
    hits = sum(a == b for a, b in zip(right, chosen, strict=True))
    assert abs(hits / tries - agree / 10) < 0.06, "and one in 257 by chance"
    assert hits == tries or agree < 10


def test_the_first_layers_are_a_model_of_those_layers(
    llama: tuple[str, Any], kinds: dict[str, Path], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = kinds["qwen3 biases"]
    backend, model = llama
    tensors = load_file(folder / "model.safetensors")
    fewer = {name: value for name, value in tensors.items() if "layers.1." not in name}
    assert len(fewer) < len(tensors)
    save_file(fewer, tmp_path / "model.safetensors", metadata={"format": "pt"})
    sizes = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    text = [Random(1).randrange(512) for _ in range(30)]
    with opened(backend) as device:
        whole, first, alike = (
            alone(draft, device)(text, 20)
            for draft in (model, model.first_layers(1), open_model(str(tmp_path), backend))
        )
        assert first == alike != whole
        assert alone(model.first_layers(2), device)(text, 20) == whole


@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_a_llama_that_drafts_for_itself_is_always_right(llama: tuple[str, Any], loop: str) -> None:
    """A prompt gives one token, and every step behind it four."""
    backend, model = llama
    config = SchedulerConfig(
        speculative_algorithm="STANDALONE",
        speculative_num_draft_tokens=3,
        speculative_draft_model_path="first_layers:2",
        context_len=100,
    )
    params = SamplingParams(max_new_tokens=21, ignore_eos=True)
    run = run_loop(loop, open_device(backend), model, [Request("r", [5, 6, 7], params)], config)
    assert not run.errors
    verified = [item for item in run.trace.slices if item.name == "verify"]
    assert len(verified) <= 1 + 5 + (loop == "overlap")


REFUSED = {
    "": "STANDALONE needs a draft model: ",
    "hash:11": "agrees on 11 of 10 tokens; it must be 0 to 10.",
    "hash:most": "'most' is no whole number.",
    "first_layers:2": "hash can't be cut in two.",
    "nowhere": "model 'nowhere' can't run on device 'sim'",
}


@pytest.mark.parametrize("path", REFUSED)
def test_a_draft_model_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[path]):
        open_draft_model(path, "sim", HashModel())


def test_a_draft_model_that_does_not_fit_is_refused(llama: tuple[str, Any]) -> None:
    with pytest.raises(ValueError, match="of 19 tokens and the target hash one of 257; they must"):
        check_fits(HashModel(19), HashModel(257), 100)
    with pytest.raises(ValueError, match="has a context of 100 tokens, but steps reach 101"):
        check_fits(HashModel(context_len=100), HashModel(), 101)
    check_fits(HashModel(context_len=100), HashModel(), 100)
    backend, model = llama
    for path in ("first_layers:0", "first_layers:3", "first_layers:", "first_layers:-1"):
        with pytest.raises(ValueError, match=f"^the draft model is '{path}', .* layers 1 to 2"):
            open_draft_model(path, backend, model)
    config = SchedulerConfig(
        speculative_algorithm="STANDALONE", speculative_draft_model_path="hash", context_len=100
    )
    with pytest.raises(ValueError, match="the draft model hash has a vocabulary of 257 tokens"):
        run_loop("serial", open_device(backend), model, [Request("r", [1])], config)


@pytest.mark.parametrize("backend", ["thread", "mlx"])
def test_a_draft_model_computes_in_its_targets_dtype(backend: str, kinds: dict[str, Path]) -> None:
    target = open_model(str(kinds["llama"]), backend, "bfloat16")
    assert open_draft_model(str(kinds["qwen3"]), backend, target).dtype == "bfloat16"
