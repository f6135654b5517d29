"""One step after the other: the host and the device take turns.

Every token is on the host before the next step is scheduled. So the host foresees nothing, and no
row is ever wasted. All other loops are compared with this one, in tokens and in time.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from .design import design


@design(follows="SGLang managers/scheduler.py:event_loop_normal", relays=("host",))
def serial(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``managers/scheduler.py:event_loop_normal``. Each ``yield`` ends one turn.

    A step takes d + h + c: device, host, copy.
    """
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            pending = engine.run_batch(batch)
            engine.process_batch_result(pending)  # blocks: the device idles while the host works
        else:
            engine.on_idle()
        yield batch
