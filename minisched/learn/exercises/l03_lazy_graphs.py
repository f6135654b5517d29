"""Lesson 3, two lazy graphs: hand over before you read, chain on a lazy token, break the chain."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any

from ...checks.history import many
from ...core import ScheduleBatch
from ...engine.engine import Engine
from ...loops.design import Turns
from ...models.hash import mix
from ...museum.exhibit import case
from ...museum.patch import read_edits
from ...scheduler import Scheduler
from ...worker import Step
from ..exercise import COST, Exercise, Function, Loop, Pure, Workloads, find, is_large, of_any_size
from ..guard import Mistake, unwatched
from ..runs import VOCAB
from .l00_from_nothing import Generated, LaunchedJob, QueueAndClock, as_it_ran

# -- Lazy arrays on a virtual clock: the costs of ``mx.async_eval`` and ``.item()`` ----------------
#
# A computation is a graph first; the device begins when the graph is handed over. Here a step
# takes the device ``device`` ms, and the host ``BUILD`` ms for its graph and ``host`` ms for its
# own work on the token.

BUILD = 1
RUNS = (  # host and device, in ms a token; the first token, and the number of tokens after it
    (6, 10, 7, 14), (10, 6, 7, 14), (9, 9, 7, 14), (0, 5, 7, 14), (6, 10, 0, 1), (6, 10, 1, 2),
    (6, 10, 6, 6), (6, 10, 9, 2), (6, 10, 3, 40), (6, 10, 2, 13),
)  # fmt: skip


@cache
def tokens(first: int, count: int) -> list[int]:
    """The model's: each is an exact hash of the one before."""
    found = [first]
    for position in range(count + 1):
        found.append(mix(found[-1], position) % VOCAB)
    return found[1:]


@dataclass(eq=False, repr=False)
class LazyToken:
    """A token that may not be computed yet; step 1 makes the first one."""

    clock: LazyClock
    step: int
    source: LazyToken | None
    job: LaunchedJob | None = None
    call_end: LaunchedJob | None = None  # the last job of the call that handed it over

    def __repr__(self) -> str:
        return f"lazy token of step {self.step}"

    def item(self) -> int:
        """Block the host until the value is there. A graph not handed over yet is, first."""
        self.clock.async_eval(self)
        value: int = self.clock.wait(self.job, until=self.call_end)
        return value


class LazyClock(QueueAndClock):
    """The device of lesson 0 as MLX has it: what is launched is a graph, and all it is built on."""

    def __init__(self, host: int, device: int, first: int, count: int) -> None:
        super().__init__()
        self.host_ms, self.device_ms = host, device
        self.first, self.due = first, tokens(first, count)[:count]

    def step(self, token: LazyToken | int) -> LazyToken:
        """Build the graph of the next token.

        Raises:
            Mistake: it is neither the first token nor a lazy one.
        """
        if not isinstance(token, LazyToken) and token != self.first:
            raise Mistake(f"`step` got {token!r}; it takes the first token, or a lazy one")
        source = token if isinstance(token, LazyToken) else None
        number = source.step + 1 if source else 1
        self.busy("prepare", BUILD, number)
        return LazyToken(self, number, source)

    def async_eval(self, token: LazyToken) -> None:
        """Hand a graph over, with all that it is built on, without blocking the host.

        What one call hands over is ready together, as with MLX.

        Raises:
            Mistake: it is no lazy token, or one too many.
        """
        if not isinstance(token, LazyToken):
            raise Mistake(f"`async_eval` got {token!r}; it takes a lazy token")
        if token.step > len(self.due):
            raise Mistake(
                f"`async_eval` got token {token.step}, but {len(self.due)} are asked for: a step "
                "after the last token is wasted"
            )
        handed_over = list[LazyToken]()
        graph: LazyToken | None = token
        while graph is not None and graph.job is None:
            handed_over.append(graph)
            graph = graph.source
        for one in reversed(handed_over):
            one.job = self.launch(partial(self.due.__getitem__, one.step - 1), self.device_ms)
        for one in handed_over:
            one.call_end = token.job

    def host_work(self, token: int) -> None:
        """Do the host's work on a token: its text, its client, the next schedule.

        Raises:
            Mistake: it is not the next one, or one too many.
        """
        at = self.count("work")
        if at >= len(self.due):
            raise Mistake(f"`host_work` was called more than {many(len(self.due), 'time')}")
        if token != self.due[at]:
            raise Mistake(f"`host_work` got {token!r} as token {at + 1}, should get {self.due[at]}")
        self.work(self.host_ms)


