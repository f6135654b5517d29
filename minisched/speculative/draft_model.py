"""The drafter of a run (``make_drafter``): for ``STANDALONE`` a second, cheaper model.

``DraftModel`` runs it after each step of the target, on batches derived from that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from ..core import ForwardMode, SamplingParams, ScheduleBatch
from ..devices.base import Array, Buffer, Device
from ..devices.cost import CostModel
from ..devices.registry import library
from ..models.base import ForwardBatch, Model, make_forward_batch, without_marks
from ..models.checkpoint import AUTO
from ..models.hash import HashModel
from ..models.registry import hash_class, open_model
from ..scheduler import SchedulerConfig
from ..scheduler.config import DRAFT_MODELS
from ..trace import Touch
from .lookup import LookupDrafter, Reach

USUAL_AGREE = 7  # of 10 tokens that a hash draft model guesses right, if its name has no number


class DraftModel:
    """``STANDALONE`` (SGLang ``speculative/standalone_worker.py``, vLLM ``draft_model.py``).

    It has KV memory of its own and uses the target's slots. After each step of the target it runs
    once over the step's settled tokens, which gives the first draft. Then it decodes: k forward
    passes for k drafts, greedily. SGLang starts a step with the decodes. Here they end it, so the
    host can have drafts of every kind at the same moment.

    Drafts lie past the end of the target's slots. SGLang allocates more there. Here the draft model
    has k *spare slots* for each row, and a page table of its own with them. Their tokens are
    computed again, in their real slots, as soon as the target reaches these. (In SGLang's draft KV
    each token stands one position early, as EAGLE needs it.)
    """

    def __init__(self, model: Model, num_draft_tokens: int) -> None:
        self.model = model
        self.num_draft_tokens = num_draft_tokens

    def allocate(
        self, device: Device, num_slots: int, max_running_requests: int, max_len: int
    ) -> None:
        """Take KV memory for the target's slots and the spare ones, and a page table."""
        num_rows, k = max_running_requests + 1, self.num_draft_tokens
        self.xp = device.xp
        self.num_slots, self.max_len = num_slots, max_len
        self.limit = min(max_len, self.model.context_len)
        self.model.allocate(device, num_slots + num_rows * k, max_len)
        self.page_table = device.memory("draft page table", num_rows * max_len)
        self.drafts = device.memory("drafts", num_rows * k)

    def bind(self, batch: ScheduleBatch) -> bool:
        """Host: return whether a request wants drafts; after a chunk before the last, none does."""
        return batch.reqs != [batch.chunked_req]

    def draft(
        self,
        batch: ForwardBatch,
        bound: bool,
        tokens: Array,
        num_accepted: Array,
        page_table: Buffer,
    ) -> Array:
        """Device: return the k tokens after each row's newest, [num_reqs * k].

        ``batch`` has real ids and positions. Of the ``tokens`` [num_samples] that the target chose,
        ``num_accepted`` [num_reqs] of each row count.
        """
        xp = self.xp
        self._map_slots(batch, page_table)
        drafts = self._run(self._extend_batch(batch, tokens, num_accepted))
        num_reqs, k = len(batch.rows), self.num_draft_tokens
        for nth in range(1, k + 1):
            self.drafts[xp.asarray(range(nth - 1, num_reqs * k, k))] = drafts
            if bound and nth < k:
                drafts = self._run(self._decode_batch(batch, nth, drafts, num_accepted))
        return self.drafts[xp.asarray(range(num_reqs * k))]

    def touches(self, reaches: Sequence[Reach]) -> list[Touch]:
        """Host: list its accesses to its own page table and KV, and to the target's page table.

        Spare slots are included. In a pass all rows write before any reads. A prompt may thus read
        the KV that a later row writes (rule ``prompt_pages`` "scheduled"). Such reads are listed
        last, as in the target's pass.
        """
        k = self.num_draft_tokens
        touches = [Touch(kind, "drafts", range(len(reaches) * k)) for kind in ("write", "read")]
        late: list[Touch] = []
        for reach in reaches:
            first, rid = reach.row * self.max_len, reach.rid
            spare = self.num_slots + reach.row * k
            mapped_len = min(max(reach.end + k, len(reach.slots)), self.max_len)
            mapped = range(first, first + mapped_len)
            slots = [*reach.slots[: reach.end], *range(spare, spare + k)]
            copied = range(first + reach.start, first + reach.end)
            read = Touch("read", "draft kv", slots[: reach.start], rid)
            late += [read] if reach.reads_late else []
            touches += [
                Touch("read", "page table", copied, rid),
                Touch("write", "draft page table", mapped, rid),
                Touch("read", "draft page table", mapped, rid),
                *([] if reach.reads_late else [read]),
                Touch("write", "draft kv", slots[reach.start :], rid),
            ]
        return [*touches, *late]

    def cost(self, cost: CostModel) -> int:
        """Return the nanoseconds on ``sim``: k forward passes."""
        return cost.draft * self.num_draft_tokens

    def _run(self, inputs: ForwardBatch) -> Array:
        """Return one token a row, [num_reqs]: perhaps wrong, but always in the vocabulary."""
        logits = self.model.forward(inputs, inputs.ids, self.page_table)
        return without_marks(self.xp, self.model.sample(logits, inputs))

    def _map_slots(self, batch: ForwardBatch, page_table: Buffer) -> None:
        """Map the target's slots up to each row's end, and after it the row's spare ones."""
        if len(batch.table_index):
            self.page_table[batch.table_index] = batch.table_slots
        real, cells, slots, k = list[int](), list[int](), list[int](), self.num_draft_tokens
        for row, start, length in zip(
            batch.rows, batch.prefix_lens, batch.extend_lens, strict=True
        ):
            at, end = row * self.max_len, start + length
            spare = range(at + end, at + min(end + k, self.max_len))
            real += range(at + start, at + end)
            cells += spare
            slots += range(self.num_slots + row * k, self.num_slots + row * k + len(spare))
        index = self.xp.asarray(real)
        self.page_table[index] = page_table[index]
        self.page_table[self.xp.asarray(cells)] = self.xp.asarray(slots)

    def _batch(
        self, step: ForwardBatch, mode: ForwardMode, prefix_lens: list[int], extend_lens: list[int]
    ) -> ForwardBatch:
        """Return the step's rows at other positions, with one greedy token a row."""
        num_reqs = len(step.rows)
        lens = [1] * num_reqs
        flat = ForwardBatch(
            step.step, mode, step.rids, step.rows, prefix_lens, extend_lens, lens, lens,
            sampling=[(SamplingParams(), 0, 0)] * num_reqs, ids=[0] * sum(extend_lens),
            future_slots=[], table_index=[], table_slots=[],
        )  # fmt: skip
        return make_forward_batch(flat, self.xp, self.model.pad_to)

    def _extend_batch(self, step: ForwardBatch, tokens: Array, num_accepted: Array) -> ForwardBatch:
        """DRAFT_EXTEND: return each row's settled tokens, with logits after the newest one.

        A row computed inputs at p .. p + e - 1 and chose g tokens, of which a count. Now it runs
        over p .. p + e. Its inputs come first, up to the first with a sample: a whole prompt, or
        only the last token where the others were drafts. The g tokens follow. Tokens after the a-th
        are rejected and only fill the shape; no logits are taken after them.
        """
        xp, lens = self.xp, [length + 1 for length in step.extend_lens]
        inputs = self._batch(step, ForwardMode.DRAFT_EXTEND, step.prefix_lens, lens)
        is_chosen = list[bool]()  # [num_tokens] one of the g tokens, not an input of the step
        at_id, at_token = list[int](), list[int]()
        settled = list[int]()  # [num_reqs] place of a row's last input here
        first = token = 0
        for length, count in zip(step.extend_lens, step.sample_lens, strict=True):
            given = length - count + 1
            settled.append(len(at_id) + given - 1)
            is_chosen += [False] * given + [True] * count
            at_id += [*range(first, first + given), *[0] * count]
            at_token += [*[0] * given, *range(token, token + count)]
            first, token = first + length, token + count
        padding = [0] * (len(inputs.ids) - len(at_id))
        ids = xp.where(
            xp.mask(is_chosen + [False] * len(padding)),
            tokens[xp.asarray(at_token + padding)],
            step.ids[xp.asarray(at_id + padding)],
        )
        return replace(inputs, ids=ids, logits_at=xp.asarray(settled) + num_accepted)

    def _decode_batch(
        self, step: ForwardBatch, nth: int, drafts: Array, num_accepted: Array
    ) -> ForwardBatch:
        """DECODE: return each row's ``nth`` draft (from 1 on), ``nth`` places after its newest.

        Only the device knows that place; the host knows its upper bound. A draft at ``limit``,
        where positions end, or beyond will never be verified, and stays at the last one.
        """
        xp, limit = self.xp, self.limit
        columns = list(zip(step.prefix_lens, step.extend_lens, step.sample_lens, strict=True))
        at_most = [min(start + length + nth, limit - 1) for start, length, _ in columns]
        inputs = self._batch(step, ForwardMode.DECODE, at_most, [1] * len(columns))
        before = [start + length - count + nth for start, length, count in columns]
        padding = [0] * (-len(columns) % self.model.pad_to)  # with the first row
        index = [*range(len(columns)), *padding]
        rows = xp.asarray(index)
        positions = xp.asarray([before[at] for at in index]) + num_accepted[rows]
        inside = xp.where(positions < limit, positions, xp.asarray([limit - 1] * len(index)))
        return replace(inputs, ids=drafts[rows], positions=inside)


