"""Overlap loops with drafts: two times at which the host waits for the tokens of a running step.

``NGRAM`` looks drafts up on the host, which reads the newest tokens. So the loop schedules a step
while another one runs, and waits for its tokens before the launch (``look_drafts_up``). They are
processed afterwards, while the device runs the new step.

The masks of a step with drafts need the tokens of every earlier step. So the loop waits for them
between the forward pass and the sampling (``advance_pending_grammar``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from ..core import ScheduleBatch
from ..engine.engine import Engine
from ..scheduler.verify import Drafts, VerifyBatch, accepted_tokens
from ..worker import Step


def look_drafts_up(engine: Engine, batch: ScheduleBatch, last: Step) -> None:
    """Wait for the tokens of the last step, and draft after them (SGLang since #17260).

    ``speculative/ngram_worker.py:_prepare_draft_tokens``: the accepted tokens are not processed
    yet. The original brings them to the host by a copy of its own; here it waits for the step's.
    """
    if None not in chain.from_iterable(batch.ids):
        return
    engine.recording.must_wait(batch, "speculation", "forward")
    newest = accepted_tokens(last.batch, engine.wait_for(last))
    for feature in batch.features:
        if isinstance(feature, Drafts) and isinstance(batch, VerifyBatch):
            feature.draft_late(batch, newest)


def advance_pending_grammar(engine: Engine, result_queue: Iterable[Step]) -> None:
    """Build the masks of the newest step, and launch its sampling, before its turn goes on.

    This is the grammar barrier inside ``verify`` (SGLang ``scheduler.py:_advance_pending_grammar``,
    ``speculative/eagle_worker_common.py``). The forward pass of the step is launched. Meanwhile the
    host waits for the results before it, which are still in the queue, and advances the grammars
    over their tokens. The results are processed later, in their usual place.
    """
    *pending, step = result_queue
    newest: dict[str, Sequence[int]] = {}
    for before in pending:
        newest |= accepted_tokens(before.batch, engine.wait_for(before))
    engine.update_vocab_mask(step, newest)
    engine.launch_batch_sample_if_needed(step)
