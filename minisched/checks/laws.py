"""The laws that hold for every schedule: the right tokens, every request ends, nothing is held."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Output, ScheduleBatch
from ..devices.base import Device
from ..engine.engine import Engine
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .clients import (
    Clients,
    find_ends,
    find_ignored,
    find_miscounts,
    find_untold,
    told_each,
)
from .leaks.leaks import find_leaks
from .leaks.positions import find_unlisted
from .races import examine
from .tokens.ends import find_ends as find_bad_ends
from .tokens.ends import find_misreads
from .tokens.logprobs import find_unlike
from .tokens.oracle import Refusal, never, tokens_alone
from .touches import Touched
from .workload import Workload


class Broken(AssertionError):
    """A law does not hold; the message names it first."""


def check_identity(workload: Workload, refusal: Refusal = never) -> None:
    """Law 1: the tokens of every request are those it would get alone.

    Whoever gave up, or was in a step that was to fail, got the first of them. Whoever has to be
    refused, as ``refusal`` says or because no output can follow its grammar, got none.
    """
    for req in workload.requests:
        truth = tokens_alone(workload, req, refusal)
        if req.output_ids != truth:
            reason = f" ({req.error})" if req.error else ""
            raise Broken(
                f"identity: {req.name} gave {req.output_ids}, alone it gives {truth}{reason}"
            )


def check_ends(workload: Workload, outputs: Sequence[Output]) -> None:
    """Law 2: every request ends exactly once, and its client heard exactly its tokens."""
    for sentence in find_ends(told_each(workload, outputs), outputs):
        raise Broken(f"ends: {sentence}")


def check_clients(clients: Clients, engine: Engine, outputs: Sequence[Output]) -> None:
    """Law 2, as clients hear it: why it ended, how many tokens that was, and all of it in time."""
    told = told_each(clients.workload, outputs)
    counted = engine.metrics.ended
    for sentence in (*find_untold(clients, told), *find_miscounts(clients, told, counted)):
        raise Broken(f"client: {sentence}")


def check_logprobs(workload: Workload, outputs: Sequence[Output], tolerance: float = 0.0) -> None:
    """Law 1, of how likely tokens are: what a request would be told alone, and its client was."""
    for sentence in find_unlike(told_each(workload, outputs), workload.vocab_size, tolerance):
        raise Broken(f"logprobs: {sentence}")


def check_aborts(clients: Clients, outputs: Sequence[Output]) -> None:
    """Law 2, of who gave up: it ends so in the turn that took that in, unless it had ended."""
    for sentence in find_ignored(clients, told_each(clients.workload, outputs)):
        raise Broken(f"abort: {sentence}")


def check_leaks(engine: Engine) -> None:
    """Law 2, at idle: every page is free or cached, each once; rows free, no lock, no lease."""
    scheduler = engine.scheduler
    pages, rows = list(scheduler.allocator.free_pages), scheduler.table.free_rows
    if (cache := scheduler.page_cache) is not None:
        if cache.protected_size:
            raise Broken(f"leak: {cache.protected_size} pages are still locked")
        pages += cache.evict(cache.total_size)
    if sorted(pages) != list(range(1, scheduler.config.num_pages + 1)):
        raise Broken(f"leak: {len(pages)} of {scheduler.config.num_pages} pages are free")
    if sorted(rows) != list(range(1, scheduler.table.size + 1)):
        raise Broken(f"leak: {len(rows)} of {scheduler.table.size} rows are free")
    if scheduler.leases.returning or scheduler.decode.running_reqs or scheduler.prefill.chunked_req:
        raise Broken("leak: a lease or a request is still held")


def check_story(trace: Trace) -> None:
    """Law 2, as the trace tells it: whoever took memory gave it back, at every step."""
    for leak in find_leaks(trace):
        raise Broken(f"leak: {leak}")


def check_told(trace: Trace) -> None:
    """Laws 1 and 2, as the trace tells them: no end twice or with a token behind it, no misread."""
    for breach in [*find_bad_ends(trace), *find_misreads(trace)]:
        raise Broken(f"{breach.law}: {breach}")


def check_lifetimes(device: Device) -> None:
    """Law 2, of a device whose memory is watched: what an op names is alive until it has ended.

    Raises:
        Broken: it is not.
    """
    for sentence in device.lifetimes:
        raise Broken(f"lifetime: {sentence}")


def check_touches(touched: Touched, trace: Trace, finished: bool = True) -> None:
    """Law 4, on ``sim``: what ops say that they touch is what they touch.

    Raises:
        Broken: it is not.
    """
    for sentence in touched.check(trace, finished):
        raise Broken(f"touches: {sentence}")


def check_positions(trace: Trace) -> None:
    """Law 2, as the trace tells it: what a step computes lies in pages that its request holds.

    Raises:
        Broken: it does not.
    """
    for sentence in find_unlisted(trace):
        raise Broken(f"ownership: {sentence}")


class Budgets:
    """Law 3: no step computes more tokens than its policy's budget, or has more rows.

    It hears of every step when it is committed, and keeps the first one that goes over.
    """

    def __init__(self) -> None:
        self.sentence = ""

    def watch(self, engine: Engine) -> None:
        """Before an engine starts."""
        config = engine.scheduler.config

        def heard(batch: ScheduleBatch) -> None:
            self.sentence = self.sentence or over_budget(config, batch)

        engine.scheduler.on_commit = heard

    def check(self) -> None:
        """When the run is over.

        Raises:
            Broken: a step went over its budget.
        """
        if self.sentence:
            raise Broken(f"budget: {self.sentence}")


def over_budget(config: SchedulerConfig, batch: ScheduleBatch) -> str:
    """By how much a step goes over its budget, in a sentence, or nothing.

    Where prompts and decodes share one budget (``unified``), all of a step counts, drafts too. Else
    a step with prompts has ``chunked_prefill_size``, of which those who decode beside them take
    their part; where no prompt is cut, several have ``max_prefill_tokens``: one may be longer.
    Who ignores EOS where nothing is cached is not asked for it, as in SGLang, and ends the batch.
    """
    tokens, prompts, chunk = batch.num_tokens, batch.num_extend_reqs, config.chunked_prefill_size
    limits = [("rows", len(batch.reqs), "max_running_requests", config.max_running_requests)]
    if config.in_force.run_first == "unified":
        limits.append(("tokens", tokens, "the budget of a step", config.prefill_budget))
    if prompts and chunk != -1:
        limits.append(("tokens", tokens, "chunked_prefill_size", chunk))
    is_timed = config.disable_radix_cache and batch.reqs[max(0, prompts - 1)].params.ignore_eos
    if prompts > 1 and chunk == -1 and not is_timed:
        limits.append(("tokens", tokens, "max_prefill_tokens", config.max_prefill_tokens))
    over = (
        f"step {batch.step} ({batch.mode.value}) has {count} {what}, but {name} is {most}"
        for what, count, name, most in limits
        if count > most
    )
    return next(over, "")


def check_times(trace: Trace) -> None:
    """Law 5: time goes forward: nothing ends before it starts.

    Raises:
        Broken: something does.
    """
    for item in trace.slices:
        if item.end < item.start:
            raise Broken(
                f"time: {item.name} of step {item.step} on the {item.lane} lane starts at "
                f"{item.start} ns and ends at {item.end} ns"
            )


def check_races(trace: Trace, is_over: bool = False) -> None:
    """Law 4: whatever two lanes do to the same memory is ordered.

    And where the run ``is_over``, whatever a lane waited for has come.
    """
    seen = examine(trace)
    for race in seen.races:
        raise Broken(f"race: {race}")
    for wait in seen.waits if is_over else ():
        raise Broken(f"deadlock: {wait}")
