"""What sampling must know of the tokens before, and whether the host knows them by now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..core import LogitAdjustment, Request, Row, ScheduleBatch
from ..core.grammar import Grammar


def missing_history(batch: ScheduleBatch, late_penalties: bool = False) -> str:
    """Why the sampling of a step has to wait now: ``grammar``, ``penalty``, or nothing.

    A row's mask and penalties need every token before the one that it samples; with
    ``late_penalties`` these do without the newest. Rows whose request has ended, or lost its
    memory, wait for nothing: what they sample is good for nobody. The step must be the newest one
    that names its requests.
    """
    reasons = {reason for row in batch.rows if (reason := _lacks(row, late_penalties))}
    return min(reasons, default="")


def _lacks(row: Row, late_penalties: bool) -> str:
    req = row.req
    if not (req.grammar or req.params.has_penalties) or not row.deliver:
        return ""
    missing = req.num_output_placeholders - 1  # tokens of the steps before this one
    if req.lease is not row.lease or missing <= 0:
        return ""
    if req.grammar is not None:
        return "grammar"
    return "penalty" if missing > late_penalties else ""


def make_adjustments(
    batch: ScheduleBatch, late_penalties: bool = False
) -> list[LogitAdjustment | None]:
    """How each sample's logits are to be changed, [num_samples]; empty if none of them is.

    Host, when sampling is launched: it reads the requests as they are then.
    """
    if not any(needs_adjustment(req) for req in batch.reqs):
        return []
    adjustments: list[LogitAdjustment | None] = []
    for row, num_samples in zip(batch.rows, batch.sample_lens, strict=True):
        if row.req.lease is row.lease and row.deliver and needs_adjustment(row.req):
            adjustments += adjust_row(row, num_samples, late_penalties)
        else:
            adjustments += [None] * num_samples
    return adjustments


def needs_adjustment(req: Request) -> bool:
    """Whether a request's logits are changed at all."""
    return req.grammar is not None or req.params.has_penalties or bool(req.params.logit_bias)


def adjust_row(row: Row, num_samples: int, late: bool = False) -> list[LogitAdjustment]:
    """A row's adjustments: one, and one behind each of its drafts, as if it were accepted."""
    req, params = row.req, row.req.params
    drafts = drafts_of(row, num_samples - 1)
    masks = vocab_masks(req.grammar, drafts)
    known = req.known_len if req.num_draft_tokens else row.end  # tokens before the first sample
    output = req.output_ids[: max(0, known - len(req.prompt) - late)]
    adjustments = []
    for at in range(num_samples):
        history = [*output, *drafts[:at]] if params.has_penalties else []
        seen = {*req.prompt, *history} if params.repetition_penalty != 1 else frozenset[int]()
        adjustments.append(
            LogitAdjustment(
                params.repetition_penalty, params.frequency_penalty, params.presence_penalty,
                seen, Counter(history), params.logit_bias, masks[at],
            )
        )  # fmt: skip
    return adjustments


def drafts_of(row: Row, count: int) -> list[int]:
    """A row's drafts: its own, or those that came back with the step that drafted them."""
    drafts = row.ids[len(row.ids) - count :]
    return [at for at in drafts if at is not None] or row.req.spec_token_ids[:count]


def vocab_masks(grammar: Grammar | None, drafts: Sequence[int]) -> list[bytes | None]:
    """A mask for each place, [1 + drafts]; None where there is no grammar.

    Behind a draft that the grammar does not allow, nothing will be accepted: None as well.
    """
    if grammar is None or grammar.is_terminated:
        return [None] * (1 + len(drafts))
    masks: list[bytes | None] = [grammar.fill_vocab_mask()]
    accepted = 0
    for draft in drafts:
        if grammar.is_terminated or not grammar.accept_token(draft):
            break
        accepted += 1
        masks.append(None if grammar.is_terminated else grammar.fill_vocab_mask())
    grammar.rollback(accepted)
    return masks + [None] * (1 + len(drafts) - len(masks))
