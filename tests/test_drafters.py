"""Drafters: logits at several places of a row, prompt lookup, and draft models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.tokens.oracle import hash_logits
from minisched.core import Request, SamplingParams
from minisched.devices.registry import load, open_device
from minisched.devices.vector import Vector
from minisched.loops.run import run_loop
from minisched.models.base import Model
from minisched.models.hash import HashModel
from minisched.models.mix import P
from minisched.models.registry import open_model
from minisched.models.tiny import write_tiny_llama
from minisched.scheduler import SchedulerConfig
from minisched.speculative.draft_model import DraftModel
from minisched.speculative.hash_draft import open_hash_draft
from minisched.speculative.lookup_drafter import LookupDrafter
from minisched.speculative.prompt_lookup import lookup, propose
from minisched.speculative.registry import LOOKUPS, check_fits, open_draft_model
from tests.drafter_runs import NUM_ROWS, Play, Rows, alone, known, opened
from tests.support import EVERY_BACKEND, VOCAB, hash_model

TOKENS = range(VOCAB)

# -- logits at several places of a row ---------------------------------------------------------


def prefilled(rows: Rows, model: Model, rnd: Random, tokens: Sequence[int]) -> list[Request]:
    """Requests in every row, their prompts computed and a token of each known that is not."""
    model.allocate(rows.device, rows.num_slots, rows.max_len)
    for row in range(1, NUM_ROWS + 1):
        rows.admit(
            row, [rnd.choice(tokens) for _ in range(rnd.choice([1, 2, 5, 9, rows.max_len // 2]))]
        )
    reqs = list(rows.live.values())
    batch, inputs = rows.step([(req, len(req.prompt)) for req in reqs], [])
    model.forward(inputs, inputs.ids, rows.page_table)
    rows.settle(batch, [rnd.choice(tokens) for _ in reqs], [1] * len(reqs))
    return reqs


def several_at_once(rows: Rows, model: Model, rnd: Random, tokens: Sequence[int]) -> Any:
    """One step with drafts gives the same logits, to the bit, as a step for each token.

    Gives the texts after which they were computed, and the logits.
    """
    reqs = prefilled(rows, model, rnd, tokens)
    count = rnd.choice([0, 1, 3, None])  # None: the rows differ, so that they form several groups
    drafts = [
        [rnd.choice(tokens) for _ in range(rnd.randint(0, 4) if count is None else count)]
        for _ in reqs
    ]
    _, inputs = rows.step([], list(zip(reqs, drafts, strict=True)))
    at_once = numbers(model.forward(inputs, inputs.ids, rows.page_table))
    one_by_one: list[list[float]] = []
    texts: list[list[int]] = []
    for req, ahead in zip(reqs, drafts, strict=True):
        for token in [*ahead, 0]:
            _, inputs = rows.step([], [(req, [])])
            one_by_one += numbers(model.forward(inputs, inputs.ids, rows.page_table))
            texts.append(known(req))
            req.computed_len += 1
            req.append_host(token)
    assert at_once == one_by_one
    return texts, at_once


def numbers(logits: Any) -> list[list[float]]:
    """Logits as lists."""
    return [row if isinstance(row, list) else row.tolist() for row in logits]


def hashes(logits: list[list[float]]) -> list[list[int]]:
    """The integers that the exact model's logits are made of."""
    return [[round(value * P / 10) for value in row] for row in logits]


@EVERY_BACKEND
@given(rnd=st.randoms(use_true_random=False), page_size=st.sampled_from([1, 3]))
@settings(max_examples=25, deadline=None)
def test_the_exact_model_has_logits_wherever_they_are_wanted(
    backend: str, rnd: Random, page_size: int
) -> None:
    with opened(backend) as device:
        model = hash_model(backend, frozenset())
        texts, logits = several_at_once(Rows(device, model.pad_to, page_size), model, rnd, TOKENS)
        assert hashes(logits) == hashes([hash_logits(text, VOCAB) for text in texts])


@pytest.fixture(scope="module", params=["llama", "biases", "qwen3 biases"])
def llama_folder(request: pytest.FixtureRequest, kinds: dict[str, Path]) -> Path:
    """A tiny Llama, also one that has biases, and one that normalizes queries and keys."""
    return kinds[request.param]


@pytest.fixture(scope="module", params=["thread", "mlx"])
def llama(request: pytest.FixtureRequest, llama_folder: Path) -> tuple[str, Any]:
    """A backend, and a tiny Llama on it."""
    return request.param, open_model(str(llama_folder), request.param)


@given(rnd=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_llama_has_the_same_bits_wherever_they_are_wanted(
    llama: tuple[str, Any], rnd: Random
) -> None:
    backend, model = llama
    with opened(backend) as device:
        rows = Rows(device, model.pad_to, max_len=rnd.choice([40, 90, 150]))
        several_at_once(rows, model, rnd, range(512))


@pytest.mark.weights
@pytest.mark.parametrize("backend", ["thread", "mlx"])
def test_a_real_model_has_the_same_bits_wherever_they_are_wanted(
    backend: str, smollm2: Path
) -> None:
    model: Any = open_model(str(smollm2), backend)
    with opened(backend) as device:
        for seed in range(2):
            rows = Rows(device, model.pad_to)
            several_at_once(rows, model, Random(seed), range(model.vocab_size))


# -- prompt lookup -----------------------------------------------------------------------------

histories = st.integers(1, 3).flatmap(  # letters in the alphabet
    lambda letters: st.lists(st.integers(0, letters - 1), min_size=1, max_size=24)
)
sizes = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda n: (n[0], n[0] + n[1]))