def generated(generate: Any, host: int, device: int, first: int, count: int) -> Generated:
    """Run it with these costs, in ms a token."""
    clock = LazyClock(host, device, first, count)
    calls = (unwatched(call) for call in (clock.step, clock.async_eval, clock.host_work))
    step, async_eval, host_work = calls
    given = generate(step, first, count, async_eval, host_work)
    asked = f"with a host of {host} ms and a device of {device} ms a token"
    asked += "" if count == 14 else f", for {many(count, 'token')} after {first},"
    return Generated(given, clock, clock.now, asked)


@cache
def best(host: int, device: int, first: int, count: int) -> float:
    """In how many ms it can be done, with one graph built before the first is handed over."""
    one = find("generate")
    return generated(one.lines(one.solution), host, device, first, count).took + BUILD


def in_order(run: Generated, host: int, device: int, first: int, count: int) -> str:
    """Right tokens, each worked upon once and in order, two graphs in flight, and no gap."""
    fastest = best(host, device, first, count)
    return run.one_by_one(tokens(first, count)[:count]) or run.one_ahead(count, fastest)


# -- One turn of MLX's loop ------------------------------------------------------------------------

FED_THE_NEWEST = read_edits("""
@@ relay.lazy_chain:LazyChain.bind
-            places.get(req.rid, (req.output_ids or req.prompt)[-1]) if token is None else token
+            places[req.rid] if token is None else token
""")
"""Without a previous step, an unknown token is the newest one that the host has: what SGLang's
``decode_batch_start`` for MLX does, which is for fresh steps; an excerpt of #22416 calls it for
chained ones."""


def loop_of_turns(turn: Any) -> Any:
    """A loop that calls ``turn`` as long as a step is in flight, and otherwise schedules."""

    def loop(engine: Engine) -> Turns:
        pending: Step | None = None
        while True:
            engine.recv_requests()
            if pending is not None:
                pending = _after_a_turn(engine, pending, turn(engine, pending))
            if pending is None:
                batch = engine.get_next_batch_to_run()
                if batch:
                    pending = engine.run_batch(batch)
                else:
                    engine.on_idle()
            yield pending.batch if pending else None  # type: ignore[misc]

    return loop


def _after_a_turn(engine: Engine, pending: Step, given: Any) -> Step | None:
    """The step that a turn gave back, or None.

    Raises:
        Mistake: it gave something else, or a step was never processed.
    """
    if given is not None and not isinstance(given, Step):
        kind = type(given).__name__
        raise Mistake(f"`turn` gave back a {kind}, but it must give the step it launched, or None")
    newest, in_flight = engine.scheduler.leases.launched_step, engine.scheduler.batches_in_flight
    if in_flight == 2 or (in_flight and newest == pending.batch.step):
        raise Mistake(f"`turn` never processed `pending`, which was step {pending.batch.step}")
    if in_flight and given is None:
        raise Mistake(f"`turn` launched step {newest} but gave back None")
    return given


# -- When the chain must break ---------------------------------------------------------------------


def chains(may_chain: Any, scheduler: Scheduler, batch: ScheduleBatch) -> bool:
    """Call the learner's ``may_chain`` for a decode batch, as ``repeat.py:can_chain``.

    Raises:
        Mistake: the answer is no truth value.
    """
    if batch.num_extend_reqs or any(r.device_len > scheduler.config.row_len for r in batch.reqs):
        return False
    if not all(map(scheduler.decode.may_run, batch.reqs)):
        return False
    chunked = scheduler.prefill.chunked_req
    short = scheduler.leases.pages_short([req for req in batch.reqs if req.lease is not None])
    chosen = may_chain(
        list(batch.rids),
        [req.rid for req in scheduler.running_batch],
        [req.rid for req in scheduler.waiting_queue],
        chunked.rid if chunked else None,
        max(0, short),
    )
    if type(chosen) is not bool:
        raise Mistake(f"`may_chain` gave {chosen!r}, but it must give True or False")
    return chosen


