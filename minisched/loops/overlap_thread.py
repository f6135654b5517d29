"""Overlap by a worker thread: a second host thread launches what the scheduler has put."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from .overlap_thread_client import TpModelWorkerClient
from .overlap_thread_worker import FutureStep


def overlap_thread(
    engine: Engine, delay_sample: bool = False, wait_launch_done: bool = True
) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``event_loop_overlap`` before #11210. Each ``yield`` ends one turn.

    The scheduler puts a batch and processes the one before it, while a thread launches. A step
    takes max(d, c, h + l, l + s, (d + c + h + l) / 2, (e + c + h + l + s) / 2): device d, of which
    sampling is e, copy c, scheduler h without launching, launch of the forward pass l and of
    sampling s. So only s runs beside the scheduler, because it waits for ``launch_done`` of the
    batch that it has just put. Without ``wait_launch_done`` l does too, and h + l is h.
    A batch that needs a mask is sampled after ``sampling_info_done``. The original says that when
    the result before is processed; here at once where the mask needs no token of it. With
    ``delay_sample`` every batch gets a mask, and waits for that result.
    """
    client = TpModelWorkerClient(engine)
    result_queue: deque[FutureStep] = deque()
    last_batch: ScheduleBatch | NoBatch = NoBatch.IDLE
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        current: FutureStep | None = None
        if batch:
            waits = engine.must_delay_sample(batch) or delay_sample
            current = client.forward_batch_generation(batch, waits or engine.needs_mask(batch))
            result_queue.append(current)
            if not (waits and last_batch):  # without a last batch it is the original's DUMMY_FIRST
                client.set_next_batch_sampling_info_done(current)
        if last_batch:
            launch_done = current.launch_done if current and wait_launch_done else None
            last = client.resolve_last_batch_result(result_queue.popleft(), launch_done)
            engine.process_result(*last)  # the thread launches, the device runs ``batch``
            client.set_next_batch_sampling_info_done(current)
        elif not batch:
            engine.on_idle()
        last_batch = batch
        yield batch
