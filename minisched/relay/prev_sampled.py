"""Previous-sampled scatter: the last step's tokens, and the row of each request in that step."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..core import ScheduleBatch
from ..devices.base import Array, Device
from ..models.base import placeholders
from ..trace import Touch
from .base import Bound, Relay, RelayShape

UNKNOWN = -1  # in the CPU copy of the ids: only the device knows this token
MOST_IN_FLIGHT = 2


class InputPlan(NamedTuple):
    """How the device completes one step's ``input_ids`` with tokens of the step before.

    ``path`` is ``full`` (the CPU sent every token), ``slice`` or ``scatter``. A slice copies the
    first ``num_tokens`` tokens as they are, because row i continues row i. A scatter writes token
    ``sources[i]`` to position ``targets[i]``.
    """

    path: str
    num_tokens: int = 0
    targets: Array = None
    sources: Array = None


class PrevSampled(Relay):
    """vLLM ``v1/worker/gpu_model_runner.py:_prepare_input_ids`` and ``gpu_input_batch.py``.

    ``bind`` writes -1 into the CPU copy of the ids for every token that the host lacks. It looks
    the requests up in ``prev_req_id_to_index`` and chooses the cheapest of three paths. A chunk
    that is not the last samples no valid token, so its row is not in that dict. The buffer (vLLM
    ``prev_sampled_token_ids``) holds the tokens of one step. Older tokens are lost, so at most two
    steps are in flight, unless all have the same rows. vLLM ships no ids if a slice covers the
    whole batch. Here the ids are always a part of the batch.

    Each ``bind`` is followed by one ``resolve_future``, in order, so the plans wait in a queue. The
    GPU reads the indices of a scatter later, on a stream that does not own their memory. So a used
    plan is kept until ``MOST_IN_FLIGHT`` newer ones are used; otherwise the host could overwrite
    its indices. (If all steps have the same rows, more of them are in flight, but only the first
    one may be a scatter.)
    """

    name = "prev_sampled"
    needs = (
        "a loop that runs ahead, in which the next step reads each token that the host does not "
        "know (the relay holds the last step's tokens only)"
    )
    most_in_flight: int | None = MOST_IN_FLIGHT
    sources: list[int]  # of the newest plan: rows of the step before
    targets: list[int]  # of the newest plan: places in the flat ids

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        rows = shape.max_running_requests
        self.input_ids = device.memory("input ids", rows * shape.max_len)
        self.token_ids_map = device.memory("prev sampled", rows)
        self.prev_req_id_to_index: dict[str, int] = {}
        self.plans: deque[InputPlan] = deque()
        self.used: deque[InputPlan] = deque(maxlen=MOST_IN_FLIGHT)

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Replace each unknown id by -1, and plan its replacement; return no future slots.

        Raises:
            ValueError: a token is unknown, and the step before did not sample it.
        """
        ids = [UNKNOWN if token is None else token for row in batch.ids for token in row]
        targets = [at for at, token in enumerate(ids) if token == UNKNOWN]
        rids = (rid for rid, row in zip(batch.rids, batch.ids, strict=True) if None in row)
        self.sources = sources = [self._place(rid) for rid in rids]
        self.prev_req_id_to_index = {
            req.rid: at for at, req in enumerate(batch.reqs) if req is not batch.chunked_req
        }
        self.targets = targets
        self.plans.append(self._plan(targets, sources))  # last, because it may raise: no memory
        self.recorder.mark(
            "prev sampled", step=batch.step, path=self.plans[-1].path, new=len(ids) - len(targets),
            targets=tuple(targets), sources=tuple(sources),
        )  # fmt: skip
        return ids, []

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Return ``input_ids`` with the previous step's tokens in their places, [num_tokens]."""
        plan, size = self.plans.popleft(), len(ids)
        self.input_ids[:size] = ids
        if plan.path == "slice":
            self.input_ids[: plan.num_tokens] = self.token_ids_map[: plan.num_tokens]
        elif plan.path == "scatter":
            self.used.append(plan)
            self.input_ids[plan.targets] = self.token_ids_map[plan.sources]
        return self.input_ids[:size]

    def store_to_map(self, future_slots: Array, tokens: Array) -> None:
        """Write the step's tokens by row; they stay until the next step samples."""
        self.token_ids_map[: len(tokens)] = tokens

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Return the row of the step before for each row that takes its token there."""
        source_of = dict(zip(self.targets, self.sources, strict=True))
        found = placeholders(batch, ids)
        return {row: source_of[at] for row, at, _ in found if at in source_of}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """Return the ids' part of its buffer, and the rows of the step before."""
        return [
            Touch("write", "input ids", range(len(ids))),
            Touch("read", "prev sampled", self.sources),
        ]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """Return a place for each row."""
        return [Touch("write", "prev sampled", range(len(batch.reqs)))]

    def _plan(self, targets: list[int], sources: list[int]) -> InputPlan:
        """Choose the cheapest path; ship the indices of a scatter now, before the launch."""
        if not targets:
            return InputPlan("full")
        if targets == sources == list(range(len(targets))):
            return InputPlan("slice", len(targets))
        asarray = self.xp.asarray
        return InputPlan("scatter", len(targets), asarray(targets), asarray(sources))

    def _place(self, rid: str) -> int:
        if rid not in self.prev_req_id_to_index:
            raise ValueError(
                f"request {rid} needs a token that the step before did not sample, and "
                "prev_sampled_token_ids holds no older one."
            )
        return self.prev_req_id_to_index[rid]
