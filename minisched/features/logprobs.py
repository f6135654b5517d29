"""Log-probabilities: how likely the model finds each token of a prompt or an output.

A request asks for them with ``SamplingParams.return_logprob``. They take two more ops of a step,
after the copy of its tokens. ``logprobs`` computes them on the stream that samples, and ``copy
logprobs`` brings them to the host. Each has a *place* (``LogprobInfo``). SGLang
computes those of prompts in the forward pass and waits for their top tokens immediately
(``layers/logits_processor.py:get_top_logprobs``). Here the host waits only for the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple, cast

from ..core import Logprobs, Outputs, Request, Result, Row, ScheduleBatch, TokenLogprob
from ..core.feature import Feature, StepPart
from ..core.logprobs import next_logprob_at
from ..core.part import RequestPart
from ..devices.base import Array, Arrays, Op
from ..models.base import ForwardBatch, LogitModel
from ..worker import Step, Worker

# -- One request: what it has so far ---------------------------------------------------------------


@dataclass(eq=False)
class KnownLogprobs(RequestPart):
    """The log-probabilities of one request's tokens, as far as they have come back."""

    req: Request
    input_token_logprobs: list[TokenLogprob] = field(default_factory=list)  # of the prompt
    output_token_logprobs: list[TokenLogprob] = field(default_factory=list)  # of ``output_ids``
    may_mix = False  # SGLang's rule

    @property
    def next_at(self) -> int:
        """Return the position of the logits that the prompt's log-probabilities need next."""
        num_known = len(self.input_token_logprobs)
        return next_logprob_at(self.req.params, len(self.req.prompt), num_known)

    def cacheable_len(self, length: int) -> int:
        """Return the length up to the first position with missing log-probabilities.

        (SGLang ``Req.init_next_round_input``, where it holds for a retracted request too; vLLM
        reads no cache at all for ``prompt_logprobs``.)
        """
        return min(length, self.next_at)

    def on_transfer(self, logprobs: Logprobs) -> None:
        """Go on from the log-probabilities of the prefill side."""
        self.input_token_logprobs = list(logprobs.input_token_logprobs)
        self.output_token_logprobs = list(logprobs.output_token_logprobs)

    def learn_prompt(self, row: Row, found: Sequence[TokenLogprob]) -> None:
        """Add those of the prompt's tokens that a row has computed.

        Rows come back in order, so these continue where the last row's ended. A request that lost
        its lease asks only for those that it lacks (SGLang computes all of them again, and drops
        them: ``add_input_logprob_return_values``).
        """
        start = self.req.params.logprob_start_len
        if start < 0 or row.end <= start:
            return
        if not self.input_token_logprobs:
            self.input_token_logprobs.append(TokenLogprob(None, self.req.prompt[start]))
        self.input_token_logprobs += found


def logprobs_of(req: Request) -> Logprobs:
    """Return all log-probabilities that a request has so far."""
    part: Any = req.part(KnownLogprobs)
    if part is None:
        return Logprobs([], [])
    return Logprobs(part.input_token_logprobs, part.output_token_logprobs)


# -- One step: its places, and two more ops --------------------------------------------------------


class LogprobInfo(NamedTuple):
    """The sources of a step's log-probabilities: a *place* for each, row after row.

    In a row those of the prompt come first, then one for each token that it samples. With prompt
    log-probabilities there are more logits than samples, and sampling has to take its own. Columns
    are lists, or arrays once they are shipped.
    """

    logit_lens: list[int]  # [num_reqs] of how many last positions there are logits, on the host
    top_logprobs_num: int  # the most that a request wants
    samples_at: Any  # [num_samples] among the logits; None: all of them
    logits_at: Any  # [num_places] among the logits
    is_sampled: Any  # [num_places] whether the token is sampled here
    samples: Any  # [num_places] among the samples, where it is
    input_ids: Any  # [num_places] the token, where it is the prompt's

    def shipped(self, xp: Arrays) -> LogprobInfo:
        """Return the same on the device."""
        return self._replace(
            samples_at=None if self.samples_at is None else xp.asarray(self.samples_at),
            logits_at=xp.asarray(self.logits_at),
            is_sampled=xp.mask(self.is_sampled),
            samples=xp.asarray(self.samples),
            input_ids=xp.asarray(self.input_ids),
        )


