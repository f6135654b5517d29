"""Drafters: logits at several places of a row, prompt lookup, and draft models, which say the same
whatever was rejected before, and whoever has the row next. No scheduler, no worker, no target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.tokens.oracle import hash_logits
from minisched.core import (
    ForwardMode,
    Lease,
    Request,
    SamplingParams,
    ScheduleBatch,
    get_model_worker_batch,
)
from minisched.devices.base import Device
from minisched.devices.registry import load, open_device
from minisched.devices.vector import Vector
from minisched.loops.run import run_loop
from minisched.models.base import Model
from minisched.models.forward_batch import ForwardBatch, make_forward_batch
from minisched.models.hash import HashModel
from minisched.models.mix import P
from minisched.models.registry import open_model
from minisched.models.tiny import write_tiny_llama
from minisched.scheduler import SchedulerConfig
from minisched.speculative.base import Drafter
from minisched.speculative.draft_model import DraftModel
from minisched.speculative.hash_draft import open_hash_draft
from minisched.speculative.lookup_drafter import LookupDrafter
from minisched.speculative.prompt_lookup import lookup, propose
from minisched.speculative.registry import LOOKUPS, check_fits, open_draft_model
from tests.support import EVERY_BACKEND, VOCAB, hash_model, many

MAX_LEN = 40
NUM_ROWS = 3

# -- steps laid out by hand ------------------------------------------------------------------------


@contextmanager
def opened(backend: str) -> Iterator[Device]:
    device = open_device(backend)
    try:
        yield device
    finally:
        device.close()


class Rows:
    """Requests with pages, and steps over them, as scheduler and worker would lay them out."""

    def __init__(self, device: Device, pad_to: int, page_size: int = 1, max_len: int = MAX_LEN):
        self.device, self.pad_to, self.page_size, self.max_len = device, pad_to, page_size, max_len
        self.page_table = device.memory("page table", (NUM_ROWS + 1) * max_len)
        self.free = list(range(1, 12 * NUM_ROWS * max_len // page_size))  # page 0 is nobody's
        self.num_slots = (len(self.free) + 1) * page_size
        Random(0).shuffle(self.free)
        self.live: dict[int, Request] = {}

    def admit(self, row: int, prompt: list[int], shared: Sequence[int] = ()) -> Request:
        """A request in ``row``; the KV of its first tokens lies in ``shared`` pages already."""
        req = Request(f"r{row}", prompt, SamplingParams(max_new_tokens=self.max_len))
        req.start(Lease(row, pages=list(shared), settled_len=len(shared) * self.page_size))
        self.live[row] = req
        return req

    def step(
        self, prompts: list[tuple[Request, int]], verifies: list[tuple[Request, list[int]]]
    ) -> tuple[ScheduleBatch, ForwardBatch]:
        """Chunks of so many positions, and last tokens with drafts behind them."""
        mode = ForwardMode.EXTEND if prompts else ForwardMode.TARGET_VERIFY
        batch = ScheduleBatch(1, mode, len(prompts))
        for req, length in prompts:
            end = req.computed_len + length
            self._add(batch, req, req.tokens(req.computed_len, end), end == req.known_len)
        for req, drafts in verifies:
            self._add(batch, req, (req.tokens(req.computed_len, req.known_len)[0], *drafts), True)
        ids = [token for row in batch.ids for token in row if token is not None]
        dests = [lease.row for lease in batch.leases]
        flat = get_model_worker_batch(batch, ids, dests, self.max_len, self.page_size)
        inputs = make_forward_batch(flat, self.device.xp, self.pad_to)
        if len(inputs.table_index):
            self.page_table[inputs.table_index] = inputs.table_slots
        return batch, inputs

    def _add(
        self, batch: ScheduleBatch, req: Request, ids: tuple[int | None, ...], deliver: bool
    ) -> None:
        lease = req.lease
        assert lease is not None
        short = -(-(req.computed_len + len(ids)) // self.page_size) - len(lease.pages)
        lease.pages += [self.free.pop() for _ in range(short)]
        if lease.sent_pages < len(lease.pages):
            at = lease.sent_pages
            batch.new_pages[len(batch.reqs)] = (at, lease.pages[at:])
            lease.sent_pages = len(lease.pages)
        batch.reqs.append(req)
        batch.leases.append(lease)
        batch.starts.append(req.computed_len)
        batch.ids.append(ids)
        batch.delivers.append(deliver)

    def settle(self, batch: ScheduleBatch, tokens: list[int], accepted: list[int]) -> None:
        """A step has come back: of each row's tokens the first ``accepted`` count."""
        at = 0
        for row, count, samples in zip(batch.rows, accepted, batch.sample_lens, strict=True):
            req, is_prompt = row.req, row.start < len(row.req.prompt)
            req.computed_len += len(row.ids) if is_prompt else count
            for token in tokens[at : at + count] if row.deliver else []:
                req.append_host(token)
            at += samples


