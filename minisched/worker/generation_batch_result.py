"""What launching a step returns: handles on everything that it will give, under SGLang's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..core import Result, ScheduleBatch
from ..devices.base import Array, Op
from ..models.not_numbers import read_marks
from .failure import reason_of
from .logprobs import read_logprobs


def nothing() -> None:
    """Nothing."""


@dataclass
class GenerationBatchResult:
    """A step on its way (SGLang ``managers/utils.py:GenerationBatchResult``).

    The nine published fields come first, each with the functions that write it and that read it
    (a test watches runs for them); of an op also those which, on the device, make its value and use
    it. ``batch`` is the step as it was committed; SGLang puts the pair of both into its
    ``result_queue``. A step whose sampling is delayed has neither tokens nor a copy before
    ``delay_sample_func`` was called.
    """

    batch: ScheduleBatch
    logits_output: Op
    """Logits [num_logits, vocab], before anything is sampled. Written by ``launch_forward``, when
    the step is launched; made by ``_forward`` (with drafts ``forward``, in a pipeline
    ``_run_stage``). Read by ``launch_sample``, on the device ``_sample`` (``sample``), and by
    ``launch_logprobs``, on the device ``compute``; by ``launch``, which hands a lazy pass over
    without its sampling; for the trace by ``get`` and ``resolve_last_batch_result``."""
    next_token_ids: Op | None = None
    """Tokens [num_samples]. Written by ``launch_sample``; made by ``_sample`` (``sample``), which
    also leaves them in the relay. Read by the next step's ``launch_forward``, on the device
    ``_forward``, where one is built upon the other; by ``launch_copy``; by ``launch_logprobs``, on
    the device ``compute``; with drafts on the device by ``verify`` and ``draft``; by ``result``;
    for the trace by ``launched``."""
    num_accepted_tokens: Op | None = None
    """How many of each row's tokens count, [num_reqs] (SGLang: accept_lens, with their sum under
    this name); None where no step may carry drafts. Written by ``launch_sample``; made by
    ``verify``, which also leaves the lengths in the relay. Read on the device by ``draft``; when it
    has been copied, by ``result`` and ``_read``: the scheduler takes the rest back; for the trace
    by ``launch_copy``."""
    next_draft_input: Op | None = None
    """Drafts for the step behind this one, [num_reqs * k]; None where the host drafts. Written by
    ``launch_sample``; made by ``draft``, which leaves them in the relay, where the next step's
    forward pass finds them. Read, when it has been copied, by ``result``."""
    extend_input_len_per_req: list[int] = field(default_factory=list)
    """Positions that each prompt computes here, [num_extend_reqs]; empty where nobody wants
    log-probabilities. Written by ``launch_logprobs``, from the batch: the live requests have moved
    on when the result is there. Read by ``input_tokens``, when it is told apart."""
    extend_logprob_start_len_per_req: list[int] = field(default_factory=list)
    """Where in each prompt's part log-probabilities begin, [num_extend_reqs]; the part's length
    where none are wanted. Written by ``launch_logprobs``; read by ``input_tokens``."""
    copy_done: Op | None = None
    """The copy to the host, as an event and a handle. Written by ``launch_copy``, on the copy
    stream, behind the sampling; made by ``copy_to_host``. Read by ``is_done``, which asks whether
    it has run, and by ``result``, which blocks on it, in an overlapping loop one step later; for
    the trace by ``process_result``, ``get`` and ``filled``."""
    delay_sample_func: Callable[[], None] | None = None
    """Launches the sampling. Written by ``launch``, where sampling has to wait for history, and by
    ``launch_sample``, which sets it to None again (#20697). Read, and called, when the result
    before has been processed: by ``launch_batch_sample_if_needed``, by the thread's ``sample``, by
    ``sample_delayed``."""
    future_indices: Array = None
    """Where the relay keeps each row's newest token, on the device, [num_reqs]. Written by
    ``launch_forward``, from what the relay bound. Read by ``launch_sample``; on the device by
    ``_sample`` (with drafts ``verify``), which stores there."""
    upload: Op | None = None  # what the forward pass waited for, if the relay copies prompts
    logprobs: Op | None = None  # the copy of log-probabilities (SGLang: part of logits_output)
    on_read: Callable[[], None] = nothing  # says in the trace that the host has read the copy
    _result: Result | None = field(default=None, init=False)  # once somebody has waited for it

    def result(self) -> Result:
        """Block the host until the copy is there. An error comes back as a result; never raises."""
        if self._result is not None:
            return self._result
        try:
            if self.next_token_ids is None or self.copy_done is None:
                raise RuntimeError("its sampling was delayed, and nobody has launched it since")
            values = self.copy_done.synchronize()
            self.next_token_ids.synchronize()  # done before; raises what the step raised
            for op in (self.num_accepted_tokens, self.next_draft_input, self.upload):
                if op is not None:
                    op.synchronize()  # done before as well
            self.on_read()
            result = self._read(values.tolist())
            if self.logprobs is not None:
                places = self.logprobs.synchronize().tolist()
                result = replace(result, logprobs=read_logprobs(self, result.tokens, places))
        except Exception as error:
            return self.fail(error)
        self._result = result
        return result

    @property
    def has_failed(self) -> bool:
        """Whether it is known by now that the step has no tokens."""
        return self._result is not None and bool(self._result.error)

    def fail(self, error: Exception) -> Result:
        """The step has no tokens; what of it is launched ends before anybody hears of that."""
        self._result = Result((), f"step {self.batch.step} failed: {reason_of(error)}")
        for op in self._launched():
            try:
                op.synchronize()
            except Exception as kept:
                kept.__traceback__ = None  # it names frames, and one of these this step
        return self._result

    def _launched(self) -> Iterator[Op]:
        """Its ops."""
        ops = (self.upload, self.logits_output, self.next_token_ids, self.num_accepted_tokens,
               self.next_draft_input, self.copy_done, self.logprobs)  # fmt: skip
        return (op for op in ops if op is not None)

    def _read(self, values: list[int]) -> Result:
        """Tell apart what the copy brought: tokens, and with speculation two more columns."""
        if self.num_accepted_tokens is None:
            tokens, not_numbers = read_marks(values)
            return Result(tokens, not_numbers=not_numbers)
        num_reqs, num_samples = len(self.batch.reqs), self.batch.num_samples
        tokens, not_numbers = read_marks(values[:num_samples])
        drafts = values[num_samples + num_reqs :]
        accepted = values[num_samples : num_samples + num_reqs]
        return Result(tokens, "", accepted, drafts, not_numbers=not_numbers)
