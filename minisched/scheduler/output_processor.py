"""What only some steps bring: rows that come too late or broken, log-probabilities, grammars.

``scheduler.py`` comes here by one ``if`` each; a plain decode step never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core import (
    FinishReason,
    Lease,
    Logprobs,
    Outputs,
    Request,
    Result,
    Row,
    SamplingParams,
    ScheduleBatch,
    TokenLogprob,
)
from ..core.logprobs import next_logprob_at
from ..core.sampling import Grammar
from ..memory import PrefixCache
from ..policy import Retraction
from ..trace import Recorder
from .config import SchedulerConfig

# -- Output that is still on its way when its request loses its memory: vLLM's books on it ---------
#
# Without these books (``keep_stale_outputs`` off) such a row is dropped, and its token is computed
# again under the request's next lease. That is always right, and costs the row. vLLM delivers the
# token instead (``v1/core/sched/scheduler.py``, #48245): it was computed before anything was taken
# away, so it is the right one. Two ways of counting failed before: a flag dropped one output where
# two were in flight, and a flag set with nothing in flight ate the first output of the next life
# (#42043, #42117, #47900).
#
# Preempting sets ``computed_len`` and the placeholders to 0 and marks everything in flight as stale
# (``Request.restart``). Each step that comes back drains its share. A stale token is delivered, but
# no counter moves: they are the next life's. While anything stale is undrained the request is not
# resumed (``WaitingQueue`` holds it): it would compute positions whose tokens are about to come.


def launched(batch: ScheduleBatch) -> None:
    """A step was committed: count what it computes for each request as in flight."""
    for req, ids in zip(batch.reqs, batch.ids, strict=True):
        req.num_in_flight_tokens += len(ids)


def drain(batch: ScheduleBatch) -> list[Request]:
    """A step came back: take off its share; gives those of whom nothing stale is left now."""
    drained = []
    for req, ids in zip(batch.reqs, batch.ids, strict=True):
        req.num_in_flight_tokens -= len(ids)
        if req.num_stale_output_tokens:
            req.num_stale_output_tokens -= len(ids)
            if not req.num_stale_output_tokens:
                drained.append(req)
    return drained


# -- Rows whose request has lost its memory meanwhile, and rows whose logits are not numbers -------


@dataclass
class OutputProcessor:
    """What a row that comes back means, beside its token (SGLang ``scheduler_output_processor``).

    ``finish`` ends a request; ``hear`` lets it learn a token.
    """

    config: SchedulerConfig
    live: dict[str, Request]
    prefix_cache: PrefixCache
    retraction: Retraction
    lets_go_early: bool  # a request may give its memory back before it ends
    finish: Callable[..., None]
    hear: Callable[[Request, int], None]

    def came_back(
        self, batch: ScheduleBatch, result: Result, drained: list[Request], outputs: Outputs
    ) -> None:
        """What a step brings beside its tokens; who has nothing stale in flight now may resume."""
        recorder = self.retraction.recorder
        if result.logprobs:
            deliver_logprobs(batch, result.logprobs, outputs, self.config.keep_stale_outputs)
        self.prefix_cache.came_back(batch.step)
        if batch.has_sampling_extras and recorder.is_on:
            record_accepted(recorder, batch, outputs)
        if self.prefix_cache.shares_outputs:
            self.cache_outputs(batch)
        for req in drained:
            if not req.finished:
                self.retraction.prefill.waiting_queue.add(req)

    def give_up_hopeless(self) -> None:
        """End a request that is alone and still finds no memory (SGLang ``retract_decode``)."""
        leases = self.retraction.leases
        for req in self.retraction.hopeless:
            need = leases.allocator.pages_for(req.device_len)
            left = leases.available_pages + (len(req.lease.pages) if req.lease else 0)
            error = f"it needs {need} pages of KV memory, but only {left} can be had."
            self.finish(req, FinishReason.ERROR, error=error)
        self.retraction.hopeless.clear()

    def late(self, batch: ScheduleBatch, req: Request, lease: Lease, token: int | None) -> None:
        """A row whose request had lost its memory by now: stale output, or good for nothing."""
        recorder = self.retraction.recorder
        if token is None or lease.is_spoiled or not self.is_stale(req):
            recorder.mark("wasted row", rid=req.rid, step=batch.step)
        else:
            recorder.mark("stale output", rid=req.rid, step=batch.step)
            req.device_len += 1  # a placeholder for it is gone with the lease
            self.hear(req, token)

    def fail(self, batch: ScheduleBatch, error: str) -> None:
        """A step has failed, and everybody ends who was in it, but those who have left it.

        Where stale output counts, its failure does too: the steps behind it, which may be on their
        way, took their tokens from it.
        """
        for req, lease in zip(batch.reqs, batch.leases, strict=True):
            if req.lease is lease or self.is_stale(req):
                self.finish(req, FinishReason.ERROR, error=error)
            else:
                self.retraction.recorder.mark("wasted row", rid=req.rid, step=batch.step)

    def is_stale(self, req: Request) -> bool:
        """Whether output of a lease that is gone still counts for the request."""
        return self.config.keep_stale_outputs and not req.finished

    def end_if_nan(self, batch: ScheduleBatch, req: Request, lease: Lease) -> None:
        """End one whose token was chosen from NaN; the other rows are as good as ever.

        After a chunk too: all that comes behind it would read what it has written.
        """
        if req.lease is not lease and not self.is_stale(req):
            return
        if lease.is_spoiled:
            return  # it was computed from nothing, and is computed again
        error = f"its logits are not numbers (NaN) in step {batch.step}."
        self.spoil([lease])
        self.finish(req, FinishReason.ERROR, error=error)

    def spoil(self, leases: Sequence[Lease]) -> None:
        """What a step was to write for these is not there; whoever may have read it computes again.

        That is who began with a cached prefix, and is in this step or in one behind it.
        """
        if not self.prefix_cache.shares_planned:
            return  # nobody reads what has not come back
        failed = self.retraction.leases.returned_step
        readers = {
            lease: req
            for req in self.live.values()
            if (lease := req.lease) and req.hit_len and lease.last_step >= failed
        }
        self.prefix_cache.spoil([*leases, *readers])
        for lease, req in readers.items():
            if lease not in leases:
                self.retraction.retract(req, "failed prefix")

    def last_is_launched(
        self, req: Request, lease: Lease, leaves: Callable[[Request], None]
    ) -> None:
        """The step of a request's last token is in flight; mini-sglang frees its memory now."""
        self.prefix_cache.cache_finished_req(req, lease)
        leaves(req)
        self.retraction.leases.close(lease)

    def cache_prompt(self, batch: ScheduleBatch, at: int) -> None:
        """Share the prompt, or the chunk, that a row has computed, if its request still runs."""
        req, lease = batch.reqs[at], batch.leases[at]
        if self._still_runs(req, lease):
            end = batch.starts[at] + len(batch.ids[at])
            self.prefix_cache.cache_prompt(req, lease, end, req is batch.chunked_req)

    def cache_outputs(self, batch: ScheduleBatch) -> None:
        """Share what those have computed who decode, and still run."""
        first = batch.num_extend_reqs
        for req, lease in zip(batch.reqs[first:], batch.leases[first:], strict=True):
            if self._still_runs(req, lease):
                self.prefix_cache.cache_unfinished_req(req, lease)

    def _still_runs(self, req: Request, lease: Lease) -> bool:
        return req.lease is lease and not (self.lets_go_early and lease.is_released)


