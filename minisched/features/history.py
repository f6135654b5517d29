"""History: masks of grammars, penalties and biases, which change the logits of the next token.

A mask and penalties need every token before the sampled one. In an overlapping loop the newest of
these is still on the device when the step is launched. So the forward pass is launched, and the
sampling waits: ``missing_history`` gives the reason, and ``HistoryStep.before_sample`` builds the
adjustments when the tokens are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core import (
    FinishReason,
    LogitAdjustment,
    Outputs,
    Request,
    Result,
    Row,
    SamplingParams,
    ScheduleBatch,
)
from ..core.feature import Feature, StepPart
from ..core.part import RequestPart
from ..core.sampling import Grammar
from ..models.base import ForwardBatch
from ..trace import Recorder
from ..worker import Step, Worker

CompileGrammar = Callable[[SamplingParams], Grammar]

# -- One request: its grammar, and the state of that -----------------------------------------------


@dataclass(eq=False)
class LogitWishes(RequestPart):
    """The changes that one request wants of its logits."""

    req: Request
    grammar: Grammar | None = None  # its state after ``output_ids``

    @property
    def reads_history(self) -> bool:
        """Return whether they depend on the tokens before."""
        return self.grammar is not None or self.req.params.has_penalties

    def on_token(self, token: int) -> FinishReason | None:
        """Advance the grammar. It ends the request if its output is complete or not allowed."""
        if self.grammar is None:
            return None
        if not self.grammar.accept_token(token):
            position = self.req.known_len - 1
            self.req.error = f"its grammar does not allow token {token} at {position}."
            return FinishReason.ERROR
        return FinishReason.STOP if self.grammar.is_terminated else None


def wishes_of(req: Request) -> LogitWishes | None:
    """Return the changes that a request wants of its logits; None if it wants none."""
    return req.part(LogitWishes)


def _lacks(row: Row, late_penalties: bool, steps_ahead: int) -> str:
    """Return what of a row needs tokens in flight, ``grammar`` or ``penalty``; empty if nothing."""
    req, wishes = row.req, wishes_of(row.req)
    if wishes is None or not wishes.reads_history:
        return ""
    if not row.deliver or req.lease is not row.lease:
        return ""
    missing = req.num_output_placeholders - 1 + steps_ahead  # tokens of the steps before
    if wishes.grammar is not None and missing > 0:
        return "grammar"
    return "penalty" if missing > late_penalties else ""


# -- One step: the adjustments of its logits -------------------------------------------------------


@dataclass(eq=False)
class HistoryStep(StepPart):
    """The adjustments of one step, built when its sampling is launched."""

    feature: History
    step: Step
    adjustments: list[LogitAdjustment | None] | None = None  # None: not built yet

    @property
    def is_ready(self) -> bool:  # type: ignore[override]
        """Return whether they are built, or need no token before."""
        return self.adjustments is not None or not self.feature.has_history(self.step.batch)

    def before_sample(self, newest: Mapping[str, Sequence[int]]) -> None:
        """Build them from the known tokens, and from ``newest`` by request id."""
        self.adjustments = self.feature.make_adjustments(self.step.batch, newest)

    def sample_inputs(self, inputs: ForwardBatch) -> ForwardBatch:
        """Return the batch with the adjustments."""
        if self.adjustments is None:
            self.before_sample({})
        return replace(inputs, adjustments=self.adjustments) if self.adjustments else inputs


# -- The engine ------------------------------------------------------------------------------------


@dataclass(eq=False)
class History(Feature):
    """Grammars, penalties and biases.

    SGLang ``constrained/grammar_manager.py`` compiles in threads, while the request waits in
    ``grammar_queue``. Here ``part_of`` compiles (about a millisecond), so that a run can be
    repeated. With ``late_penalties`` penalties do without the newest token, and no step waits for
    it.
    """

    recorder: Recorder
    compile_grammar: CompileGrammar | None = None
    late_penalties: bool = False

    def part_of(self, req: Request) -> LogitWishes | None:
        """Compile the grammar of a request, and return its wishes.

        Raises:
            ValueError: the grammar can't be compiled.
        """
        params = req.params
        if not (params.has_grammar or params.has_penalties or params.logit_bias):
            return None
        if not params.has_grammar:
            return LogitWishes(req)
        if self.compile_grammar is None:
            raise ValueError("a grammar was asked for, but nothing here compiles any.")
        grammar = self.compile_grammar(params)
        self.recorder.mark("grammar", rid=req.rid, rule=params.regex or "")
        return LogitWishes(req, grammar)

    def step_part(self, worker: Worker[Any], step: Step) -> HistoryStep:
        """Return the part of a step; each step has one while a live request has wishes."""
        return HistoryStep(self, step)

    def has_history(self, batch: ScheduleBatch) -> bool:
        """Return whether a token that the batch delivers depends on the tokens before it."""
        return any(
            wishes.reads_history and req is not batch.chunked_req
            for req in batch.reqs
            if (wishes := wishes_of(req))
        )

    def missing_history(self, batch: ScheduleBatch, steps_ahead: int = 0) -> str:
        """Return why the sampling of a step has to wait: ``grammar``, ``penalty``, or empty.

        The step must be the newest one of its requests. With ``steps_ahead`` the question is about
        a step that would follow that many steps later. If the request of a row has ended or lost
        its lease, the row waits for nothing, because its token has no use.
        """
        reasons = {_lacks(row, self.late_penalties, steps_ahead) for row in batch.rows}
        return min(filter(None, reasons), default="")

    def make_adjustments(
        self, batch: ScheduleBatch, newest: Mapping[str, Sequence[int]]
    ) -> list[LogitAdjustment | None]:
        """Return the adjustment of each sample's logits, [num_samples]; empty if there is none.

        It reads the requests as they are now. ``newest`` has further tokens for some request ids.

        Raises:
            RuntimeError: penalties need a token that the host does not know.
        """
        if not any(map(wishes_of, batch.reqs)):
            return []
        adjustments: list[LogitAdjustment | None] = []
        for at, (row, num_samples) in enumerate(zip(batch.rows, batch.sample_lens, strict=True)):
            wishes = wishes_of(row.req)
            if wishes is None or not row.deliver or row.req.lease is not row.lease:
                adjustments += [None] * num_samples
                continue
            made = self.adjust_row(batch, at, wishes, num_samples, newest.get(row.req.rid, ()))
            adjustments += made
            if self.recorder.is_on and wishes.grammar is not None:
                masks = [item.vocab_mask for item in made if item.vocab_mask is not None]
                mark_masks(self.recorder, batch.step, row.req.rid, masks)
        return adjustments

    def adjust_row(
        self, batch: ScheduleBatch, at: int, wishes: LogitWishes, num_samples: int,
        newest: Sequence[int],
    ) -> list[LogitAdjustment]:  # fmt: skip
        """Return a row's adjustments: one, and one after each of its drafts, as if accepted.

        Drafts that only the device knows get none: their step did not wait, so no row with wishes
        has any.
        """
        req, drafts, num_drafts = wishes.req, batch.drafts(at), num_samples - 1
        masks = vocab_masks(wishes.grammar, drafts, newest) + [None] * (num_drafts - len(drafts))
        output: list[int] = []
        if req.params.has_penalties:
            position = batch.sample_position(at, len(newest))
            output = output_before(req, position, self.late_penalties, newest)
        return [
            make_adjustment(req.params, req.prompt, [*output, *drafts[:nth]], masks[nth])
            for nth in range(num_samples)
        ]

    def on_result(self, batch: ScheduleBatch, result: Result, outputs: Outputs) -> None:
        """Mark which of the delivered tokens each request's grammar has accepted.

        A token that it does not allow ends its request, so that token is the last one.
        """
        if not self.recorder.is_on:
            return
        grammars = {
            req: wishes.grammar
            for req in batch.reqs
            if (wishes := wishes_of(req)) and wishes.grammar is not None
        }
        delivered: dict[str, list[int]] = {req.rid: [] for req in grammars}
        for rid, token in zip(outputs.rids, outputs.tokens, strict=True):
            if rid in delivered and token is not None:
                delivered[rid].append(token)
        for req, grammar in grammars.items():
            tokens = delivered[req.rid]
            if accepted := tokens[:-1] if req.error else tokens:
                self.recorder.mark(
                    "grammar accept", step=batch.step, rid=req.rid,
                    tokens=tuple(accepted), terminated=grammar.is_terminated,
                )  # fmt: skip


# -- Computed for one row --------------------------------------------------------------------------


def output_before(req: Request, position: int, late: bool, newest: Sequence[int]) -> list[int]:
    """Return the output before ``position``, where a token is sampled; with ``late`` one less.

    Raises:
        RuntimeError: the host does not know all of it. vLLM's penalties once read -1 in such a
            place (#27878, #26467, #27910).
    """
    wanted = max(0, position - len(req.prompt) - late)
    output = [*req.output_ids, *newest]
    if wanted > len(output):
        raise RuntimeError(
            f"penalties of {req.rid} read {wanted} tokens, but the host knows only "
            f"{len(output)}: the loop had to wait."
        )
    return output[:wanted]


def make_adjustment(
    params: SamplingParams, prompt: Sequence[int], output: Sequence[int], mask: bytes | None
) -> LogitAdjustment:
    """Return the adjustment of a request that has generated ``output``."""
    if not params.has_penalties:
        return LogitAdjustment(logit_bias=params.logit_bias, vocab_mask=mask)
    seen = {*prompt, *output} if params.repetition_penalty != 1 else frozenset[int]()
    return LogitAdjustment(
        params.repetition_penalty, params.frequency_penalty, params.presence_penalty,
        seen, Counter(output), params.logit_bias, mask,
    )  # fmt: skip


def vocab_masks(
    grammar: Grammar | None, drafts: Sequence[int], newest: Sequence[int]
) -> list[bytes | None]:
    """Return a mask for each place after ``newest``, [1 + drafts]; None where there is no grammar.

    After a draft that the grammar does not allow no token is accepted, so the mask is None too.
    """
    masks: list[bytes | None] = [None] * (1 + len(drafts))
    if grammar is None:
        return masks
    ahead = 0
    for at, token in enumerate([*newest, *drafts, None], -len(newest)):
        if grammar.is_terminated:
            break
        if at >= 0:
            masks[at] = grammar.fill_vocab_mask()
        if token is None or not grammar.accept_token(token):
            break
        ahead += 1
    grammar.rollback(ahead)
    return masks


def mark_masks(recorder: Recorder, step: int, rid: str, masks: Sequence[bytes]) -> None:
    """Mark how many tokens a row's grammar allows, at each place that it samples."""
    if allowed := tuple(int.from_bytes(mask, "little").bit_count() for mask in masks):
        recorder.mark("grammar mask", step=step, rid=rid, allowed=allowed)
