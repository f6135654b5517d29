"""Two lazy graphs in flight: build the next step on tokens nobody has computed yet.

MLX's arrays are lazy: an operation only notes what is to be computed, and ``mx.async_eval`` has it
computed beside the host. So an array of tokens can be built upon before it has any numbers, and no
buffer is needed to hand tokens over. ``pending_curr`` is the step whose tokens the host blocks on;
before it does, it builds ``pending_next`` on those same tokens, so that the device goes from one to
the other without a gap. Read ``mlx_async`` first, then ``MlxTpModelWorker``: what a step starts
with, and what it ends with.

SGLang ``hardware_backend/mlx`` (#22416), under its names. On other devices the loop is the same,
with ops on a stream in the place of graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..core import ForwardMode, NoBatch, Request, Result, ScheduleBatch
from ..engine.engine import Engine
from ..scheduler.config import ALGORITHMS
from ..worker import Step
from .design import OTHERS, design

# -- The loop: when the next step is chained, and when it is scheduled afresh ----------------------


@design(
    follows="SGLang hardware_backend/mlx/scheduler_mixin.py:event_loop_overlap_mlx",
    relays=("chain", "ring", "pool", *OTHERS),
    depth=2,
    overrun=1,
    refuses=dict.fromkeys(
        ALGORITHMS,
        "SGLang's MLX backend speculates with Gemma's own assistant only, and without overlap then "
        "(hardware_backend/mlx/spec_config.py)",
    ),
)
def mlx_async(
    engine: Engine, clear_cache_every: int = 256, chain_extend: bool = False
) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``hardware_backend/mlx/scheduler_mixin.py:event_loop_overlap_mlx``.

    While the chain holds, a turn builds step N+1 on step N's lazy tokens, then blocks on N. It
    breaks when a prompt waits or a request ended: the step in flight is finalized too, and the
    next one is scheduled afresh. Nothing is chained on a step whose tokens a grammar or penalties
    have to see first. A settled step takes max(d, h, c, (d + h + c) / 2). Where nothing is in
    flight, an idle job stands in. Each ``yield`` ends one turn.

    ``chain_extend`` is what a report on #22416 suggests next, and SGLang 0.5.23 has not: where the
    chain would break, the next step is scheduled and built behind the one in flight, whatever it is
    (``_launch_behind``). lessons/site/docs/mlx_caches.md has what it brings.
    """
    tp_worker = MlxTpModelWorker(engine, clear_cache_every)
    pending_curr = tp_worker.async_forward_batch_generation_mlx(NOBODY)
    while True:
        engine.recv_requests()
        pending_next: MlxPendingJob | None = None
        unsafe = _chain_unsafe(engine, pending_curr, chain_extend)
        if not unsafe:
            pending_next = _launch_chained(engine, tp_worker, pending_curr)
        if chain_extend and not (unsafe or pending_next):
            pending_next = _launch_behind(engine, tp_worker, pending_curr)
        _finalize_mlx_pending_job(engine, tp_worker, pending_curr)  # the device runs the next one
        if pending_next is not None and (chain_extend or _may_be_promoted(engine, pending_next)):
            pending_curr = pending_next
            yield pending_curr.batch_copy
            continue
        if pending_next is not None:  # the chain is broken; what it made is good for who lives on
            _finalize_mlx_pending_job(engine, tp_worker, pending_next)
        next_batch = engine.get_next_batch_to_run()
        if not next_batch:
            engine.on_idle()
        elif unsafe:
            engine.recording.must_wait(next_batch, unsafe, "forward")
        pending_curr = tp_worker.async_forward_batch_generation_mlx(next_batch or NOBODY)
        yield next_batch


def _chain_unsafe(engine: Engine, prev: MlxPendingJob, chain_extend: bool) -> str:
    """Why the step that could be chained on ``prev`` must not be: its mask needs ``prev``'s tokens.

    The original's ``MlxPendingJob.chain_safe``, for grammars; it has no penalties yet (#39559).
    """
    chains = prev.mode == "decode" and engine.scheduler.can_chain(prev.batch_copy)
    chains = chains or chain_extend
    return engine.missing_history(prev.batch_copy, steps_ahead=1) if chains else ""


def _launch_chained(
    engine: Engine, tp_worker: MlxTpModelWorker, prev: MlxPendingJob
) -> MlxPendingJob | None:
    """The same requests once more on ``prev``'s lazy tokens; None where the chain must break.

    It holds for a pure decode, while nobody waits (even one that could not be admitted); and,
    unlike the original's, only while everybody lives and has room, because a step is committed.
    """
    if prev.mode != "decode" or prev.decode is None:
        return None
    batch = engine.chain(prev.batch_copy)
    if batch is None:
        return None
    job = tp_worker.async_chained_decode_mlx(batch, prev.decode)
    return replace(job, schedule_batch=prev.schedule_batch)