# -- Log-probabilities: what a prompt's part wants, and to whom belongs what has come back ---------


def logprob_starts(batch: ScheduleBatch) -> list[int]:
    """From which of its new positions on each prompt wants logits, [num_extend_reqs]."""
    starts = []
    for req, start, ids in zip(batch.reqs, batch.starts, batch.ids, strict=True):
        wanted = next_logprob_at(req.params, len(req.prompt), len(req.input_token_logprobs))
        starts.append(min(max(0, wanted - start), len(ids)))
    return starts


def deliver_logprobs(
    batch: ScheduleBatch,
    logprobs: Sequence[Logprobs | None],
    outputs: Outputs,
    keep_stale: bool = False,
) -> None:
    """Add to the ``outputs`` of a step the log-probabilities of what they say.

    Only tokens that clients hear have some: of several that a row sampled, those that were
    accepted; none where the row came too late. Those of the prompt are kept for as long as chunks
    of it come in, and go out with the first token.
    """
    heard: dict[str, list[int]] = {}  # by request the places of its tokens
    for at, (rid, token) in enumerate(zip(outputs.rids, outputs.tokens, strict=True)):
        if token is not None:
            heard.setdefault(rid, []).append(at)
    for row, found in zip(batch.rows, logprobs, strict=True):
        if found is None:
            continue
        req, said = row.req, heard.get(row.req.rid, [])
        is_stale = keep_stale and not (req.finished or row.lease.is_spoiled)
        if said or req.lease is row.lease or is_stale:
            learn_prompt(row, found.input_token_logprobs)
        for at, logprob in zip(said, found.output_token_logprobs, strict=False):
            of_prompt = [] if req.output_token_logprobs else list(req.input_token_logprobs)
            outputs[at].logprobs = Logprobs(of_prompt, [logprob])
            req.output_token_logprobs.append(logprob)


