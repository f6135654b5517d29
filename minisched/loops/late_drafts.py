"""Late drafting for overlap loops: ``NGRAM`` needs the newest tokens before its launch.

A lookup on the host reads the tokens of the step that still runs. So the loop schedules a step
while that one runs, and waits for its tokens before the launch. They are processed afterwards,
while the device runs the new step.
"""

from __future__ import annotations

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
