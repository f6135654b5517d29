"""Two lazy graphs in flight: build the next step on tokens nobody has computed yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..core import ForwardMode, Lease, NoBatch, Request, Result, Row, ScheduleBatch
from ..devices.base import Device
from ..engine.engine import Engine
from ..scheduler.config import ALGORITHMS
from ..worker import Step
from .design import OTHERS, design

# -- Lazy steps on their way: what each part of a step computes, and what is kept when it is read
#
# SGLang ``hardware_backend/mlx/model_runner.py`` and ``scheduler_mixin.py``, with the published
# fields. Where the original keeps an unevaluated ``mx.array``, here stand ``LazyTokens``.


class LazyTokens(NamedTuple):
    """The tokens of some rows of a launched step; on MLX nobody has computed them yet."""

    step: Step
    rows: slice = slice(None)

    def tolist(self) -> list[int]:
        """Block until they are there, [num_rows]."""
        return list(self.step.result().tokens[self.rows])

    def item(self) -> int:
        """The only one of them."""
        (token,) = self.tolist()
        return token


@dataclass(frozen=True)
class MlxPendingPrefill:
    """A prompt from its first new token on. Its request gets its state when this is finalized.

    ``cache`` is the request's lease: its KV lies in the paged pool, and not in arrays of its own
    (what each copies: ``models/llama_mlx.py``).
    """

    lazy_token: LazyTokens
    cache: Lease
    req_id: str
    full_token_ids: list[int]  # all that the runner has to know: cached prefix and new tokens
    req_pool_idx: int
    synced_offset: int  # positions whose KV is in the pool when the step has run


@dataclass(frozen=True)
class MlxPendingExtend:
    """A later chunk of a prompt whose request has its state already."""

    lazy_token: LazyTokens
    cache: Lease
    req_id: str
    new_token_ids: list[int]
    new_synced_offset: int


@dataclass(frozen=True)
class MlxPendingDecode:
    """One token for each request: what ``decode_batch_start_chained`` builds the next step on."""

    lazy_tokens: LazyTokens
    req_ids: list[str]
    caches: list[Lease]  # [num_reqs]


@dataclass(frozen=True)
class MlxPendingJob:
    """One step in flight, as the loop holds it: at most two of them.

    ``mode`` is ``decode``, ``extend`` or ``idle``. ``decode`` also holds the decoding rows of a
    mixed batch, whose mode is ``extend``. ``batch_copy`` is this step's snapshot;
    ``schedule_batch`` the batch that the scheduler made, of which a chained step is one more
    round; ``reqs`` who is in it.
    """

    lazy_tokens: LazyTokens | None
    prefills: list[MlxPendingPrefill]
    extends: list[MlxPendingExtend]
    decode: MlxPendingDecode | None
    mode: str
    batch_copy: ScheduleBatch
    schedule_batch: ScheduleBatch
    reqs: list[Request]


# -- What MLX's model runner keeps of each request, and the two halves of every kind of step -------


@dataclass
class MlxRequestState:
    """One request's part of the runner (``_req_token_ids``, ``_req_caches`` and so on)."""

    token_ids: list[int]  # the newest one is the input of the next fresh decode
    cache: Lease
    req_pool_idx: int
    synced_offset: int


class MlxModelRunner:
    """SGLang ``hardware_backend/mlx/model_runner.py``, under its names.

    A start notes what the step will change; the matching finalize blocks on the step's tokens and
    changes it, unless the request has been forgotten in between (with ``chain_extend`` a step may
    be in flight for one that has ended, or whose first step has failed). Every ``clear_steps``
    finalized decodes (``SGLANG_MLX_CLEAR_CACHE_STEPS``) the library's cached buffers are given
    back; 0: never.
    """

    def __init__(self, device: Device, clear_steps: int) -> None:
        self.device = device
        self.clear_steps = clear_steps
        self.decode_step_ct = 0
        self.states: dict[str, MlxRequestState] = {}

    def has_request(self, req_id: str, cache: Lease) -> bool:
        """Whether the runner keeps anything of it, and not of one who had its id before."""
        return req_id in self.states and self.states[req_id].cache is cache

    def remove_request(self, req_id: str) -> None:
        """Forget it, if it is there."""
        self.states.pop(req_id, None)

    def prefill_start(self, token: LazyTokens, row: Row) -> MlxPendingPrefill:
        """A prompt, or its first chunk, behind whatever the prefix cache had of it."""
        known = list(row.req.known_tokens(0, row.end))
        return MlxPendingPrefill(token, row.lease, row.req.rid, known, row.lease.row, row.end)

    def extend_start(self, token: LazyTokens, row: Row) -> MlxPendingExtend:
        """A later chunk."""
        known = list(row.req.known_tokens(row.start, row.end))
        return MlxPendingExtend(token, row.lease, row.req.rid, known, row.end)

    def decode_batch_start(self, tokens: LazyTokens, rows: list[Row]) -> MlxPendingDecode:
        """One token for each request, from tokens that the host knows."""
        return MlxPendingDecode(tokens, [row.req.rid for row in rows], [row.lease for row in rows])

    def decode_batch_start_chained(
        self, tokens: LazyTokens, prev: MlxPendingDecode
    ) -> MlxPendingDecode:
        """The same requests once more, in the same order and caches, from ``prev``'s tokens."""
        return MlxPendingDecode(tokens, prev.req_ids, prev.caches)

    def prefill_finalize(self, pending: MlxPendingPrefill) -> int:
        """Its token; from now on the runner knows the request."""
        token = pending.lazy_token.item()
        self.states[pending.req_id] = MlxRequestState(
            [*pending.full_token_ids, token],
            pending.cache,
            pending.req_pool_idx,
            pending.synced_offset,
        )
        return token

    def extend_finalize(self, pending: MlxPendingExtend) -> int:
        """Its token, in place of the one that the chunk before it sampled for nobody."""
        token = pending.lazy_token.item()
        if self.has_request(pending.req_id, pending.cache):
            state = self.states[pending.req_id]
            state.token_ids[-1:] = [*pending.new_token_ids, token]
            state.synced_offset = pending.new_synced_offset
        return token

    def decode_batch_finalize(self, pending: MlxPendingDecode) -> list[int]:
        """A token for each, [num_reqs]; and now and then the library's cache is emptied."""
        tokens = pending.lazy_tokens.tolist()
        for req_id, cache, token in zip(pending.req_ids, pending.caches, tokens, strict=True):
            if self.has_request(req_id, cache):
                self.states[req_id].token_ids.append(token)
        self.decode_step_ct += 1
        self.device.count_memory()
        if self.clear_steps and self.decode_step_ct % self.clear_steps == 0:
            self.device.clear_cache()
            self.device.count_memory()
        return tokens