# -- The choice of a drafter and its model ---------------------------------------------------------

Drafter = DraftModel | LookupDrafter


def open_draft_model(path: str, device: str, target: Any) -> Model:
    """Open a draft model by its name of ``DRAFT_MODELS``, in the target's dtype.

    Raises:
        ValueError: there is none of that name, or the target has no such part.
    """
    kind, _, number = path.partition(":")
    if not path:
        raise ValueError(f"STANDALONE needs a draft model: {DRAFT_MODELS}.")
    if kind == "first_layers":
        asked = f"the draft model is {path!r}"
        if not hasattr(target, "first_layers"):
            raise ValueError(f"{asked}, but {target.name} can't be cut in two.")
        if not (number.isdecimal() and 1 <= int(number) <= target.num_layers):
            raise ValueError(f"{asked}, but {target.name} has layers 1 to {target.num_layers}.")
        return cast(Model, target.first_layers(int(number)))
    if kind == "hash" and isinstance(target, HashModel):
        if number and not number.isdecimal():
            raise ValueError(f"the draft model is {path!r}, but {number!r} is no whole number.")
        return open_hash_draft(device, target, int(number or USUAL_AGREE))
    return open_model(path, device, AUTO if path == "hash" else target.dtype or AUTO)


def open_hash_draft(device: str, target: HashModel, agree: int = USUAL_AGREE) -> HashModel:
    """Return a draft model for ``target`` in a device's arrays, with the same vocabulary.

    With ``agree`` 10 the drafts are the tokens that a greedy target chooses.

    Raises:
        ValueError: ``agree`` is not in 0 .. 10, or the device's extra is missing.
    """
    if not 0 <= agree <= 10:
        raise ValueError(f"a hash draft model agrees on {agree} of 10 tokens; it must be 0 to 10.")
    draft = hash_class(device)(target.vocab_size, target.context_len, target.eos_ids)
    draft.name, draft.agree = "hash draft", agree
    return draft


def check_fits(draft: Model, target: Model, context_len: int) -> None:
    """Raise ValueError where a draft has another vocabulary, or too short a context."""
    if draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"the draft model {draft.name} has a vocabulary of {draft.vocab_size} tokens and the "
            f"target {target.name} one of {target.vocab_size}; they must be the same."
        )
    if draft.context_len < context_len:
        raise ValueError(
            f"the draft model {draft.name} has a context of {draft.context_len} tokens, but steps "
            f"reach {context_len}."
        )


def make_drafter(config: SchedulerConfig, device: str, model: Model) -> Drafter | None:
    """Return the drafter on the device for ``NGRAM_GPU`` or ``STANDALONE``, otherwise None.

    Raises:
        ValueError: there is no such draft model, or it does not fit the target.
    """
    count = config.num_draft_tokens
    if config.speculative_algorithm in ("", "NGRAM"):
        return None
    if config.speculative_algorithm == "NGRAM_GPU":
        return LookupDrafter(library(device), count)
    draft = open_draft_model(config.speculative_draft_model_path, device, model)
    check_fits(draft, model, config.context_len + config.draft_slack)
    return DraftModel(draft, count)