@given(history=histories, count=st.integers(1, 6), ns=sizes)
@settings(max_examples=500)
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
@settings(max_examples=300, deadline=None)
def test_the_device_looks_up_what_the_host_does(
    backend: str, rows: list[list[int]], count: int, ns: tuple[int, int]
) -> None:
    module, extra = LOOKUPS[backend]
    on_device: Any = load(module, "lookup", extra, "a test")
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


# -- drafters over steps -----------------------------------------------------------------------


@EVERY_BACKEND
@given(
    rnd=st.randoms(use_true_random=False),
    page_size=st.sampled_from([1, 1, 3]),
    k=st.integers(1, 4),
    agree=st.sampled_from([0, 4, 7, 10]),
)
@settings(max_examples=60, deadline=None)
def test_drafts_are_what_the_draft_model_says_of_the_settled_tokens_alone(
    backend: str, rnd: Random, page_size: int, k: int, agree: int
) -> None:
    """Hence never of what was rejected, nor of anybody else's memory."""
    target = HashModel(VOCAB)
    with opened(backend) as device, opened("sim") as sim:
        drafter = DraftModel(open_hash_draft(backend, target, agree), k)
        oracle = alone(open_hash_draft("sim", target, agree), sim)
        play = Play(drafter, oracle, Rows(device, 1, page_size, max_len=24), rnd, VOCAB)
        for _ in range(20):
            play.turn()


@pytest.fixture(scope="module", params=["thread", "mlx"])
def short_llama(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any]:
    """A backend, and a tiny Llama that knows of 24 positions only."""
    directory = write_tiny_llama(tmp_path_factory.mktemp("short_llama"), vocab=VOCAB, context=24)
    return request.param, open_model(str(directory), request.param)


@given(rnd=st.randoms(use_true_random=False), k=st.integers(1, 3), layers=st.integers(1, 2))
@settings(max_examples=25, deadline=None)
def test_a_llama_drafts_from_the_settled_tokens_alone(
    short_llama: tuple[str, Any], rnd: Random, k: int, layers: int
) -> None:
    """Up to the end of its context, and not a position further."""
    backend, model = short_llama
    with opened(backend) as device:
        drafter = DraftModel(model.first_layers(layers), k)
        oracle = alone(model.first_layers(layers), device)
        rows = Rows(device, model.pad_to, max_len=27)
        play = Play(drafter, oracle, rows, rnd, VOCAB, context_len=24)
        for _ in range(20):
            play.turn()


@EVERY_BACKEND
@given(
    rnd=st.randoms(use_true_random=False),
    page_size=st.sampled_from([1, 3]),
    k=st.integers(1, 4),
    ns=sizes,
    letters=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_a_lookup_reads_the_settled_tokens_alone(
    backend: str, rnd: Random, page_size: int, k: int, ns: tuple[int, int], letters: int
) -> None:
    def oracle(text: list[int], count: int) -> list[int]:
        return propose(text, count, *ns) or [text[-1]] * count

    module, extra = LOOKUPS[backend]
    on_device: Any = load(module, "lookup", extra, "a test")
    with opened(backend) as device:
        drafter = LookupDrafter(on_device, k, *ns)
        play = Play(drafter, oracle, Rows(device, 1, page_size, max_len=24), rnd, letters)
        for _ in range(20):
            play.turn()


# -- draft models ------------------------------------------------------------------------------


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
    llama: tuple[str, Any], llama_folder: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    backend, model = llama
    tensors = load_file(llama_folder / "model.safetensors")
    fewer = {name: value for name, value in tensors.items() if "layers.1." not in name}
    assert len(fewer) < len(tensors)
    save_file(fewer, tmp_path / "model.safetensors", metadata={"format": "pt"})
    sizes = json.loads((llama_folder / "config.json").read_text()) | {"num_hidden_layers": 1}
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
    "hash:11": "a hash draft model agrees on 11 of 10 tokens; it must be 0 to 10.",
    "hash:most": "the draft model is 'hash:most', but 'most' is no whole number.",
    "first_layers:2": "the draft model is 'first_layers:2', but hash can't be cut in two.",
    "nowhere": "model 'nowhere' can't run on device 'sim'",
}


@pytest.mark.parametrize("path", REFUSED)
def test_a_draft_model_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(REFUSED[path])):
        open_draft_model(path, "sim", HashModel())


@pytest.mark.parametrize("backend", ["thread", "mlx"])
def test_a_draft_model_computes_in_its_targets_dtype(backend: str, kinds: dict[str, Path]) -> None:
    target = open_model(str(kinds["llama"]), backend, "bfloat16")
    assert open_draft_model(str(kinds["qwen3"]), backend, target).dtype == "bfloat16"


def test_the_first_layers_are_at_most_all(llama: tuple[str, Any]) -> None:
    for path in ("first_layers:0", "first_layers:3", "first_layers:", "first_layers:-1"):
        with pytest.raises(ValueError, match=f"^the draft model is '{path}', .* layers 1 to 2"):
            open_draft_model(path, llama[0], llama[1])


def test_a_draft_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="of 19 tokens and the target hash one of 257; they must"):
        check_fits(HashModel(19), HashModel(257), 100)
    with pytest.raises(ValueError, match="has a context of 100 tokens, but steps reach 101"):
        check_fits(HashModel(context_len=100), HashModel(), 101)
    check_fits(HashModel(context_len=100), HashModel(), 100)


def test_a_draft_model_with_another_vocabulary_is_refused_when_it_is_wired(
    llama: tuple[str, Any],
) -> None:
    backend, model = llama
    config = SchedulerConfig(
        speculative_algorithm="STANDALONE", speculative_draft_model_path="hash", context_len=100
    )
    with pytest.raises(ValueError, match="the draft model hash has a vocabulary of 257 tokens"):
        run_loop("serial", open_device(backend), model, [Request("r", [1])], config)