def learn_prompt(row: Row, found: Sequence[TokenLogprob]) -> None:
    """Take in those of a prompt's tokens that a row has computed.

    They go on where the last row's ended: rows come back in order, and a request that has lost its
    memory asks, when it goes on, for what it lacks by then and for nothing twice (SGLang computes
    all of them again, and drops them: ``add_input_logprob_return_values``).
    """
    req, start = row.req, row.req.params.logprob_start_len
    if start < 0 or row.end <= start:
        return
    if not req.input_token_logprobs:
        req.input_token_logprobs.append(TokenLogprob(None, req.prompt[start]))
    req.input_token_logprobs += found


# -- A request's grammar, and how far it has come --------------------------------------------------

CompileGrammar = Callable[[SamplingParams], Grammar]


def process_req_with_grammar(
    req: Request, compile_grammar: CompileGrammar | None, recorder: Recorder
) -> str:
    """Compile the grammar that a request asks for; why it can't have it, or nothing.

    SGLang ``constrained/grammar_manager.py`` compiles in threads, while the request waits in
    ``grammar_queue`` for ``get_ready_grammar_requests``; here it is done at once (it takes about a
    millisecond), so that a run can be repeated. The scheduler gets the compiler from outside: it
    knows neither tokenizers nor libraries.
    """
    if compile_grammar is None:
        return "a grammar was asked for, but nothing here compiles any."
    try:
        req.grammar = compile_grammar(req.params)
    except ValueError as error:
        return str(error)
    recorder.mark("grammar", rid=req.rid, rule=req.params.regex or req.params.json_schema or "")
    return ""


def record_accepted(recorder: Recorder, batch: ScheduleBatch, outputs: Outputs) -> None:
    """Mark which of the tokens that a step gave to clients each request's grammar has taken.

    One that it does not allow ends its request, so that it is the last one (``Request.error``).
    """
    heard: dict[str, list[int]] = {req.rid: [] for req in batch.reqs if req.grammar is not None}
    for rid, token in zip(outputs.rids, outputs.tokens, strict=True):
        if rid in heard and token is not None:
            heard[rid].append(token)
    for req in batch.reqs:
        tokens = heard.get(req.rid, [])
        if req.grammar is not None and (taken := tokens[:-1] if req.error else tokens):
            recorder.mark(
                "grammar accept", step=batch.step, rid=req.rid, tokens=" ".join(map(str, taken)),
                terminated=req.grammar.is_terminated,
            )  # fmt: skip
