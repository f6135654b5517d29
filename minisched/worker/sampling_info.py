"""What sampling must know of the tokens before: masks of grammars, penalties, and a bias.

A row's mask and penalties need every token before the one that it samples. In an overlapping loop
the newest of these is still on the device when the step is launched: ``missing_history`` says
whether its sampling has to wait, and ``make_adjustments`` makes what the logits are changed by when
it need not. A step whose requests want nothing of the kind never gets here
(``ScheduleBatch.has_sampling_extras``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..core import LogitAdjustment, Request, Row, SamplingParams, ScheduleBatch
from ..core.sampling import Grammar
from ..trace import Recorder

# -- Whether the host knows it by now --------------------------------------------------------------


def missing_history(
    batch: ScheduleBatch, late_penalties: bool = False, steps_ahead: int = 0
) -> str:
    """Why the sampling of a step has to wait now: ``grammar``, ``penalty``, or nothing.

    With ``late_penalties`` these do without the newest token. Rows whose request has ended, or lost
    its memory, wait for nothing: what they sample is good for nobody. The step must be the newest
    one that names its requests; or it is asked about one that would come so many steps after it.
    """
    if not has_history(batch):
        return ""
    reasons = {reason for row in batch.rows if (reason := _lacks(row, late_penalties, steps_ahead))}
    return min(reasons, default="")


def has_history(batch: ScheduleBatch) -> bool:
    """Whether a token that a step samples, and that counts, depends on those before it."""
    return batch.has_sampling_extras and any(
        reads_history(req) and req is not batch.chunked_req for req in batch.reqs
    )


def reads_history(req: Request) -> bool:
    """Whether a request's next token does, beside the model's own view."""
    return req.grammar is not None or req.params.has_penalties


def _lacks(row: Row, late_penalties: bool, steps_ahead: int) -> str:
    """What of a row needs tokens in flight, ``grammar`` or ``penalty``; empty if nothing does."""
    req = row.req
    if not reads_history(req) or not row.deliver or req.lease is not row.lease:
        return ""
    missing = req.num_output_placeholders - 1 + steps_ahead  # tokens of the steps before
    if req.grammar is not None and missing > 0:
        return "grammar"
    return "penalty" if missing > late_penalties else ""


# -- What is made of it ----------------------------------------------------------------------------


def make_adjustments(
    batch: ScheduleBatch, recorder: Recorder, late_penalties: bool, newest: Mapping[str, int]
) -> list[LogitAdjustment | None]:
    """How each sample's logits are to be changed, [num_samples]; empty if none of them is.

    Host, when sampling is launched: it reads the requests as they are then. ``newest`` has a token
    for each request id of which somebody knows one more than the request does.

    Raises:
        RuntimeError: penalties need a token that the host does not know.
    """
    if not any(map(needs_adjustment, batch.reqs)):
        return []
    adjustments: list[LogitAdjustment | None] = []
    for row, num_samples in zip(batch.rows, batch.sample_lens, strict=True):
        if row.req.lease is row.lease and row.deliver and needs_adjustment(row.req):
            known = [newest[row.req.rid]] if row.req.rid in newest else []
            made = adjust_row(row, num_samples, late_penalties, known)
            adjustments += made
            if recorder.is_on and row.req.grammar is not None:
                masks = [item.vocab_mask for item in made if item.vocab_mask is not None]
                mark_masks(recorder, batch.step, row.req.rid, masks)
        else:
            adjustments += [None] * num_samples
    return adjustments


def needs_adjustment(req: Request) -> bool:
    """Whether a request's logits are changed at all."""
    return reads_history(req) or bool(req.params.logit_bias)


def adjust_row(
    row: Row, num_samples: int, late: bool, newest: Sequence[int]
) -> list[LogitAdjustment]:
    """A row's adjustments: one, and one behind each of its drafts, as if it were accepted.

    The drafts are its own, or those that came back with the step that drafted them. Drafts that
    only the device has matter to nobody who did not wait for them.
    """
    req, params, num_drafts = row.req, row.req.params, num_samples - 1
    own = [token for token in row.ids[len(row.ids) - num_drafts :] if token is not None]
    drafts = own or req.spec_token_ids[:num_drafts]
    masks = vocab_masks(req.grammar, drafts, newest) + [None] * (num_drafts - len(drafts))
    output = output_before(row, late, newest) if params.has_penalties else []
    return [
        make_adjustment(params, req.prompt, [*output, *drafts[:at]], masks[at])
        for at in range(num_samples)
    ]


def output_before(row: Row, late: bool, newest: Sequence[int]) -> list[int]:
    """The output up to the first token that a row samples; with ``late`` without the newest.

    Raises:
        RuntimeError: the host does not know all of it. vLLM's penalties once read -1 in such a
            place (#27878, #26467, #27910).
    """
    req = row.req
    known = req.known_len if req.num_draft_tokens else row.end
    wanted = max(0, known - len(req.prompt) - late)
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
    """What one request wants, when it has said ``output``."""
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
    """A mask for each place behind ``newest``, [1 + drafts]; None where there is no grammar.

    Behind a draft that the grammar does not allow, nothing will be accepted: None as well.
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
    counts = (int.from_bytes(mask, "little").bit_count() for mask in masks)
    if allowed := " ".join(map(str, counts)):
        recorder.mark("grammar mask", step=step, rid=rid, allowed=allowed)
