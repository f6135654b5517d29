"""Multi-step scheduling: schedule once, decode N times, and then process all results.

Nothing is scheduled between the steps of such a *burst*: the same rows advance by one position, and
each token stays on the device for the next step. So the cost of scheduling is paid once for N
tokens. It is not hidden, and no token reaches a client before the burst is over.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..scheduler.config import ALGORITHMS
from ..scheduler.repeat import can_repeat
from ..worker import Step
from .design import OTHERS, design

NUM_STEPS = 4  # by default; the worker has as many buffers

KNOWN_LATE = "the host gets no token of a burst before its end; "


@design(
    follows="vLLM V0 worker/multi_step_model_runner.py (#7000)",
    relays=("pool", "chain", "ring", *OTHERS),
    depth=NUM_STEPS,
    overrun=NUM_STEPS - 1,
    refuses={
        "grammar": KNOWN_LATE + "vLLM V0 refuses guided decoding with multi-step "
        "(engine/llm_engine.py, #9892)",
        "penalties": KNOWN_LATE + "in vLLM V0 penalties are up to N - 1 tokens late then",
        **dict.fromkeys(
            ALGORITHMS,
            "a burst gives one token a step; vLLM V0 refuses speculation with multi-step "
            "(engine/arg_utils.py)",
        ),
    },
)
def multi_step(engine: Engine, num_steps: int = NUM_STEPS) -> Iterator[ScheduleBatch | NoBatch]:
    """vLLM V0 ``worker/multi_step_model_runner.py`` (#6854, #7000). Each ``yield`` ends one burst.

    A decode batch is scheduled and prepared once and run ``num_steps`` times, with only
    ``_advance_step`` in between. The results are processed together. Until then no request is
    admitted or aborted. A finished row is computed to the end of its burst: up to
    ``num_steps - 1`` times past its length (``overrun``). A batch with prompts is a burst of
    one (``Force Single Step``, #7528). If memory or a row of the page table does not suffice
    for N more positions, the burst is shorter (the original preempts a request instead). The
    history of SGLang's scheduler names "speculative group execution" as another way to schedule
    less often, without a source, so there is no loop of it.

    Let a = schedule + prepare + launch, b = advance + launch, d = forward + sample, c = copy and
    p = process + output. N steps take a + d + (N - 1) max(b, d, c) + c + N p. No part of a and p
    overlaps with the device, but a is paid once for N tokens.

    Raises:
        ValueError: ``num_steps`` is less than 1, or more than the worker has output buffers.
    """
    depth = engine.worker.depth
    if not 1 <= num_steps <= depth:
        raise ValueError(f"num_steps is {num_steps}, but it must be between 1 and {depth}.")
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            burst = [engine.run_batch(batch)]
            while len(burst) < num_steps and (pending := advance_step(engine, burst[-1])):
                burst.append(pending)
            results = [engine.wait_for(pending) for pending in burst]
            for pending, result in zip(burst, results, strict=True):
                engine.process_result(pending, result)
        else:
            engine.on_idle()
        yield batch


def advance_step(engine: Engine, pending: Step) -> Step | None:
    """Launch the rows of a decode step once more, or return None if they have no room.

    vLLM V0 ``worker/multi_step_model_runner.py:_advance_step``.
    """
    scheduler, reqs = engine.scheduler, pending.batch.reqs
    batch = scheduler.commit([], reqs) if can_repeat(scheduler, pending.batch) else None
    engine.on_scheduled(batch)
    if batch is None:
        return None
    return engine.launch_batch(engine.prepare_batch(batch, pending, "advance step"))