def before_a_step(random: Random) -> tuple[list[str], list[str], list[str], str | None, int]:
    """Some requests decode; one may have ended, joined (its KV came over a link) or arrived."""
    rids = random.sample("abcdef", random.randint(4, 6))
    if is_large(random):
        rids = [f"r{at}" for at in range(of_any_size(random, 7, 200))]
        random.shuffle(rids)
    *names, joined, chunked, waits = rids
    share = 0.8 if len(names) < 4 else random.choice((0.8, 1.0))
    running = [name for name in names if random.random() < share]
    if random.random() < 0.1:
        running.insert(random.randint(0, len(running)), joined)
    waiting, half = [waits] * (random.random() < 0.2), chunked if random.random() < 0.2 else None
    return names, running, waiting, half, max(0, random.randint(-4, 2))


GIVEN_UP = case(  # no request waits, but one of two has ended
    "a: 1 2 3 -> 12; b: 4 5 6 -> 12, gone at 4", "mlx_async", kv=64, rows=2, cost=COST
)

EXERCISES = (
    Exercise(
        name="generate",
        hole=Pure(lambda: RUNS, holds=in_order, call=generated, draw=as_it_ran),
        solution="""
            def generate(step, first, count, async_eval, host_work):
                tokens, y = [], step(first)
                async_eval(y)
                for left in reversed(range(count)):
                    following = step(y)
                    if left:
                        async_eval(following)
                    tokens.append(y.item())
                    host_work(tokens[-1])
                    y = following
                return tokens
        """,
        hints=(
            "`item` is where the host stands still. What could the device have got before?",
            "Build the next token's graph on `y` itself, before you read `y`.",
            "Before the loop: hand over the first. In it: build, hand over, read, work. At the "
            "last token there is nothing more to hand over.",
        ),
        why=(
            "A lazy array is a promise that one can build upon. So the next step goes to the "
            "device before this one is read, and the host works meanwhile. No queue and no buffer "
            "is needed: the graph itself contains which step reads which."
        ),
    ),
    Exercise(
        name="turn",
        hole=Loop("mlx_async", call=loop_of_turns, bug=FED_THE_NEWEST),
        solution="""
            def turn(engine, pending):
                batch = engine.chain(pending.batch)
                following = engine.run_batch(batch, pending) if batch else None
                engine.process_batch_result(pending)
                return following
        """,
        workloads=Workloads("mlx_async", levels=("stops",)),
        no_worse=(("makespan", 1.0),),
        reach=8,
        hints=(
            "Which call waits for the device? What could be launched before it?",
            "The chained step reads tokens that do not exist yet. Which call needs their step?",
        ),
        why=(
            "The next step is built on `pending`'s tokens while they are still a graph. Only then "
            "the host waits for them. A step without the step that it is built on reads the newest "
            "token that the host has, which is one too old."
        ),
    ),
    Exercise(
        name="may_chain",
        hole=Function("scheduler.repeat:can_chain", chains, asked=before_a_step),
        solution="""
            def may_chain(batch, running, waiting, chunked, pages_short):
                if waiting or chunked is not None:
                    return False
                return batch == running and pages_short == 0
        """,
        workloads=Workloads("mlx_async", levels=("tight",), seeds=60, cases=(GIVEN_UP,)),
        no_worse=(("makespan", 1.0),),
        reach=20,
        beside="",
        hints=(
            "The scheduler is not asked while the chain holds. Which requests would suffer?",
            "A request that waits, one that is half computed, one that has ended, and one without "
            "a free page.",
            "If a request ended or joined, `batch` and `running` differ.",
        ),
        why=(
            "A chain is a decision that was made once and is repeated. It may be repeated as long "
            "as everything is as it was: the same requests, no new request, and room for one token "
            "more each. The scheduler's state has to be updated all the same (#30093)."
        ),
    ),
)  # fmt: skip
