"""Drafts, computed a second time: those that a step is given, and how many of them it accepts.

A wrong draft costs a position and no token, so no client notices it. The rules are written here
again, from their definitions. A lookup copies what followed the last occurrence of the longest
known suffix. A ``hash`` draft model chooses greedily; in ``10 - agree`` of ten states its logits
are others than the target's. A draft is accepted while it equals the token that was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Lease, Outputs, Request, Result, ScheduleBatch
from ..engine.engine import Engine
from ..models.hash import ELSEWHERE, P, mix
from ..scheduler.verify import VerifyResult
from ..speculative.draft_model import USUAL_AGREE
from .history import many

LONGEST_SUFFIX = 3


def looked_up(tokens: Sequence[int], count: int) -> list[int]:
    """Return the drafts of a lookup: without an occurrence, the last token again."""
    text = list(tokens)
    distance = 1
    for length in range(1, min(LONGEST_SUFFIX, len(text) - 1) + 1):
        suffix = text[-length:]
        ends = [at for at in range(length, len(text)) if text[at - length : at] == suffix]
        if not ends:
            break
        distance = len(text) - ends[-1]
    for _ in range(count):
        text.append(text[-distance])
    return text[len(tokens) :]


def modelled(tokens: Sequence[int], count: int, agree: int, vocab_size: int) -> list[int]:
    """Return the greedy tokens of a ``hash`` draft model."""
    text, lower, upper, seen = list(tokens), 0, 0, 0
    while len(text) < len(tokens) + count:
        for position in range(seen, len(text)):
            lower += mix(mix(text[position], position), position)
            upper += mix(mix(lower % P, position), position)
        seen = len(text)
        state = mix(upper % P, seen)
        if state % 10 >= agree:
            state = (state + ELSEWHERE) % P
        text.append(max(range(vocab_size), key=lambda token: (mix(state, token), -token)))
    return text[len(tokens) :]


class DraftRules:
    """Observes the results of one scheduler with drafts; ``found`` is the first of each kind."""

    def __init__(self, engine: Engine) -> None:
        self.found: dict[str, str] = {}
        self.engine, self.config = engine, engine.scheduler.config
        self.newest: dict[Lease, Sequence[int]] = {}  # drafts that came back with the last result
        process = engine.scheduler.process

        def processed(batch: ScheduleBatch, result: Result) -> Outputs:
            """Judge a result before it is processed, and its drafts after that."""
            if not isinstance(result, VerifyResult) or result.error or result.nan_samples:
                return process(batch, result)
            self.judge_accepted(batch, result)
            outputs = process(batch, result)
            self.judge_drafts(batch, result)
            return outputs

        if self.config.speculative_algorithm:
            engine.scheduler.process = processed  # type: ignore[method-assign]
            self.watch_commits(engine)

    def watch_commits(self, engine: Engine) -> None:
        """Check that the drafts of a step, all accepted, leave room for the token after them."""
        before = engine.scheduler.on_commit

        def committed(batch: ScheduleBatch) -> None:
            """Check each row that decodes; its length counts the token of this step."""
            first = batch.num_extend_reqs
            for req, ids in zip(batch.reqs[first:], batch.ids[first:], strict=True):
                if len(ids) - 1 > max(0, req.max_device_len - req.device_len):
                    self.found.setdefault("length",
                        f"step {batch.step} has {many(len(ids) - 1, 'draft')} of {req.rid}, but "
                        f"they pass its length, {req.max_device_len}",
                    )  # fmt: skip
            if before is not None:
                before(batch)

        engine.scheduler.on_commit = committed

    def judge_accepted(self, batch: ScheduleBatch, result: VerifyResult) -> None:
        """Compare the number of accepted tokens of each row with its drafts."""
        first, counts = 0, result.num_accepted_tokens or ()
        # The ids of the batch and not of its rows: drafts that are looked up late come after them.
        rows = zip(batch.rows, batch.ids, batch.sample_lens, counts, strict=True)
        for row, all_ids, num_samples, count in rows:
            tokens, ids = result.tokens[first : first + num_samples], all_ids[-num_samples:]
            first += num_samples
            drafts = self.newest.get(row.lease, ()) if None in ids else ids[1:]
            if not row.deliver or row.req.lease is not row.lease or len(drafts) < num_samples - 1:
                continue
            if self.config.speculative_algorithm == "NGRAM" and drafts:
                self.compare(batch, row.req, drafts)
            pairs = zip(drafts, tokens[:-1], strict=False)
            expected = 1 + next((at for at, (a, b) in enumerate(pairs) if a != b), num_samples - 1)
            if count != expected:
                self.found.setdefault("accepted",
                    f"step {batch.step} accepts {many(count - 1, 'draft')} of {row.req.rid}, but "
                    f"its first {expected - 1} equal the sampled tokens",
                )  # fmt: skip

    def judge_drafts(self, batch: ScheduleBatch, result: VerifyResult) -> None:
        """Compare the drafts of a result with those of their rule."""
        k = len(result.drafts) // len(batch.reqs)
        for at, row in enumerate(batch.rows if k else ()):
            if not row.deliver or row.req.lease is not row.lease or row.req.finished:
                continue
            drafts = self.newest[row.lease] = result.drafts[at * k : at * k + k]
            self.compare(batch, row.req, drafts)

    def compare(self, batch: ScheduleBatch, req: Request, drafts: Sequence[int | None]) -> None:
        """Compare the drafts after the known tokens of a request with those of their rule."""
        expected = self.expected(req, len(drafts))
        if list(drafts[: len(expected)]) != expected:
            self.found.setdefault("drafts",
                f"the drafts {list(drafts)} after the tokens of {req.rid}, in step {batch.step}, "
                f"are not those of their rule, {expected}",
            )  # fmt: skip

    def expected(self, req: Request, count: int) -> list[int]:
        """Return the drafts after the known tokens, up to the end of a row."""
        tokens = req.known_tokens(0, req.known_len)
        if self.config.speculative_algorithm.startswith("NGRAM"):
            return looked_up(tokens, count)
        agree = int(self.config.speculative_draft_model_path.partition(":")[2] or USUAL_AGREE)
        count = min(count, self.engine.worker.max_len - len(tokens) + 1)
        return modelled(tokens, count, agree, self.config.vocab_size)