def _launch_behind(
    engine: Engine, tp_worker: MlxTpModelWorker, prev: MlxPendingJob
) -> MlxPendingJob | None:
    """Schedule a step while ``prev`` is in flight, and build it on that; None if there is none yet.

    An extend needs nothing that ``prev`` has still to say: it reads a prompt, and the graph itself
    orders who writes and who reads KV. It needs memory, a row of the request table and its turn in
    the queue, which the scheduler gives out before ``prev``'s end is heard; so it does for
    ``event_loop_overlap``. There a FutureMap keeps the tokens in flight. Here they are rows of one
    array, ``prev``'s, because what was launched before ``prev`` has been read: a decode behind an
    extend takes the first tokens from that array, and all others from the host. The price is
    overlap's, too. Memory comes back a step later, and who has ended is in one more step.
    """
    batch = engine.get_next_batch_to_run() if prev.lazy_tokens else NoBatch.IDLE
    return tp_worker.async_forward_batch_generation_mlx(batch, prev.lazy_tokens) if batch else None


def _finalize_mlx_pending_job(
    engine: Engine, tp_worker: MlxTpModelWorker, pending: MlxPendingJob
) -> None:
    result = tp_worker.finalize_mlx_result(pending)
    if pending.lazy_tokens is not None:
        engine.process_result(pending.lazy_tokens.step, result)


def _may_be_promoted(engine: Engine, pending_next: MlxPendingJob) -> bool:
    """Whether the step in flight may be chained upon: nobody in it ended, and nobody waits."""
    return not pending_next.batch_copy.anyone_left and not engine.scheduler.waiting_queue


# -- A step on its way, under the published names --------------------------------------------------


class LazyTokens(NamedTuple):
    """The tokens of some rows of a launched step, in the original an ``mx.array``.

    On MLX they are one here, too: the step's ``next_token_ids``, which the next step is built on.
    What the original's handles have beside it (whose it is, its cache, how far it comes) stands in
    the batch's rows: ``step.batch.rows[at]``. ``cache`` is the lease there, for KV lies in pages.
    """

    step: Step
    at: slice = slice(None)

    def tolist(self) -> list[int]:
        """Block until they are there, [num_rows]."""
        return list(self.step.result().tokens[self.at])

    def item(self) -> int:
        """The only one of them."""
        (token,) = self.tolist()
        return token


@dataclass(frozen=True)
class MlxPendingPrefill:
    """A prompt from its first new token on, behind whatever the prefix cache had of it."""

    lazy_token: LazyTokens


@dataclass(frozen=True)
class MlxPendingExtend:
    """A later chunk of a prompt."""

    lazy_token: LazyTokens


@dataclass(frozen=True)
class MlxPendingDecode:
    """One token for each request: what ``decode_batch_start_chained`` builds the next step on."""

    lazy_tokens: LazyTokens


@dataclass(frozen=True)
class MlxPendingJob:
    """One step in flight, as the loop holds it: at most two of them.

    ``mode`` is ``decode``, ``extend`` or ``idle``. ``decode`` also holds the decoding rows of a
    mixed batch, whose mode is ``extend``. ``batch_copy`` is this step's snapshot;
    ``schedule_batch`` the batch that the scheduler made, of which a chained step is one more round.
    """

    mode: str
    batch_copy: ScheduleBatch
    schedule_batch: ScheduleBatch
    lazy_tokens: LazyTokens | None = None
    prefills: Sequence[MlxPendingPrefill] = ()
    extends: Sequence[MlxPendingExtend] = ()
    decode: MlxPendingDecode | None = None

    @property
    def reqs(self) -> list[Request]:
        """Who is in it."""
        return self.batch_copy.reqs


NOBODY = ScheduleBatch(0, ForwardMode.IDLE, 0)

# -- How a step begins and ends: its graph is built and handed over; its tokens are read -----------


