"""Drafters: logits at several places of a row, prompt lookup, and draft models.

No scheduler and no worker: ``Rows`` lays steps out by hand, with memory for what a row computes
and not one slot more, so that whoever writes past its end is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Lease, Request, SamplingParams, ScheduleBatch
from minisched.core import get_model_worker_batch
from minisched.devices.base import Device
from minisched.devices.vector import Vector
from minisched.models.base import Model
from minisched.models.forward_batch import ForwardBatch, make_forward_batch
from minisched.models.hash import HashModel
from minisched.models.mix import P
from minisched.models.registry import LLAMA, load, open_model
from minisched.scheduler import SchedulerConfig
from minisched.speculative.base import Drafter
from minisched.speculative.draft_model import DraftModel
from minisched.speculative.hash_draft import open_hash_draft
from minisched.speculative.lookup_drafter import LookupDrafter
from minisched.speculative.prompt_lookup import follow, lookup, propose
from minisched.speculative.registry import LOOKUPS, make_drafter, open_draft_model

from .backends import BACKENDS, EVERY_BACKEND, hash_model, open_device
from .oracle import hash_logits
from .workloads import VOCAB

MAX_LEN = 40
NUM_ROWS = 3
TOKENS = range(VOCAB)


@contextmanager
def opened(backend: str) -> Iterator[Device]:
    """A device, closed again."""
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
        req.start(Lease(row, list(shared), settled_len=len(shared) * self.page_size))
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


# -- logits at several places of a row ---------------------------------------------------------


def prefilled(rows: Rows, model: Model, rnd: Random, tokens: Sequence[int]) -> list[Request]:
    """Requests in every row, their prompts computed and a token of each known that is not."""
    model.allocate(rows.device, rows.num_slots, rows.max_len)
    for row in range(1, NUM_ROWS + 1):
        rows.admit(row, [rnd.choice(tokens) for _ in range(rnd.choice([1, 2, 5, 9, 30]))])
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


@pytest.fixture(scope="module", params=["thread", "mlx"])
def llama(request: pytest.FixtureRequest, tiny_llama: Path) -> tuple[str, Any]:
    """A backend, and the tiny Llama on it."""
    return request.param, open_model(str(tiny_llama), request.param)


@given(rnd=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_llama_has_the_same_bits_wherever_they_are_wanted(
    llama: tuple[str, Any], rnd: Random
) -> None:
    backend, model = llama
    with opened(backend) as device:
        rows = Rows(device, model.pad_to, max_len=rnd.choice([40, 90, 150]))
        several_at_once(rows, model, rnd, range(512))