def known(req: Request) -> list[int]:
    """All tokens that a request has."""
    return list(req.known_tokens(0, req.known_len))


Oracle = Callable[[list[int], int], list[int]]


class Play:
    """Steps as a scheduler might make them, with tokens and verdicts that are merely random.

    A drafter knows nothing of the target; it is told what was chosen and how much of it counts.
    So any story will do: chunks beside rows that verify, rows that are left out, prefixes that
    other requests have computed, rows that get another request.
    """

    def __init__(
        self,
        drafter: Drafter,
        oracle: Oracle,
        rows: Rows,
        rnd: Random,
        letters: int,
        context_len: int | None = None,
    ) -> None:
        self.drafter, self.oracle, self.rows, self.rnd = drafter, oracle, rows, rnd
        self.letters = letters
        self.context_len = context_len or rows.max_len
        self.cached: list[tuple[list[int], list[int]]] = []  # tokens and their pages
        drafter.allocate(rows.device, rows.num_slots, NUM_ROWS, rows.max_len)

    def text(self, length: int) -> list[int]:
        return [self.rnd.randrange(self.letters) for _ in range(length)]

    def turn(self) -> None:
        """One step, and its drafts checked."""
        prompts: list[tuple[Request, int]] = []
        verifies: list[tuple[Request, list[int]]] = []
        for row in range(1, NUM_ROWS + 1):
            req = self.rows.live.get(row) or self.admit(row)
            left = len(req.prompt) - req.computed_len
            room = self.context_len - 1 - req.known_len
            if self.rnd.random() < 0.2:
                continue
            if left > 0:
                prompts.append((req, self.rnd.randint(1, left)))
            elif room < 0 or self.rnd.random() < 0.15:
                self.close(row)
            else:
                most = min(room, self.drafter.num_draft_tokens)
                verifies.append((req, self.text(self.rnd.randint(0, most))))
        if prompts or verifies:
            self.step(prompts, verifies)

    def step(
        self, prompts: list[tuple[Request, int]], verifies: list[tuple[Request, list[int]]]
    ) -> None:
        drafter, rows, k = self.drafter, self.rows, self.drafter.num_draft_tokens
        batch, inputs = rows.step(prompts, verifies)
        tokens = self.text(batch.num_samples)
        accepted = [self.rnd.randint(1, count) for count in batch.sample_lens]
        xp = rows.device.xp
        drafts = drafter.draft(
            inputs, drafter.bind(batch, xp), xp.asarray(tokens), xp.asarray(accepted),
            rows.page_table,
        ).tolist()  # fmt: skip
        rows.settle(batch, tokens, accepted)
        assert len(drafts) == k * len(batch.reqs)
        assert all(0 <= token < VOCAB for token in drafts)
        for at, row in enumerate(batch.rows):
            if row.deliver:
                text = known(row.req)
                used = min(k, self.context_len + 1 - len(text))  # the others have no place to go
                mine = drafts[at * k : at * k + used]
                assert mine == self.oracle(text, used), (text, row)

    def admit(self, row: int) -> Request:
        """A new request, perhaps behind a prefix that somebody else has computed."""
        tokens, pages = self.rnd.choice([([], []), *self.cached])
        size, room = self.rows.page_size, self.context_len - 1
        shared = self.rnd.randint(0, min(len(pages), (room - 1) // size))
        prefix = tokens[: shared * size]
        most = min(8, room - len(prefix))
        return self.rows.admit(row, prefix + self.text(self.rnd.randint(1, most)), pages[:shared])

    def close(self, row: int) -> None:
        """A request ends; what it has computed may be shared from now on."""
        req = self.rows.live.pop(row)
        assert req.lease is not None
        settled = (req.known_len - 1) // self.rows.page_size
        self.cached.append((known(req), req.lease.pages[:settled]))


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
def test_the_exact_model_has_logits_wherever_they_are_wanted(
    backend: str, rnd: Random, page_size: int
) -> None:
    with opened(backend) as device:
        model = hash_model(backend, frozenset())
        texts, logits = several_at_once(
            Rows(device, model.pad_to, page_size), model, rnd, range(VOCAB)
        )
        assert hashes(logits) == hashes([hash_logits(text, VOCAB) for text in texts])


@pytest.fixture(scope="module", params=["thread", "mlx"])
def llama(request: pytest.FixtureRequest, kinds: dict[str, Path]) -> tuple[str, Any]:
    """A backend, and a tiny Llama on it that normalizes queries and keys and has biases."""
    return request.param, open_model(str(kinds["qwen3 biases"]), request.param)


@given(rnd=st.randoms(use_true_random=False))
@settings(max_examples=many(6, 60))
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
@settings(max_examples=many(8, 60))
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
@settings(max_examples=many(4, 25))
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
@settings(max_examples=many(8, 60))
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
