"""The laws that hold for every schedule: the right tokens, every request ends, nothing is held."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..core import FinishReason, Output, Request, ScheduleBatch
from ..devices.base import Device
from ..engine.engine import Engine
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .leaks.leaks import find_leaks
from .leaks.positions import find_unlisted
from .races.races import examine
from .tokens.ends import find_ends, find_misreads
from .tokens.oracle import grammar_of, hash_oracle
from .touches import Touched
from .workload import Workload


class Broken(AssertionError):
    """A law does not hold; the message names it first."""


def check_identity(
    workload: Workload, refusal: Callable[[Request], str | None] = lambda req: None
) -> None:
    """Law 1: the tokens of every request are those it would get alone.

    Whoever gave up got the first of them. Whoever has to be refused, as ``refusal`` says or because
    no output can follow its grammar, got none; so did who came while another had its id.
    """
    for req in workload.requests:
        is_refused = is_taken(req) or refusal(req) is not None
        truth = [] if is_refused else tokens_alone(workload, req)
        if req.output_ids != truth:
            reason = f" ({req.error})" if req.error else ""
            raise Broken(
                f"identity: {req.name} gave {req.output_ids}, alone it gives {truth}{reason}"
            )


def tokens_alone(workload: Workload, req: Request) -> list[int]:
    """What a request gets alone, as the workload's settings have it; of who gave up, the first."""
    vocab_size, eos_ids, config = workload.vocab_size, workload.eos_ids, workload.config
    try:
        grammar = grammar_of(req, vocab_size, eos_ids)
    except ValueError:  # no output can follow it
        return []
    truth = hash_oracle(
        list(req.prompt), req.params, req.sampling_key, vocab_size, eos_ids, grammar,
        config.late_penalties, config.late_stop_strings,
    )  # fmt: skip
    return truth[: len(req.output_ids)] if req.finish_reason is FinishReason.ABORT else truth


def is_taken(req: Request) -> bool:
    """Whether it was refused because another one had its id."""
    return "is already in use" in req.error


def check_ends(workload: Workload, outputs: list[Output]) -> None:
    """Law 2: every request ends exactly once, and its client heard exactly its tokens.

    An id may come back after its request's end, and only then; who ends with an error hears why.
    """
    reqs_by_name: dict[str, list[Request]] = {}
    order = sorted(range(len(workload.requests)), key=lambda at: workload.arrivals[at])
    for req in (workload.requests[at] for at in order):
        reqs_by_name.setdefault(req.name, []).append(req)
        if req.finish_reason is FinishReason.ERROR and not req.error:
            raise Broken(f"ends: {req.name} ended with an error, and nobody knows which")
    for name, reqs in reqs_by_name.items():
        check_lives(name, reqs, [output for output in outputs if output.rid == name])


def check_lives(name: str, reqs: list[Request], outputs: list[Output]) -> None:
    """The same for all requests of one id, in order of arrival, and all that was heard of it."""
    ends, heard, namesakes = 0, [list[int]()], deque[tuple[int, str]]()
    for output in outputs:
        if output.namesake:
            namesakes.append((ends, output.error))  # it was refused when so many had ended
            continue
        if output.token is not None:
            heard[-1].append(output.token)
        if output.finish_reason:
            ends += 1
            heard.append([])
    lives: list[Request] = []
    for req in reqs:
        if namesakes and namesakes[0][0] < len(lives) and req.error == namesakes[0][1]:
            namesakes.popleft()  # one of them lived when this one came
        else:
            lives.append(req)
    if namesakes or any(map(is_taken, lives)):
        raise Broken(f"ends: {name} was refused as in use, when nobody had that id")
    if ends != len(lives) or any(req.finish_reason is None for req in reqs):
        of = "" if len(lives) == 1 else f", but {len(lives)} requests of that id came in"
        raise Broken(f"ends: {name} ended {ends} times{of}")
    heard[-2:] = [heard[-2] + heard[-1]]  # with what came behind the last end
    for req, tokens in zip(lives, heard, strict=True):
        if tokens != req.output_ids:
            raise Broken(f"ends: {name} heard {tokens}, produced {req.output_ids}")


def check_leaks(engine: Engine) -> None:
    """Law 2, at idle: every page is free or cached, each once; rows free, no lock, no lease."""
    scheduler = engine.scheduler
    pages, rows = list(scheduler.allocator.free_pages), scheduler.table.free_rows
    if scheduler.tree is not None:
        if scheduler.tree.protected_size:
            raise Broken(f"leak: {scheduler.tree.protected_size} pages are still locked")
        pages += scheduler.tree.evict(scheduler.tree.total_size)
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
    for breach in [*find_ends(trace), *find_misreads(trace)]:
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


def check_all(workload: Workload, engine: Engine, outputs: list[Output]) -> None:
    """All of the above."""
    check_identity(workload)
    check_ends(workload, outputs)
    check_leaks(engine)


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
    their part, and several prompts ``max_prefill_tokens``: a single one may be longer than that.
    """
    tokens, prompts, chunk = batch.num_tokens, batch.num_extend_reqs, config.chunked_prefill_size
    limits = [("rows", len(batch.reqs), "max_running_requests", config.max_running_requests)]
    if config.run_first == "unified":
        limits.append(("tokens", tokens, "the budget of a step", config.prefill_budget))
    if prompts and chunk != -1:
        limits.append(("tokens", tokens, "chunked_prefill_size", chunk))
    if prompts > 1:
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