# -- The lazy surface of MLX's worker: launch a step, chain one upon it, read it -------------------

Launch = tuple[
    LazyTokens | None,
    list[MlxPendingPrefill],
    list[MlxPendingExtend],
    MlxPendingDecode | None,
    str,
]
"""lazy_tokens, prefills, extends, decode, mode: the first five fields of a ``MlxPendingJob``."""


class MlxTpModelWorker:
    """SGLang ``hardware_backend/mlx/tp_worker.py``, under its names.

    What the original does with arrays, the engine's phases do here: they build the step's graph
    and hand tokens and written caches over in one ``async_eval`` (``devices/mlx.py``).
    """

    def __init__(self, engine: Engine, clear_cache_every: int) -> None:
        self.engine = engine
        self._mlx_runner = MlxModelRunner(engine.device, clear_cache_every)

    def async_forward_batch_generation_mlx(
        self, batch: ScheduleBatch, prev: MlxPendingJob | None = None
    ) -> Launch:
        """Launch a freshly scheduled batch; who has ended is forgotten before.

        ``prev`` is the step before, where that may be in flight (``chain_extend``; the original has
        none in flight here). Finalize it before this one.
        """
        if batch.mode is ForwardMode.IDLE:
            return None, [], [], None, "idle"
        self._cleanup_stale_rids()
        tokens = self._launch(batch, prev.lazy_tokens.step if prev and prev.lazy_tokens else None)
        if batch.mode is ForwardMode.DECODE:
            decode = self._mlx_runner.decode_batch_start(tokens, list(batch.rows))
            return tokens, [], [], decode, "decode"
        return self._async_extend_batch(batch, tokens, prev.prefills if prev else [])

    def async_chained_decode_mlx(self, batch: ScheduleBatch, prev: MlxPendingDecode) -> Launch:
        """Launch a decode on ``prev``'s lazy tokens. Finalize ``prev`` before this one.

        ``batch`` is what the original lacks: it takes no slot for a chained step and advances no
        length in the scheduler (#30093).
        """
        tokens = self._launch(batch, prev.lazy_tokens.step)
        decode = self._mlx_runner.decode_batch_start_chained(tokens, prev)
        return tokens, [], [], decode, "decode"

    def finalize_mlx_result(self, job: MlxPendingJob) -> Result:
        """Block on a job's tokens and note them; in the order of its batch, [num_reqs].

        Of a failed step there is nothing to note: its requests end.
        """
        if job.lazy_tokens is None:
            return Result(())
        result = self.engine.wait_for(job.lazy_tokens.step)
        if result.error:
            return result
        runner, token_of = self._mlx_runner, {}
        for prefill in job.prefills:
            token_of[prefill.req_id] = runner.prefill_finalize(prefill)
        for extend in job.extends:
            token_of[extend.req_id] = runner.extend_finalize(extend)
        if job.decode is not None:
            tokens = runner.decode_batch_finalize(job.decode)
            token_of.update(zip(job.decode.req_ids, tokens, strict=True))
        return replace(result, tokens=[token_of[req.rid] for req in job.reqs])

    def _launch(self, batch: ScheduleBatch, previous: Step | None) -> LazyTokens:
        """Build a step's graph; masks and penalties go before it, for they enter it."""
        step = self.engine.prepare_batch(batch, previous)
        if self.engine.needs_mask(step):  # _build_logit_edit_rows
            self.engine.update_vocab_mask(step)
        return LazyTokens(self.engine.launch_batch(step))

    def _async_extend_batch(
        self, batch: ScheduleBatch, tokens: LazyTokens, begun: list[MlxPendingPrefill]
    ) -> Launch:
        """Sort the rows of a batch with prompts in it by what they are.

        ``begun`` are the prefills of the step before, which may not have been finalized.
        """
        begun_in = [prefill.cache for prefill in begun]
        runner = self._mlx_runner
        prefills: list[MlxPendingPrefill] = []
        extends: list[MlxPendingExtend] = []
        for at, row in enumerate(batch.rows[: batch.num_extend_reqs]):
            token = LazyTokens(tokens.step, slice(at, at + 1))
            if self._route_extend_request(row, begun_in) == "prefill":
                prefills.append(runner.prefill_start(token, row))
            else:
                extends.append(runner.extend_start(token, row))
        decode = None
        if decoding := list(batch.rows[batch.num_extend_reqs :]):
            rest = LazyTokens(tokens.step, slice(batch.num_extend_reqs, None))
            decode = runner.decode_batch_start(rest, decoding)
        return tokens, prefills, extends, decode, "extend"

    def _route_extend_request(self, row: Row, begun_in: list[Lease]) -> str:
        """``prefill`` or ``continuation``: whether the runner knows the request, or will, decides.

        Never the number of new tokens: a last chunk may be one token, and is no decode.
        """
        is_known = self._mlx_runner.has_request(row.req.rid, row.lease) or row.lease in begun_in
        return "continuation" if is_known else "prefill"

    def _cleanup_stale_rids(self) -> None:
        """Forget who has ended, or lost its memory, since the last fresh launch.

        Not when it ends: the step in flight still has a token for it. The original removes whoever
        is not in the decode batch; under a budget a batch may leave out who lives, so here the
        lease tells.
        """
        states = self._mlx_runner.states
        for rid in [rid for rid, state in states.items() if state.cache.is_released]:
            self._mlx_runner.remove_request(rid)


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
    have to see first. A settled step takes max(d, h, c, (d + h + c) / 2). No batch is ever
    committed for nobody, so the worker's idle mode does not occur here. Each ``yield`` ends one
    turn.

    ``chain_extend`` is what a report on #22416 suggests next, and SGLang 0.5.23 has not: where the
    chain would break, the next step is scheduled and built behind the one in flight, whatever it is
    (``_launch_behind``). lessons/site/docs/mlx_caches.md has what it brings.
    """
    tp_worker = MlxTpModelWorker(engine, clear_cache_every)
    pending_curr: MlxPendingJob | None = None
    while True:
        engine.recv_requests()
        pending_next: MlxPendingJob | None = None
        unsafe = ""  # why nothing may be chained, where it could be otherwise
        if pending_curr is not None:
            unsafe = _chain_unsafe(engine, pending_curr, chain_extend)
            if not unsafe:
                pending_next = _launch_chained(engine, tp_worker, pending_curr)
            if chain_extend and not (unsafe or pending_next):
                pending_next = _launch_behind(engine, tp_worker, pending_curr)
            _finalize_mlx_pending_job(engine, tp_worker, pending_curr)  # the device runs the next
            pending_curr = None
        if pending_next is not None and (chain_extend or _may_be_promoted(engine, pending_next)):
            pending_curr = pending_next
            yield pending_curr.batch_copy
            continue
        if pending_next is not None:  # the chain is broken; what it made is good for who lives on
            _finalize_mlx_pending_job(engine, tp_worker, pending_next)
        next_batch = engine.get_next_batch_to_run()
        if next_batch:
            pending_curr = _launch_fresh(engine, tp_worker, next_batch, unsafe)
        else:
            engine.on_idle()
        yield next_batch


def _launch_fresh(
    engine: Engine, tp_worker: MlxTpModelWorker, batch: ScheduleBatch, waited_for: str
) -> MlxPendingJob:
    if waited_for:
        engine.recording.must_wait(batch, waited_for, "forward")
    launch = tp_worker.async_forward_batch_generation_mlx(batch)
    return MlxPendingJob(*launch, batch_copy=batch, schedule_batch=batch, reqs=batch.reqs)


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
    launch = tp_worker.async_chained_decode_mlx(batch, prev.decode)
    return MlxPendingJob(*launch, batch, prev.schedule_batch, prev.reqs)


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
    batch = engine.get_next_batch_to_run()
    if not batch:
        return None
    launch = tp_worker.async_forward_batch_generation_mlx(batch, prev)
    return MlxPendingJob(*launch, batch_copy=batch, schedule_batch=batch, reqs=batch.reqs)


def _finalize_mlx_pending_job(
    engine: Engine, tp_worker: MlxTpModelWorker, pending: MlxPendingJob
) -> None:
    result = tp_worker.finalize_mlx_result(pending)
    if pending.lazy_tokens is not None:
        engine.process_result(pending.lazy_tokens.step, result)


def _may_be_promoted(engine: Engine, pending_next: MlxPendingJob) -> bool:
    """Whether the step in flight may be chained upon: nobody in it ended, and nobody waits."""
    return not pending_next.batch_copy.anyone_left and not engine.scheduler.waiting_queue
