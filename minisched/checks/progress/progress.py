"""Progress and order: who may run runs, or there is a reason; and nobody goes before their turn.

An observer that looks on at every decision of a scheduler. It reads what anybody may read (the
requests, the settings, what memory is left, the prefix cache) and none of the policies' code: their
rules are told here a second time, in few words, and where the two disagree one of them is wrong.

*Progress.* A running request may run if the host knows its next token, or need not, and there is
room within its length. It is in the step, unless prompts go first (``run_first``), the budget of a
step is spent, or memory does not reach. A prompt in chunks goes on as far as budget and memory go.
The first who waits is admitted, unless no row is free, the budget is spent, another prompt is in
chunks, those who decode go first or wait for memory on its way back (``starved``), or memory does
not reach for it and for what is kept back of what everybody who runs may still say. Whom memory
has refused is asked again when the rules say so (``ask_again``). A burst of ``multi_step`` is deaf
to all this for as many steps as it has. No more steps are in flight than the loop's depth, and who
has not ended is never lost sight of.

*Order.* Those who decode are in a step as their prompts were done. Those admitted are the first in
the queue (``queue_order.py``), in which a retracted request comes last or has its old place, as the
rules say (``policy/rules.py``; what differs there is told here again). Nobody is admitted beside a
prompt that could not end, or while somebody starves. Who loses their memory is the one whom the
rule names (``victims.py``), and only where memory does not reach. On the decode side of ``pd``
pages are reserved first come, first served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...core import Lease, NoBatch, Request, ScheduleBatch
from ...engine.engine import Engine
from ...policy import Plan
from ...scheduler import Scheduler
from ...scheduler.pd import DecodeScheduler, PrefillScheduler
from ..laws import Broken
from .decision import Before, Decision, Remembered
from .victims import not_the_one


class Progress:
    """Both laws, over every engine of a run; the first finding of each is kept."""

    def __init__(self) -> None:
        self.findings: dict[str, str] = {}

    def watch(self, engine: Engine) -> None:
        """Before an engine starts: look on at all that its scheduler decides."""
        watched = Watched(engine.scheduler, engine.worker.depth, self.findings)
        watched.listen()
        if isinstance(engine.scheduler, DecodeScheduler):
            watched.listen_to_reservations(engine.scheduler)

    def check(self, law: str) -> None:
        """When the run is over.

        Raises:
            Broken: ``law``, which is ``progress`` or ``order``, did not hold.
        """
        if law in self.findings:
            raise Broken(f"{law}: {self.findings[law]}")


class Watched:
    """One scheduler, whose public methods are listened to."""

    def __init__(self, scheduler: Scheduler, depth: int, findings: dict[str, str]) -> None:
        self.scheduler, self.depth, self.findings = scheduler, depth, findings
        self.remembered = Remembered()
        self.before: Before | None = None  # while it decides
        self.repeats = 0  # steps of a burst behind its first

    def listen(self) -> None:
        """Hear who comes, what is decided, and who loses memory."""
        scheduler, retraction = self.scheduler, self.scheduler.retraction
        queue = scheduler.waiting_queue
        add, retract, plan = queue.add, retraction.retract, scheduler.run_first.plan
        next_batch, chain, repeat = scheduler.next_batch, scheduler.chain, scheduler.repeat

        def added(req: Request) -> None:
            keeps_place = scheduler.config.in_force.retracted_waits == "old_place"
            if not (req.num_stale_output_tokens or (keeps_place and req.retractions)):
                self.remembered.comes_to_wait(req)
            add(req)

        def decided() -> ScheduleBatch | NoBatch:
            if scheduler.batches_in_flight == 0 or not scheduler.running_batch:
                self.remembered.starving = None
            self.before, self.repeats = Before(scheduler, self.remembered), 0
            batch = next_batch()
            self._judge(self.before, batch or None)
            return batch

        def chained(batch: ScheduleBatch) -> ScheduleBatch:
            before, again = Before(scheduler, self.remembered), chain(batch)
            self._judge(before, again, is_chained=True)
            return again

        def repeated(batch: ScheduleBatch) -> ScheduleBatch | None:
            again, most = repeat(batch), scheduler.decode.overrun
            self.repeats += again is not None
            if again and self.repeats > most:
                self._keep("progress", [
                    f"step {again.step} is the {self.repeats}th in a row that asks nobody else, "
                    f"but a burst has at most {most} of them"
                ])  # fmt: skip
            return again

        def planned() -> Plan:
            if self.before is None:
                return plan()
            self.before.begins()
            made = plan()
            self.before.ends()
            return made

        def retracted(req: Request, reason: str) -> None:
            if (before := self.before) is None:
                retract(req, reason)
                return
            if reason == "priority":
                before.make_way(req)
            else:
                before.is_short = True
                ready, running = before.still_ready, self.remembered.running
                wrong = not_the_one(scheduler, req, ready, reason, running)
                self._keep("order", wrong)
            retract(req, reason)
            before.retracted.append(req)
            before.in_round.append(req)
            before.waits(req)

        queue.add = added  # type: ignore[method-assign]
        scheduler.next_batch = decided  # type: ignore[method-assign]
        scheduler.chain = chained  # type: ignore[method-assign]
        scheduler.repeat = repeated  # type: ignore[method-assign]
        scheduler.run_first.plan = planned  # type: ignore[method-assign]
        retraction.retract = retracted  # type: ignore[method-assign]

    def listen_to_reservations(self, scheduler: DecodeScheduler) -> None:
        """Hear who gets pages on the decode side of ``pd``."""
        pop_preallocated, table = scheduler.pop_preallocated, scheduler.table

        def popped() -> list[tuple[Request, Lease]]:
            queue = list(scheduler.prealloc_queue.values())
            found = pop_preallocated()
            taken = [req for req, _ in found]
            left = [req for req in queue if req not in taken]
            self._keep("order", (
                f"{req.rid} gets its pages before {other.rid}, which asked for them earlier"
                for req in taken
                for other in queue[: queue.index(req)]
                if other in left
            ))  # fmt: skip
            need = [scheduler.allocator.pages_for(req.max_device_len) for req in left[:1]]
            can = scheduler.allocatable_pages
            self._keep("progress", (
                f"{left[0].rid} gets no pages, when {table.available_size} of {table.size} rows "
                f"are free, and it needs {pages} pages, of which {can} can be reserved"
                for pages in need
                if pages <= can and table.available_size
            ))  # fmt: skip
            return found

        scheduler.pop_preallocated = popped  # type: ignore[method-assign]

    def _judge(self, before: Before, batch: ScheduleBatch | None, is_chained: bool = False) -> None:
        self.before = None
        self._keep("progress", self._too_deep(batch))
        self._keep("progress", self._lost_sight_of())
        if len(self.scheduler.live) == before.num_live:  # else one was given up: all has changed
            decision = Decision(before, batch, is_chained)
            self._keep("progress", decision.left_out())
            self._keep("order", decision.out_of_order())
        if batch is not None:
            self.remembered.commits(batch, self.scheduler)

    def _keep(self, law: str, found: Iterable[str]) -> None:
        for sentence in found:
            self.findings.setdefault(law, sentence)

    def _too_deep(self, batch: ScheduleBatch | None) -> Iterator[str]:
        in_flight = self.scheduler.batches_in_flight
        if batch and in_flight > self.depth:
            yield (
                f"with step {batch.step} there are {in_flight} steps in flight, but the loop has "
                f"at most {self.depth}"
            )

    def _lost_sight_of(self) -> Iterator[str]:
        scheduler, chunked = self.scheduler, self.scheduler.prefill.chunked_req
        known = {*scheduler.waiting_queue, *scheduler.running_batch}
        known |= {chunked.req} if chunked else set()
        if isinstance(scheduler, PrefillScheduler):
            known |= {*scheduler.bootstrap_queue.values()}
        if isinstance(scheduler, DecodeScheduler):
            known |= {*scheduler.unanswered.values()}
        for req in scheduler.live.values():
            if req not in known:
                yield f"{req.rid} has not ended, but neither waits nor runs after {scheduler.step}"
