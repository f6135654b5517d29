"""Steps for drafters, laid out by hand: no scheduler, no worker, no target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random

from minisched.core import (
    ForwardMode,
    Lease,
    Request,
    SamplingParams,
    ScheduleBatch,
    get_model_worker_batch,
)
from minisched.devices.base import Device
from minisched.devices.registry import open_device
from minisched.models.base import Model
from minisched.models.forward_batch import ForwardBatch, make_forward_batch
from minisched.speculative.base import Drafter
from tests.support import VOCAB

MAX_LEN = 40
NUM_ROWS = 3


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