def get_logprob_info(batch: ScheduleBatch, starts: Sequence[int]) -> LogprobInfo | None:
    """Return the places of a batch; None if no request wants any.

    ``starts`` has each prompt's first new position with wanted logits, [num_extend_reqs].
    """
    if not any(req.params.return_logprob for req in batch.reqs):
        return None
    logit_lens, samples_at, end = list[int](), list[int](), 0
    places: list[tuple[int, bool, int, int]] = []  # as the last fields of LogprobInfo
    rows = zip_longest(zip(batch.rows, batch.sample_lens, strict=True), starts)
    for (row, num_samples), start_len in rows:
        num_logits, prompt = num_samples, row.req.prompt[:0]
        if start_len is not None:  # it computes a part of its prompt
            num_logits = max(row.end - row.start - start_len, num_samples)
            prompt = row.req.prompt[row.start + start_len + 1 : row.end + 1]
        first, end = end, end + num_logits
        sampled = range(end - num_samples, end)
        if row.req.params.return_logprob:
            places += [(at, False, 0, token) for at, token in enumerate(prompt, first)]
            places += [(at, True, sample, 0) for sample, at in enumerate(sampled, len(samples_at))]
        samples_at += sampled
        logit_lens.append(num_logits)
    return LogprobInfo(
        logit_lens,
        max(req.params.top_logprobs_num for req in batch.reqs if req.params.return_logprob),
        samples_at if len(samples_at) < end else None,
        *zip(*places, strict=True),
    )


@dataclass(eq=False)
class LogprobStep(StepPart):
    """The ops that compute a step's log-probabilities, and their values."""

    feature: Feature
    worker: Worker[Any]
    step: Step
    starts: Sequence[int]  # [num_extend_reqs] first new position with wanted logits, of each prompt
    info: LogprobInfo  # the places, in lists
    shipped: LogprobInfo | None = None  # the same on the device
    copied: Op | None = None

    def lay_out(self, flat: ForwardBatch) -> ForwardBatch:
        """Ask for logits of the prompts' positions too; tokens are sampled from some of them."""
        return replace(flat, logit_lens=self.info.logit_lens, samples_at=self.info.samples_at)

    def ship(self) -> None:
        """Bring the places to the device."""
        self.shipped = self.info.shipped(self.worker.device.xp)

    def after_copy(self) -> None:
        """Queue ``logprobs`` and ``copy logprobs``."""
        worker, step = self.worker, self.step
        found = worker.queue(
            step, "logprobs", self.compute, step.logits_output, step.next_token_ids,
            on=worker.sample_stream, cost=worker.cost.logprobs,
            touches=[worker.touches.inputs(step.batch)],
        )  # fmt: skip
        worker.copy_stream.wait(found)
        self.copied = worker.queue(
            step, "copy logprobs", worker.device.bring_to_host, found, on=worker.copy_stream,
            cost=worker.cost.copy, after=("copy", found),
        )  # fmt: skip

    def compute(self, logits: Array, tokens: Array) -> Array:
        """Return the log-probabilities of the places, on the device.

        [num_places, 1 + 2 * top_logprobs_num]
        """
        info, model, xp = self.shipped, cast(LogitModel, self.worker.model), self.worker.device.xp
        assert info is not None
        targets = xp.where(info.is_sampled, tokens[info.samples], info.input_ids)
        return model.logprobs(logits, info.logits_at, targets, info.top_logprobs_num)

    def read(self, result: Result) -> Result:
        """Add the log-probabilities of each row, [num_reqs]; None for a row that wants none."""
        assert self.copied is not None
        places = iter(self.copied.synchronize().tolist())
        batch, found, sample = self.step.batch, list[Logprobs | None](), 0
        for at, (row, num_samples) in enumerate(zip(batch.rows, batch.sample_lens, strict=True)):
            sampled = result.tokens[sample : sample + num_samples]
            sample += num_samples
            if not row.req.params.return_logprob:
                found.append(None)
                continue
            prompt: Sequence[int] = []
            if at < batch.num_extend_reqs:
                first = row.start + self.starts[at]
                prompt = row.req.prompt[first + 1 : row.end + 1]
            top = row.req.params.top_logprobs_num
            found.append(Logprobs(of(prompt, places, top), of(sampled, places, top)))
        return replace(result, found={**result.found, self.feature: found})


