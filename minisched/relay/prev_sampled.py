"""Previous-sampled scatter: the last step's tokens, and where in it each request was."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..core import ScheduleBatch
from ..devices.base import Array, Device
from ..models.base import placeholders
from ..trace import Touch
from .base import Bound, Relay, RelayShape

UNKNOWN = -1  # what the CPU copy holds where only the device knows the token
MOST_IN_FLIGHT = 2


class InputPlan(NamedTuple):
    """How one step's ``input_ids`` come about on the device.

    ``path`` is ``full`` (every token came from the CPU), ``slice`` (row i continues row i of the
    step before: one copy) or ``scatter``. The first ``num_tokens`` of ``prev_sampled_token_ids``
    are copied for a slice; for a scatter, element ``sources[i]`` goes to position ``targets[i]``.
    """

    path: str
    num_tokens: int = 0
    targets: Array = None
    sources: Array = None


class PrevSampled(Relay):
    """vLLM ``v1/worker/gpu_model_runner.py:_prepare_input_ids`` and ``gpu_input_batch.py``.

    ``bind`` writes -1 to the CPU copy of the ids for every token that the host lacks, looks its
    request up in ``prev_req_id_to_index``, and chooses the cheapest of three paths. What a chunk
    samples means nothing, so its row is not in the map. There is one ``prev_sampled_token_ids``:
    a token that waits for longer than a step is lost, which is why at most two steps may be in
    flight, unless all have the same rows. The ids are shipped in every case, since they travel
    with the batch here; in vLLM a slice that covers the whole batch ships none.

    Binding and resolving take turns, so the plans between them need no more than a queue. A
    scatter's plan is kept while further ones are used, as many as can be in flight: the GPU reads
    its indices later, on a stream that does not own their memory, so once dropped they could be
    overwritten by what the host ships next. (More steps are in flight only where all have the same
    rows, and then all but the first are slices.)
    """

    name = "prev_sampled"
    needs = (
        "a loop that runs ahead, in which the very next step reads a token that nobody knows "
        "(it holds the last step's tokens only)"
    )
    most_in_flight: int | None = MOST_IN_FLIGHT
    sources: list[int]  # rows of the step before that the newest plan reads,
    targets: list[int]  # and where in the flat ids it puts them

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        rows = shape.max_running_requests
        self.input_ids = device.memory("input ids", rows * shape.max_len)
        self.kept_in = self.prev_sampled_token_ids = device.memory("prev sampled", rows)
        self.prev_req_id_to_index: dict[str, int] = {}
        self.plans: deque[InputPlan] = deque()
        self.used: deque[InputPlan] = deque(maxlen=MOST_IN_FLIGHT)

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """The ids with -1 where the device has to fill them in; nothing needs a destination.

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
        self.plans.append(self._plan(targets, sources))  # last, for it may find no memory
        self.recorder.mark(
            "prev sampled", step=batch.step, path=self.plans[-1].path, new=len(ids) - len(targets),
            targets=" ".join(map(str, targets)), sources=" ".join(map(str, sources)),
        )  # fmt: skip
        return ids, []

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """``input_ids`` with the previous step's tokens in their places, [num_tokens]."""
        plan, size = self.plans.popleft(), len(ids)
        self.input_ids[:size] = ids
        if plan.path == "slice":
            self.input_ids[: plan.num_tokens] = self.prev_sampled_token_ids[: plan.num_tokens]
        elif plan.path == "scatter":
            self.used.append(plan)
            self.input_ids[plan.targets] = self.prev_sampled_token_ids[plan.sources]
        return self.input_ids[:size]

    def store_to_map(self, future_slots: Array, tokens: Array) -> None:
        """Keep the step's tokens, row by row, until the next step has sampled."""
        self.prev_sampled_token_ids[: len(tokens)] = tokens

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """By row, which one of the step before it was."""
        source_of = dict(zip(self.targets, self.sources, strict=True))
        found = placeholders(batch, ids)
        return {row: source_of[at] for row, at, _ in found if at in source_of}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """The buffer of ids, all of it, and the rows of the step before."""
        return [
            Touch("write", "input ids", range(len(ids))),
            Touch("read", "prev sampled", self.sources),
        ]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """A future slot for each row."""
        return [Touch("write", "prev sampled", range(len(batch.reqs)))]

    def _plan(self, targets: list[int], sources: list[int]) -> InputPlan:
        """The cheapest way; the indices of a scatter are shipped here, before the launch."""
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