class MlxTpModelWorker:
    """SGLang ``hardware_backend/mlx/tp_worker.py`` and ``model_runner.py``, under their names.

    There a prompt is a graph of its own, a request has arrays for its KV, and the runner keeps its
    tokens. Here all rows of a batch are one graph, the scheduler has leases and tokens, and so
    there are no states to keep, or to clean up. Every ``clear_cache_every`` finalized decodes
    (``SGLANG_MLX_CLEAR_CACHE_STEPS``) the library's cached buffers are given back; 0: never.
    """

    def __init__(self, engine: Engine, clear_cache_every: int) -> None:
        self.engine = engine
        self._clear_steps = clear_cache_every
        self._decode_step_ct = 0
        self._newest: Step | None = None  # the step whose graph was built last

    def async_forward_batch_generation_mlx(
        self, batch: ScheduleBatch, prev: LazyTokens | None = None
    ) -> MlxPendingJob:
        """Launch a freshly scheduled batch.

        ``prev`` are the tokens of the step before, where that may be in flight (``chain_extend``;
        the original has none in flight here). Finalize it before this one.
        """
        if batch.mode is ForwardMode.IDLE:
            return MlxPendingJob("idle", batch, batch)
        if batch.mode is ForwardMode.DECODE:
            decode = self.decode_batch_start(batch, prev)
            return MlxPendingJob("decode", batch, batch, decode.lazy_tokens, decode=decode)
        return self._async_extend_batch(batch, prev)

    def async_chained_decode_mlx(
        self, batch: ScheduleBatch, prev: MlxPendingDecode
    ) -> MlxPendingJob:
        """Launch a decode on ``prev``'s lazy tokens. Finalize ``prev`` before this one.

        ``batch`` is what the original lacks: it takes no slot for a chained step and advances no
        length in the scheduler (#30093).
        """
        decode = self.decode_batch_start_chained(batch, prev)
        return MlxPendingJob("decode", batch, batch, decode.lazy_tokens, decode=decode)

    def _async_extend_batch(self, batch: ScheduleBatch, prev: LazyTokens | None) -> MlxPendingJob:
        """Start every row of a batch with prompts in it, each as what it is.

        Never the number of new tokens decides: a last chunk may be one token, and is no decode.
        """
        prefills: list[MlxPendingPrefill] = []
        extends: list[MlxPendingExtend] = []
        decode: MlxPendingDecode | None = None
        for at, lease in enumerate(batch.leases[: batch.num_extend_reqs]):
            if lease.num_chunks == 1:
                prefills.append(self.prefill_start(batch, at, prev))
            else:
                extends.append(self.extend_start(batch, at, prev))
        if batch.num_extend_reqs < len(batch.reqs):
            decode = self.decode_batch_start(batch, prev)
        tokens = self._forward_lazy_tokens(batch, prev, slice(None))
        return MlxPendingJob("extend", batch, batch, tokens, prefills, extends, decode)

    def prefill_start(
        self, batch: ScheduleBatch, at: int, prev: LazyTokens | None = None
    ) -> MlxPendingPrefill:
        """Build a prompt, or its first chunk: row ``at``."""
        return MlxPendingPrefill(self._forward_lazy_tokens(batch, prev, slice(at, at + 1)))

    def extend_start(
        self, batch: ScheduleBatch, at: int, prev: LazyTokens | None = None
    ) -> MlxPendingExtend:
        """Build a later chunk: row ``at``."""
        return MlxPendingExtend(self._forward_lazy_tokens(batch, prev, slice(at, at + 1)))

    def decode_batch_start(
        self, batch: ScheduleBatch, prev: LazyTokens | None = None
    ) -> MlxPendingDecode:
        """Build a token for each row behind the prompts, from tokens that the host knows."""
        behind = slice(batch.num_extend_reqs, None)
        return MlxPendingDecode(self._forward_lazy_tokens(batch, prev, behind))

    def decode_batch_start_chained(
        self, batch: ScheduleBatch, prev: MlxPendingDecode
    ) -> MlxPendingDecode:
        """The same requests once more, in the same order and caches, from ``prev``'s tokens."""
        return MlxPendingDecode(self._forward_lazy_tokens(batch, prev.lazy_tokens, slice(None)))

    def _forward_lazy_tokens(
        self, batch: ScheduleBatch, prev: LazyTokens | None, at: slice
    ) -> LazyTokens:
        """The tokens of some rows; nobody has computed them when this returns.

        The first who asks builds the graph, for all rows of the batch, on ``prev``'s tokens where
        it needs some. On MLX the engine's ``launch`` builds it, and hands tokens and written
        caches over in one ``mx.async_eval`` (``devices/mlx.py``). Masks and penalties come first:
        the graph is to have them in it (``_build_logit_edit_rows``).
        """
        if self._newest is None or self._newest.batch is not batch:
            step = self.engine.prepare_batch(batch, prev.step if prev else None)
            if self.engine.needs_mask(step):
                self.engine.update_vocab_mask(step)
            self._newest = self.engine.launch_batch(step)
        return LazyTokens(self._newest, at)

    def finalize_mlx_result(self, job: MlxPendingJob) -> Result:
        """Block until a job's graph is computed, and read every part of it, [num_reqs].

        A failed step has no tokens to read: its requests end.
        """
        if job.lazy_tokens is None:
            return Result(())
        result = self.engine.wait_for(job.lazy_tokens.step)
        if result.error:
            return result
        tokens = [0] * len(job.reqs)
        for prefill in job.prefills:
            tokens[prefill.lazy_token.at] = [self.prefill_finalize(prefill)]
        for extend in job.extends:
            tokens[extend.lazy_token.at] = [self.extend_finalize(extend)]
        if job.decode is not None:
            tokens[job.decode.lazy_tokens.at] = self.decode_batch_finalize(job.decode)
        return replace(result, tokens=tokens)

    def prefill_finalize(self, pending: MlxPendingPrefill) -> int:
        """Its token: the request's first, if the prompt ends here."""
        return pending.lazy_token.item()

    def extend_finalize(self, pending: MlxPendingExtend) -> int:
        """Its token; of any but the last chunk it is nobody's."""
        return pending.lazy_token.item()

    def decode_batch_finalize(self, pending: MlxPendingDecode) -> list[int]:
        """A token for each, [num_reqs]; and now and then the library's cache is emptied."""
        tokens = pending.lazy_tokens.tolist()
        self._decode_step_ct += 1
        device = self.engine.device
        device.count_memory()
        if self._clear_steps and self._decode_step_ct % self._clear_steps == 0:
            device.clear_cache()
            device.count_memory()
        return tokens
