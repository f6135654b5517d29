"""What launching a step returns: handles on everything that it will give, under SGLang's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..core import Result, ScheduleBatch
from ..devices.base import Array, Op
from .logprobs import read_logprobs


@dataclass
class GenerationBatchResult:
    """A step on its way (SGLang ``managers/utils.py:GenerationBatchResult``).

    The nine published fields, each with who writes it, who reads it and when. ``batch`` is the
    step as it was committed (SGLang puts the pair of both into its ``result_queue``). A step whose
    sampling is delayed has neither tokens nor a copy before ``delay_sample_func`` was called.
    """

    batch: ScheduleBatch
    logits_output: Op
    """Logits [num_logits, vocab]. Written by the forward pass at launch; read by sampling."""
    next_token_ids: Op | None = None
    """Tokens [num_samples]. Written when sampling is launched; read on the device by the relay
    (the next step's input), and by the copy."""
    num_accepted_tokens: Op | None = None
    """How many of each row's tokens count, [num_reqs]. Written by verification, where a step may
    carry drafts, else None; read by the relay (lengths), the drafter, and, copied, by ``process``,
    which gives back the rest."""
    next_draft_input: Op | None = None
    """Drafts for the step behind this one, [num_reqs * k]. Written by the drafter; read by the next
    step's forward pass through the relay, and, copied, by the scheduler."""
    extend_input_len_per_req: list[int] = field(default_factory=list)
    """Positions that each prompt computes here, [num_extend_reqs]. Written at launch from the
    batch, since the live request has moved on when the result is processed; read by ``result``."""
    extend_logprob_start_len_per_req: list[int] = field(default_factory=list)
    """Where in each prompt's part log-probabilities begin, [num_extend_reqs]; the part's end where
    none are wanted. Written and read together with the lengths."""
    copy_done: Op | None = None
    """The copy to the host, as an event and a handle. Written when sampling is launched, on the
    copy stream; read by ``result``, which blocks on it, one step later in an overlapping loop."""
    delay_sample_func: Callable[[], None] | None = None
    """Launches the sampling. Written at launch where sampling has to wait for history; called, and
    set to None again (#20697), by the loop when the result before has been processed."""
    future_indices: Array = None
    """Where the relay keeps each row's token, [num_reqs]. Written by ``prepare``, before anything
    runs; read by the relay on the device, and by whoever draws the FutureMap."""
    upload: Op | None = None  # what the forward pass waited for, if the relay copies prompts
    logprobs: Op | None = None  # the copy of log-probabilities (SGLang: part of logits_output)

    def result(self) -> Result:
        """Block the host until the copy is there. An error comes back as a result; never raises."""
        try:
            if self.next_token_ids is None or self.copy_done is None:
                raise RuntimeError("its sampling was delayed, and nobody has launched it since")
            values = self.copy_done.synchronize()
            self.next_token_ids.synchronize()  # done before; raises what the step raised
            for op in (self.num_accepted_tokens, self.next_draft_input, self.upload):
                if op is not None:
                    op.synchronize()  # done before as well
            result = self._read(values.tolist())
            if self.logprobs is None:
                return result
            places = self.logprobs.synchronize().tolist()
            return replace(result, logprobs=read_logprobs(self, result.tokens, places))
        except Exception as error:
            return Result((), f"step {self.batch.step} failed: {error}")

    def _read(self, values: list[int]) -> Result:
        """Tell apart what the copy brought: tokens, and with speculation two more columns."""
        if self.num_accepted_tokens is None:
            return Result(values)
        num_reqs, num_samples = len(self.batch.reqs), self.batch.num_samples
        drafts = values[num_samples + num_reqs :]
        accepted = values[num_samples : num_samples + num_reqs]
        return Result(values[:num_samples], "", accepted, drafts)
