"""The grammar barrier of a step with drafts: its masks need the tokens of every earlier step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..engine.engine import Engine
from ..scheduler.verify import accepted_tokens
from ..worker import Step


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