def of(tokens: Sequence[int], places: Iterator[Sequence[float]], top: int) -> list[TokenLogprob]:
    """Read the next places, which are those of ``tokens``, with ``top`` most likely tokens each."""
    return [read_place(token, next(places), top) for token in tokens]


def read_place(token: int, place: Sequence[float], top: int) -> TokenLogprob:
    """Read one place of ``models/sampling.py``; it may have more than ``top`` tokens."""
    width = (len(place) - 1) // 2
    best = zip(place[1 : 1 + top], map(int, place[1 + width : 1 + width + top]), strict=True)
    return TokenLogprob(place[0], token, tuple(best))


# -- The engine ------------------------------------------------------------------------------------


class LogProbabilities(Feature):
    """Adds log-probabilities to the outputs of each request that asks for them."""

    def __init__(self) -> None:
        self.starts: dict[int, list[int]] = {}  # by step in flight; see LogprobStep

    def part_of(self, req: Request) -> KnownLogprobs | None:
        """Return the log-probabilities of a request that asks for them."""
        return KnownLogprobs(req) if req.params.return_logprob else None

    def on_commit(self, batch: ScheduleBatch) -> None:
        """Keep what each prompt lacks now: a result may change that before the layout."""
        self.starts[batch.step] = starts = []
        for row in batch.rows[: batch.num_extend_reqs]:
            part = row.req.part(KnownLogprobs)
            wanted = part.next_at if part else row.end
            starts.append(min(max(0, wanted - row.start), row.end - row.start))

    def on_return(self, batch: ScheduleBatch) -> None:
        """Forget what its prompts lacked."""
        self.starts.pop(batch.step, None)

    def step_part(self, worker: Worker[Any], step: Step) -> LogprobStep | None:
        """Return two more ops, if a request of the step wants log-probabilities."""
        starts = self.starts.get(step.batch.step, [])
        info = get_logprob_info(step.batch, starts)
        return LogprobStep(self, worker, step, starts, info) if info else None

    def on_result(self, batch: ScheduleBatch, result: Result, outputs: Outputs) -> None:
        """Add the log-probabilities to the outputs of the step.

        Only delivered tokens have some: of several sampled tokens of a row the accepted ones, and
        none if the row came too late. Those of a prompt are kept while its chunks come back, and
        go out with the first token.
        """
        found = result.found.get(self)
        if found is None:
            return
        places: dict[str, list[int]] = {}  # by request, places of its tokens among the outputs
        for at, (rid, token) in enumerate(zip(outputs.rids, outputs.tokens, strict=True)):
            if token is not None:
                places.setdefault(rid, []).append(at)
        for row, of_row in zip(batch.rows, found, strict=True):
            part = row.req.part(KnownLogprobs)
            if of_row is None or part is None:
                continue
            req, delivered = row.req, places.get(row.req.rid, [])
            is_stale = any(part.keeps_late for part in req.parts) and not (
                req.finished or row.lease.is_spoiled
            )
            if delivered or req.lease is row.lease or is_stale:
                part.learn_prompt(row, of_row.input_token_logprobs)
            for at, logprob in zip(delivered, of_row.output_token_logprobs, strict=False):
                of_prompt = [] if part.output_token_logprobs else list(part.input_token_logprobs)
                outputs[at].logprobs = Logprobs(of_prompt, [logprob])
                part.output_token_logprobs.append(logprob)
