"""The Python plugin's own book of sequences: one step behind, and cleared in two phases.

MindIE ``text_generator/utils/tg_infer_context_store.py``. Whoever is above the plugin keeps books
of its own, and knows nothing of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..core import Lease, ModelWorkerBatch, Request, Result, ScheduleBatch
from ..relay.placeholder_fill import PLACEHOLDER_TOKEN, FillingMasks
from ..trace import Recorder
from ..worker import GenerationBatchResult


@dataclass(eq=False)
class Context:
    """What the plugin remembers of a sequence (a cache id, in the original).

    ``seq_len`` counts its tokens up to the last one that was post-processed.
    """

    req: Request
    seq_len: int
    pending_cleanup: bool = False  # it has finished; the next round clears it


@dataclass
class GenerationOutput:
    """The plugin's response to a call: tokens by sequence, and who has finished with them.

    ``pending`` and ``result`` are the step that they come from, for whoever keeps the requests;
    the first response has none.
    """

    pending: GenerationBatchResult | None = None
    result: Result = field(default_factory=lambda: Result(()))
    token_ids: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)

    def fill_dummy(self, batch: ScheduleBatch) -> None:
        """A token for every sequence of ``batch``: where nothing came back, a placeholder."""
        for rid in batch.rids:
            self.token_ids.setdefault(rid, PLACEHOLDER_TOKEN)


class PluginContext:
    """Every sequence that the plugin has seen and not cleared, by the lease it runs under.

    A sequence that was preempted and starts again is a new one: the old one's row, if it is still
    on its way, finds no context and is dropped.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.contexts: dict[Lease, Context] = {}

    def join_context(self, batch: ScheduleBatch, flat: ModelWorkerBatch) -> ModelWorkerBatch:
        """``flat`` with the positions as this book has them: one too low for those in flight.

        A prompt is entered with its length so far.
        """
        prefix_lens = list(batch.starts)
        for row, (req, lease) in enumerate(zip(batch.reqs, batch.leases, strict=True)):
            if row < batch.num_extend_reqs:
                end = batch.starts[row] + len(batch.ids[row])
                self.contexts[lease] = Context(req, end)
            else:
                prefix_lens[row] = self.contexts[lease].seq_len - 1
        return with_prefix_lens(flat, prefix_lens)

    def update(self, batch: ScheduleBatch, result: Result) -> GenerationOutput:
        """Post-process a step: take its tokens in, see who has finished, clear the last round's.

        The finishing round only flags a sequence, for its next row is already on its way. The
        round after that clears it and drops the surplus row from the response. A length stop is
        seen no sooner than an end-of-text token: nobody above foresees it.
        """
        output = GenerationOutput(result=result)
        for lease in [lease for lease, context in self.contexts.items() if context.pending_cleanup]:
            del self.contexts[lease]
        tokens = result.tokens or [PLACEHOLDER_TOKEN] * len(batch.reqs)
        columns = zip(batch.reqs, batch.leases, batch.delivers, tokens, strict=True)
        for req, lease, deliver, token in columns:
            context = self.contexts.get(lease)
            if context is None or req.lease is not lease:
                continue  # a surplus row
            if result.error:
                context.pending_cleanup = True
            elif deliver:
                context.seq_len += 1
                output.token_ids[req.rid] = token
                if token in req.stop_ids or context.seq_len == req.max_device_len:
                    context.pending_cleanup = True
                    output.finished.append(req.rid)
        self.clear_aborted_context()
        self.record(batch.step)
        return output

    def clear_aborted_context(self) -> None:
        """Drop those who lost their lease: aborted, or preempted. Called after a step only."""
        for lease, context in list(self.contexts.items()):
            if context.req.lease is not lease:
                del self.contexts[lease]

    def record(self, step: int) -> None:
        """Mark the book as it stands: ``a: 7; b: 12 finished``."""
        if self.recorder.is_on:
            lens = "; ".join(
                f"{context.req.rid}: {context.seq_len}{' finished' * context.pending_cleanup}"
                for context in self.contexts.values()
            )
            self.recorder.mark("context", step=step, lens=lens)


def advance_positions(flat: ModelWorkerBatch, masks: FillingMasks) -> ModelWorkerBatch:
    """The rest of ``_fill_in_model_result``: positions and lengths of the rows that were hit += 1.

    This needs no token, so it needs not wait for one.
    """
    prefix_lens = list(flat.extend_prefix_lens)
    for row in masks.hit_rows:
        prefix_lens[row] += 1
    return with_prefix_lens(flat, prefix_lens)


def with_prefix_lens(flat: ModelWorkerBatch, prefix_lens: list[int]) -> ModelWorkerBatch:
    """``flat`` at other positions, where its tokens are also sampled."""
    ends = (a + b for a, b in zip(prefix_lens, flat.extend_seq_lens, strict=True))
    info = [(p, key, end) for (p, key, _), end in zip(flat.sampling_info, ends, strict=True)]
    return replace(flat, extend_prefix_lens=prefix_lens, sampling_info=info)
