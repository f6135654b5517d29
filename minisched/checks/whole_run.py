"""The workload of a case once more, as users run it: by ``run_loop``, without a recorder.

A check drives a loop turn by turn, and its observers need a recorder that is on. Here requests
arrive by the clock, no request is aborted, and no step fails. One client stops reading at its first
output, so its request is aborted. Each other request must end as it does alone. Long after that, a
request with the same id comes, and its client gets one token.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO

from ..core import FinishReason, Output, Request
from ..devices.sim import SimDevice
from ..engine.log import log_to
from ..engine.metrics import Metrics
from ..loops.run import run_loop
from ..models.hash import HashModel
from ..models.tokenizer import REPLACEMENT, ByteTokenizer, StreamDecoder
from ..trace.recorder import NullRecorder
from .case import Case, fresh
from .laws import ended, ends_in, tokens_in
from .oracle import Alone

SINCE = "in a whole run without a trace"
BATCH = "Prefill batch"  # in the log: of a step with a prompt
CHARACTERS = "a", "\u00e9", "\u2013", "\U0001f600"
MUCH_LATER = 10**15  # nanoseconds; all other requests have ended by then
GONE = "its reader is gone"  # part of the error of a request that no client reads


class TooManyPhases(AssertionError):
    """A run has more phases of the host than any healthy one."""


class LimitedDevice(SimDevice):
    """A simulated device without a recorder, for at most ``most`` phases of the host."""

    def __init__(self, most: int) -> None:
        super().__init__(NullRecorder())
        self.most = self.left = most

    def work(self, cost: int) -> None:
        """Count a phase of the host.

        Raises:
            TooManyPhases: there were more than ``most``.
        """
        self.left -= 1
        if self.left < 0:
            raise TooManyPhases(f"the host is not done after {self.most} phases {SINCE}")
        super().work(cost)


def tick_of(case: Case) -> int:
    """Return the nanoseconds of a turn: a step with one token and no overlap."""
    cost = case.cost
    return max(1, sum(cost.host.values()) + cost.forward(1) + cost.sample + cost.copy)


def find_other_ends(
    case: Case, truths: Sequence[Alone | None], most: int
) -> Iterator[tuple[str, str]]:
    """Yield the requests that do not end as alone in a whole run: law and sentence.

    ``truths`` has the end of each request; None: not known. A request with an id that occurs twice
    is not judged. The host has at most ``most`` phases.

    Raises:
        Exception: the run stopped with it.
    """
    workload, tick = fresh(case.workload), tick_of(case)
    requests, heard = workload.requests, defaultdict[str, list[Output]](list)
    heard_again = list[Output]()
    for req, turn in zip(requests, workload.arrivals, strict=True):
        req.arrival_time = turn * tick
    names = Counter(req.name for req in requests)
    known = [
        (req, truth)
        for req, truth in zip(requests, truths, strict=True)
        if truth is not None and names[req.name] == 1
    ]
    longest = max((len(truth.tokens) for _, truth in known), default=0)
    gone = next((req for req, truth in known if len(truth.tokens) == longest > 2), None)

    again: Request | None = None  # with the id of the one that is gone
    if gone is not None:
        params = replace(gone.params, max_new_tokens=1)
        again = Request(gone.rid, gone.prompt, params, MUCH_LATER)
    sent = [*requests, again] if again is not None else requests

    def hear(output: Output) -> None:
        """Receive an output; one client fails at its first one."""
        if device.now() >= MUCH_LATER:
            heard_again.append(output)
            return
        heard[output.rid].append(output)
        if gone is not None and output.rid == gone.rid:
            raise BrokenPipeError("closed")

    device, model = LimitedDevice(most), HashModel(workload.vocab_size, eos_ids=workload.eos_ids)
    device.built_by_host |= case.built_by_host
    log = StringIO()
    with log_to(log):
        run = run_loop(
            case.loop, device, model, sent, workload.config, case.cost, case.relay, hear,
            **case.options,
        )  # fmt: skip
    for req, truth in known:
        outputs = heard[req.name]
        if req is gone:
            found = wrong_abort(req, truth, outputs, workload.config.beam_width > 1)
        else:
            found = wrong_end(req, truth, outputs)
        yield from ((law, f"{req.name} {words} {SINCE}") for law, words in found)
    told = tokens_in(heard_again)
    if again is not None and (not told or told != again.output_ids):
        came = f"a request came with the id of {again.name}, which has no reader"
        yield "client", f"{came}, and gave {again.output_ids}, but its client got {told} {SINCE}"
    if len(run.metrics.ended) != len(sent) or run.metrics.live:
        count = len(run.metrics.ended)
        yield "client", f"{len(sent)} requests ran, but {count} are counted {SINCE}"
    if wrong := wrong_cached(run.metrics):
        yield "client", f"{wrong} {SINCE}"
    for usage in run.metrics.ended:
        if usage.first_token is not None and usage.scheduled is None:
            yield "client", f"{usage.rid} got a token, but no step is counted for it {SINCE}"
    lines = log.getvalue()
    if "max_running_requests=" not in lines or (run.metrics.output_tokens and BATCH not in lines):
        yield "crash", f"the log has no line of the sizes, or none of a prompt {SINCE}"
    if run.trace.slices or run.trace.program:
        yield "crash", "a run without a trace has recorded"


def wrong_cached(metrics: Metrics) -> str:
    """Return how the cached tokens of all requests differ from those of all admissions.

    They are equal if each prompt was admitted at most once. The two sides of ``pd`` count them.
    """
    prompts = [usage for usage in metrics.ended if usage.scheduled is not None]
    cached = sum(usage.cached_tokens for usage in prompts)
    is_once = sum(usage.prompt_tokens for usage in prompts) == metrics.admitted_tokens
    if not is_once or cached == metrics.cached_tokens:
        return ""
    return f"{cached} cached tokens are counted for requests, and {metrics.cached_tokens} in all"


def wrong_end(req: Request, truth: Alone, outputs: Sequence[Output]) -> Iterator[tuple[str, str]]:
    """Yield law and sentence if a request, or its client, gets another end than alone."""
    if req.output_ids != truth.tokens:
        yield "identity", f"gave {req.output_ids}, alone it gives {truth.tokens}"
    elif req.finish_reason is not truth.finish_reason or truth.error not in req.error:
        yield "ends", f"{ended(req)}, alone it {ended(truth)}"
    elif wrong := wrong_text(req.output_ids):
        yield "client", f"gets the text {wrong}"
    elif (told := tokens_in(outputs)) != req.output_ids or ends_in(outputs) != 1:
        yield "client", f"gave {req.output_ids}, but its client received {told}"


def wrong_text(tokens: Sequence[int]) -> str:
    """Return how the text of an answer that is decoded token by token differs from the whole.

    The answer is one of characters with one to four bytes, the last of which may be incomplete.
    """
    ids = list("".join(CHARACTERS[token % len(CHARACTERS)] for token in tokens).encode())
    del ids[len(ids) - len(tokens) % 2 :]
    codec = ByteTokenizer()
    decoder = StreamDecoder(codec)
    pieces = [decoder.push(token) for token in ids]
    halves = sum(REPLACEMENT in piece for piece in pieces)
    text = "".join([*pieces, decoder.finish()])
    is_right = text == codec.decode(ids) and not halves and not decoder.held_back()
    return "" if is_right else f"{text!r} for {codec.decode(ids)!r}"


def wrong_abort(
    req: Request, truth: Alone, outputs: Sequence[Output], is_search: bool
) -> Iterator[tuple[str, str]]:
    """Yield law and sentence if a request without a reader is not aborted, and has not ended."""
    tokens = req.output_ids
    is_aborted = req.finish_reason is FinishReason.ABORT and GONE in req.error
    if len(outputs) != 1:
        yield "client", f"has no reader after its first output, but {len(outputs)} are delivered"
    elif not is_aborted and (req.finish_reason, tokens) != (truth.finish_reason, truth.tokens):
        yield "abort", f"has no reader after its first output, and {ended(req)}"
    elif tokens != truth.tokens[: len(tokens)] and not is_search:
        yield "identity", f"gave {tokens}, alone it gives {truth.tokens}"
