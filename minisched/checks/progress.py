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
the queue (``QueueOrder``), in which a retracted request comes last or has its old place, as the
rules say (``policy/rules.py``; what differs there is told here again). Nobody is admitted beside a
prompt that could not end, or while somebody starves. Who loses their memory is the one whom the
rule names (``not_the_one``), and only where memory does not reach. On the decode side of ``pd``
pages are reserved first come, first served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf
from typing import NamedTuple

from ..core import Lease, NoBatch, Request, Row, ScheduleBatch
from ..core.logprobs import next_logprob_at
from ..engine.engine import Engine
from ..memory import BlockPool, RadixCache
from ..memory.block_pool import Block
from ..memory.radix_cache import TreeNode
from ..policy import Plan
from ..policy.budget import CLIP_MAX_NEW_TOKENS
from ..policy.rules import Rules
from ..policy.waiting import CHECK_THRESHOLD, DEPRIORITIZE_THRESHOLD, LONG_QUEUE
from ..scheduler import Scheduler, SchedulerConfig
from ..scheduler.pd import DecodeScheduler, PrefillScheduler
from .history import counted

# -- One decision of a scheduler, held against the rules of who runs and who is admitted -----------


class Full(NamedTuple):
    """Memory has refused the first who waited; by then it had gone back so many times."""

    since: int
    until: int


@dataclass
class Remembered:
    """What has to be known of the decisions before."""

    places: dict[Request, int] = field(default_factory=dict)  # in which order they came to wait
    running: list[Request] = field(default_factory=list)  # in which order their prompts were done
    num_places: int = 0
    starving: Request | None = None  # may run, and waits for memory on its way back
    full: Full | None = None  # when memory refused the first

    def comes_to_wait(self, req: Request) -> None:
        """It is behind all who have come before."""
        self.places[req] = self.num_places
        self.num_places += 1

    def look_at_running(self, scheduler: Scheduler) -> None:
        """Forget who has left, and learn of those whose prompt was done elsewhere (``pd``)."""
        running = scheduler.running_batch
        self.running = [req for req in self.running if req in running]
        self.running += [req for req in running if req not in self.running]

    def commits(self, batch: ScheduleBatch, scheduler: Scheduler) -> None:
        """Those whose prompts are done run from now on; ahead of those who decode beside them."""
        rows = batch.rows[: batch.num_extend_reqs]
        done = [row.req for row in rows if row.deliver and row.req not in self.running]
        is_mixed = len(batch.rows) > len(rows) and scheduler.config.enable_mixed_chunk
        self.running = done + self.running if is_mixed else self.running + done


class Before:
    """What was true when the scheduler was asked for its next step, and what happened since."""

    def __init__(self, scheduler: Scheduler, remembered: Remembered) -> None:
        chunked, config = scheduler.prefill.chunked_req, scheduler.config
        live = scheduler.live.values()
        self.scheduler, self.remembered = scheduler, remembered
        remembered.look_at_running(scheduler)
        self.look_at_queue()
        self.running = list(remembered.running)
        self.ready = [  # those of them that may run
            req
            for req in self.running
            if req.device_len < req.max_device_len + scheduler.decode.overrun
            and (config.run_ahead or req.computed_len < req.known_len)
        ]
        self.reach = {req: (req.reach_with(0), req.next_draft_len) for req in self.ready}
        holders = [*live, *self.running]
        self.pages = {req.lease: len(req.lease.pages) for req in holders if req.lease}
        self.chunked = chunked
        self.ratio = scheduler.new_token_ratio.current
        self.kept = {req: kept_back(req, self.ratio, config) for req in self.running}
        self.num_released = scheduler.leases.num_released
        self.num_live = len(live)
        self.retracted: list[Request] = []  # since then
        self.in_round: list[Request] = []  # since it began anew, with the memory of who gave way
        self.is_short = False  # somebody had to, so that others can decode
        self.preemptions: list[Preemption] = []
        self.num_rounds = 0
        self.found_last: dict[Request, Found] = {}  # by who still waits, once it is planned

    def begins(self) -> None:
        """It begins, or begins anew; a chunk may have entered the cache just before."""
        self.in_round = []
        self.num_rounds += 1
        if self.num_rounds == 1:
            self.look_at_queue()

    def ends(self) -> None:
        """It is planned; what is evicted at the commit, those who were asked have still found."""
        if self.scheduler.config.in_force.run_first == "unified":
            waiting = [req for req in self.waiting if req in self.scheduler.waiting_queue]
            self.found_last = {req: Found.now(self.scheduler, req) for req in waiting}

    def look_at_queue(self) -> None:
        """Who waits now."""
        self.order = QueueOrder(self.scheduler, self.remembered.places)
        self.waiting: dict[Request, Found] = {}  # and what each finds in the cache
        self.asked_len: dict[Request, int] = {}
        for req in self.scheduler.waiting_queue:
            self.waits(req)

    def waits(self, req: Request) -> None:
        """A request is in the queue; with stale output in flight it can't be admitted."""
        if req.num_stale_output_tokens:
            return
        self.order.add(req)
        self.asked_len[req] = req.asked_len
        self.waiting[req] = Found.now(self.scheduler, req)

    @property
    def still_ready(self) -> list[Request]:
        """Who may run and has its memory."""
        return [req for req in self.ready if req not in self.retracted]

    def memory(self, taken: int = 0) -> MemoryAtHand:
        """What a request of high priority could have, when the step had not ``taken`` its pages."""
        leases = self.scheduler.leases
        has_row = bool(leases.table.available_size or leases.returning)
        return MemoryAtHand(leases.available_pages + taken, has_row)

    def make_way(self, victim: Request) -> None:
        """One has to, for whoever is first in the queue."""
        waiting = [req for req in self.waiting if req.lease is None]
        for head in self.order.heads(waiting):
            made = [item for item in self.preemptions if item.head is head]
            if not made:
                admitted = [req for req in self.waiting if req.lease is not None]
                asked_len = self.asked_len[head]
                places = dict(self.remembered.places)
                made = [Preemption(head, asked_len, admitted, self.memory(), places)]
                self.preemptions += made
            made[0].victims.append(victim)


@dataclass
class Found:
    """What a waiting request finds in the cache: nodes of a tree or blocks, and pages of each."""

    path: Sequence[tuple[TreeNode, int]] | Sequence[tuple[Block, int]]

    @classmethod
    def now(cls, scheduler: Scheduler, req: Request) -> Found:
        """As the cache is; to look changes nothing."""
        num_prompt, num_known = len(req.prompt), len(req.input_token_logprobs)
        wanted = next_logprob_at(req.params, num_prompt, num_known)
        tokens = req.known_tokens(0, min(wanted, req.known_len - 1))
        if scheduler.tree is not None:
            return cls(walk(scheduler.tree, tokens))
        return cls(blocks_along(scheduler, tokens))

    @property
    def num_pages(self) -> int:
        """Pages that need not be computed."""
        return sum(count for _, count in self.path)

    @property
    def to_lock(self) -> int:
        """Those of them that could be evicted, until it is admitted."""
        return sum(count for node, count in self.path if not is_used(node))


def blocks_along(scheduler: Scheduler, tokens: Sequence[int]) -> list[tuple[Block, int]]:
    """Where ``tokens`` lead in a block pool: a page each, as long as one has their hash."""
    pool, found = scheduler.page_cache, list[tuple[Block, int]]()
    if isinstance(pool, BlockPool):
        for block_hash in pool.hashes(tokens):
            same = pool.cached_block_hash_to_block.get(block_hash)
            if not same:
                break
            found.append((next(iter(same.values())), 1))
    return found


def is_used(node: TreeNode | Block) -> bool:
    """Whether a request holds it."""
    return bool(node.ref_cnt if isinstance(node, Block) else node.lock_ref)


@dataclass
class Room:
    """What is left in one step for the next prompt, in tokens (SGLang ``PrefillAdder``).

    Where all that they may say is kept back, memory is asked for by each on its own.
    """

    rules: Rules
    page_size: int
    total: float  # memory, less what those who run may still say
    now: float
    prompts: float  # of max_prefill_tokens
    chunk: float

    @property
    def in_full(self) -> bool:
        """Whether all is kept back that anybody may say, or nothing, and not a share."""
        return self.rules.reserves != "ratio"

    def charge(self, row: Row) -> None:
        """A prompt, or a part of it, takes whole pages, one more, and what it may say."""
        tokens, req = self._whole(row.extend_len), row.req
        if self.rules.reserves == "prompt":
            self.now -= self._whole(req.known_len) - self._whole(row.start)
        elif self.in_full:
            self.total -= req.known_len - row.start + new_tokens(req)
            self.now -= self._whole(row.end) - self._whole(row.start)
        else:
            self.total -= tokens + (all_tokens(req) if row.deliver else 0) + self.page_size
            self.now -= tokens + self.page_size
        self.prompts -= self.paid(row.extend_len)
        self.chunk -= self.paid(row.extend_len)

    def paid(self, extend_len: int) -> int:
        """What the budget of a step pays for so much of a prompt."""
        in_tokens = self.rules.budget_counts == "tokens"
        return extend_len if in_tokens else self._whole(extend_len)

    def is_short(self, req: Request, extend_len: int, to_lock: int) -> bool:
        """Whether memory does not reach for a request that finds ``to_lock`` tokens free."""
        total, need = self.total - to_lock, extend_len + new_tokens(req)
        if self.rules.reserves == "prompt":
            return self._whole(extend_len) > self.now - to_lock
        if self.in_full:
            return need > total or self._whole(int(min(extend_len, self.chunk))) > (
                self.now - to_lock
            )
        return need + self.page_size >= total - ROUNDING

    def _whole(self, tokens: int) -> int:
        return ceil(tokens / self.page_size) * self.page_size

    @property
    def is_spent(self) -> bool:
        """Whether nobody else is asked."""
        if self.in_full:
            return min(self.prompts, self.chunk) <= 0
        return min(self.total, self.now, self.prompts, self.chunk) <= ROUNDING


class Decision:
    """What came of it: the step that was committed, or none."""

    def __init__(self, before: Before, batch: ScheduleBatch | None, is_chained: bool) -> None:
        self.before, self.remembered = before, before.remembered
        self.scheduler, self.leases = before.scheduler, before.scheduler.leases
        self.config = before.scheduler.config
        self.step = self.scheduler.step
        rows = batch.rows if batch else ()
        first = batch.num_extend_reqs if batch else 0
        self.prompts = {row.req: row for row in rows[:first]}
        self.decodes = {row.req: row for row in rows[first:]}
        self.admitted = [row.req for row in rows[:first] if row.lease.num_chunks == 1]
        self.rules = self.config.in_force
        self.is_unified = self.rules.run_first == "unified" and not is_chained
        self.was_starving = self.remembered.starving
        self.num_mixed = len(before.running) if self.config.enable_mixed_chunk else 0
        self.preempts = before.order.by_priority and not self.is_unified
        self.left = self.config.prefill_budget  # tokens for prompts (unified)
        self.unheeded: list[str] = []  # requests of high priority

    def left_out(self) -> Iterator[str]:
        """Who could be in the step, and is not."""
        yield from self._of_running_unified() if self.is_unified else self._of_running()
        yield from self._of_chunked()
        yield from self._of_waiting()

    def out_of_order(self) -> Iterator[str]:
        """Who was admitted before others, and who made way wrongly. Ask ``left_out`` first."""
        yield from self.unheeded
        yield from self._of_decodes()
        yield from self._of_admitted()
        yield from self._of_preemptions()

    # -- who decodes ---------------------------------------------------------------------------

    def _of_running(self) -> Iterator[str]:
        """All who may run are in a step of decodes; beside prompts all of them or nobody."""
        missing = [req for req in self.before.still_ready if req not in self.decodes]
        if self.decodes:
            self.remembered.starving = None
        if not missing:
            return
        need = sum(self.leases.pages_lacking(req.lease, req.reach) for req in missing if req.lease)
        is_short = need > self.leases.available_pages and not self.decodes
        if not self.prompts and is_short:
            back = self.leases.available_pages + self.leases.pages_returning
            is_alone = len(self.scheduler.running_batch) + bool(self.before.chunked) <= 1
            if is_alone or need <= back or not about_to_end(self.scheduler):
                self.remembered.starving = missing[0]
        elif self.prompts and not self.decodes and self.rules.run_first == "prefill":
            cannot_mix = wants_logprobs([*self.before.ready, *self.prompts])
            if self.config.enable_mixed_chunk and not (is_short or cannot_mix):
                yield self._may_run(missing[0])
        else:
            yield self._may_run(missing[0])

    def _of_running_unified(self) -> Iterator[str]:
        """One after the other, as far as the budget goes; who finds no memory waits for it."""
        missing: dict[Request, int] = {}
        for req in self.before.still_ready:
            if not self.left:
                break
            reach, drafts = self.before.reach[req]
            drafts = min(drafts, self.left - 1)
            assert req.lease is not None
            need = self._pages(reach + drafts) - self.before.pages[req.lease]
            if req in self.decodes:
                self.left -= 1 + drafts
            else:
                missing[req] = need
        self.remembered.starving = next(iter(missing), None)
        for req, need in missing.items():
            if need <= self._available() and not self.before.retracted:
                yield self._may_run(req)

    def _may_run(self, req: Request) -> str:
        token = "is known" if req.computed_len < req.known_len else "need not be known"
        rows, most = len(self.prompts) + len(self.decodes), self.config.max_running_requests
        return f"{req.rid} may run (its token {token}, {rows} of {most} rows used) and {self._not}"

    @property
    def _not(self) -> str:
        some = self.prompts or self.decodes
        return f"is not in step {self.step}" if some else f"nothing runs after step {self.step}"

    # -- who waits -----------------------------------------------------------------------------

    def _of_chunked(self) -> Iterator[str]:
        """A prompt in chunks goes on in the next step that has prompts."""
        req = self.before.chunked
        if req is None or req.lease is None or req in self.prompts or self._must_stand_back():
            return
        pages = self._available() + len(req.lease.pages)
        room = pages * self.config.page_size - req.computed_len
        if self.is_unified:
            # as a whole, or it gives way, or waits where what is on its way back is enough
            end = req.computed_len + min(req.extend_len, self.left)
            short = self.leases.pages_lacking(req.lease, end) - self._available()
            room = 0 if 0 < short <= self.leases.pages_returning else max(1, room)
        chunk = inf if self.config.chunked_prefill_size == -1 else self.config.chunked_prefill_size
        left = self.left if self.is_unified else chunk - self.num_mixed
        if room > 0 and left > 0:
            yield (
                f"{req.rid} has come to position {req.computed_len} of its prompt, with memory for "
                f"{room} more, and {self._not}"
            )

    def _of_waiting(self) -> Iterator[str]:
        """The first who waits, behind those admitted, has a reason to."""
        waiting, now = self._waiting(), self.leases.num_released
        if self.before.chunked and self.rules.ask_again == "left" and not self.is_unified:
            self.remembered.full = None
        if not waiting or self._is_chunked():
            return
        if self._must_stand_back():
            if self.before.is_short:  # it may have been refused before and after
                self.remembered.full = Full(self.before.num_released, now)
            return
        heads, is_full = self.before.order.heads(waiting), self._is_full()
        reasons = [self._why_not(head) for head in heads]
        if NO_MEMORY in reasons:
            if self._marks_full():
                self.remembered.full = Full(now, now)
        elif not (any(reasons) or is_full):
            table, pages = self.leases.table, self.config.num_pages
            yield (
                f"{heads[0].rid} waits and is first in the queue, {table.available_size} of "
                f"{table.size} rows are free, {self._available()} of {pages} pages can be had, and "
                f"{'it ' if self.prompts or self.decodes else ''}{self._not}"
            )

    def _marks_full(self) -> bool:
        """Whether a refusal for want of memory lasts longer than this step."""
        rule = self.rules.ask_again
        if self.is_unified or rule == "every_step":
            return rule != "every_step"
        is_mixed = self.prompts and self.decodes  # then the batch that was full is no more
        return bool(self.before.running) and not is_mixed and not self.preempts

    def _why_not(self, req: Request) -> str:
        """Why the first who waits is not admitted, or nothing."""
        size, table = self.config.page_size, self.leases.table
        found = (self.before.found_last if self.is_unified else self.before.waiting)[req]
        hit_len, to_lock = found.num_pages * size, found.to_lock
        extend_len = req.known_len - hit_len
        if self.is_unified:
            left = self.left - sum(row.extend_len for row in self.prompts.values())
            need = self._pages(req.known_len) - hit_len // size
            is_short = not table.available_size or need > self._available() - to_lock
            return NO_BUDGET if left <= 0 else NO_MEMORY if is_short else ""
        room = self._room(self._available(), self.prompts)
        if room.is_spent:
            is_memory = min(room.total, room.now) <= ROUNDING and not room.in_full
            return NO_MEMORY if is_memory else NO_BUDGET
        if self.before.preemptions:
            return NO_MEMORY  # from then on each needs somebody's row
        no_cache = self.scheduler.page_cache is None
        if req.params.ignore_eos and no_cache and not room.in_full and table.available_size:
            if not self._ends_in_time(req, room):
                return self._unless_alone()
            return NO_BUDGET if req.known_len > room.chunk and room.chunk <= 0 else ""
        if not table.available_size or room.is_short(req, extend_len, to_lock * size):
            return self._unless_alone() and self._others_make_no_way(req, room)
        whole = ceil(extend_len / size) * size
        least: float = size if self.rules.chunk_ends == "page" else 1
        if self.rules.who_is_cut == "first" and self.prompts:
            least = inf
        is_much = self.prompts and room.chunk == inf and whole >= room.prompts
        is_cut_to_nothing = room.paid(extend_len) > room.chunk and room.chunk < least
        return NO_BUDGET if is_much or is_cut_to_nothing else ""

    def _others_make_no_way(self, req: Request, room: Room) -> str:
        """They don't have to, unless its priority lets it come at their cost."""
        if self.preempts and not (self.before.preemptions or self._is_full()):
            memory = self.before.memory(self._available() - self.leases.available_pages)
            asked_len, places = self.before.asked_len[req], self.remembered.places
            named = self._named(req, asked_len, room.total, places)
            if all(named) and not memory.has_row:
                low = named[0][0]
                self.unheeded.append(
                    f"{req.rid} (priority {req.priority}) waits, and {low.rid} (priority "
                    f"{low.priority}) does not make way behind step {self.step}"
                )
        return NO_MEMORY

    def _named(
        self, head: Request, asked_len: int, left: float, places: Places
    ) -> list[list[Request]]:
        """Who has to make way for ``head`` where ``left`` tokens of memory are kept for nobody.

        Where rows are lacking (SGLang ``preempt_to_schedule``), only what is kept for them comes
        free, and it asks for what it had to compute when it was asked last, and all it may say.
        """
        gives = {req: self.before.kept[req] for req in self.before.running}
        need = asked_len + all_tokens(head) - left
        return who_makes_way(head, need, gives, self.config, places)

    def _unless_alone(self) -> str:
        """Want of memory, but not where nobody else holds any, and that is no reason."""
        admits = self.rules.too_long_alone == "admitted"
        return "" if self.leases.is_idle and admits else NO_MEMORY

    def _ends_in_time(self, req: Request, room: Room) -> bool:
        """Whether memory suffices for all who run and ``req``, at each moment when one ends.

        Told of those who ignore EOS where nothing is cached (``add_one_req_ignore_eos``).
        """
        need = self._pages(req.known_len) * self.config.page_size + self.config.page_size
        if need > min(room.total, room.now):
            return False
        line: list[Request] = []
        prompts = list(self.prompts)
        for at, asked in enumerate([*prompts, req]):
            if not asked.params.ignore_eos or asked is self.before.chunked:
                continue
            if not line:
                line = [asked, *self.before.running, *prompts[:at]]
                line = sorted((one for one in line if self._left(one) > 0), key=self._left)
            elif self._left(asked) > 0:
                behind = sum(self._left(one) < self._left(asked) for one in line)
                line.insert(min(behind, len(line) - 1), asked)
        free = room.now - need
        for at, one in enumerate(line):
            beside = len(line) - at
            if free - self._left(one) * beside <= beside:
                return False
            free += one.known_len
        return True

    def _left(self, req: Request) -> float:
        """Tokens that one may still say, by the rule of those who ignore EOS."""
        share = 1.0 if req.params.ignore_eos else self.before.ratio
        return req.params.max_new_tokens * share - len(req.output_ids)

    def _of_decodes(self) -> Iterator[str]:
        """They are in a step as their prompts were done; whoever leaves, the others keep it."""
        running = self.before.running
        for one, other in pairwise(self.decodes):
            if running.index(one) > running.index(other):
                yield f"{one.rid} is in step {self.step} before {other.rid}, which ran before it"

    def _of_admitted(self) -> Iterator[str]:
        """Those admitted are the first in the queue, and it was time for them."""
        order, waiting = self.before.order, self._waiting()
        starving = self.remembered.starving if self.is_unified else self.was_starving
        for at, req in enumerate(self.admitted):
            admitted = f"{req.rid} is admitted in step {self.step}"
            for other in [*waiting, *self.admitted[at + 1 :]]:
                if order.precedes(other, req):
                    yield f"{admitted} before {other.rid}, which by {order.policy} goes first"
            if self._is_chunked() and self.before.chunked:
                yield f"{admitted} before the prompt of {self.before.chunked.rid} is done"
            if starving and starving in self.before.ready:
                yield f"{admitted}, when {starving.rid} may run and waits for memory"
            if self.is_unified and self.before.in_round:
                yield f"{admitted}, when {words(self.before.in_round)} had to make way for others"

    def _of_preemptions(self) -> Iterator[str]:
        """Those who made way for a request of higher priority are those whom the rule names."""
        preemptions = [] if self.before.is_short else self.before.preemptions
        for item in preemptions[:1]:  # those behind it find memory that was given back
            earlier = [req for req in (self.before.chunked, *item.admitted) if req]
            left = self._room(item.memory.available, earlier).total
            named = self._named(item.head, item.asked_len, left, item.places)
            if item.victims not in named:
                yield (
                    f"behind step {self.step} {words(item.victims)} had to make way for "
                    f"{item.head.rid}, but the rule names {words(named[0])}"
                )

    # -- what the rules ask for ----------------------------------------------------------------

    def _waiting(self) -> list[Request]:
        """Those who still wait, and could come."""
        queue = self.scheduler.waiting_queue
        return [req for req in self.before.waiting if req in queue]

    def _is_chunked(self) -> bool:
        """Whether a prompt was in chunks before, and is not done with this step."""
        req = self.before.chunked
        if req is None or req in self.before.retracted:
            return False
        return req not in self.prompts or not self.prompts[req].deliver

    def _must_stand_back(self) -> bool:
        """Whether the rule of who runs first has let no prompt come."""
        starving = self.remembered.starving
        if self.is_unified:
            return bool(self.before.retracted or starving)
        if self.rules.run_first == "decode" and (self.decodes or starving):
            return True
        return self.was_starving is not None or self.before.is_short

    def _is_full(self) -> bool:
        """Whether nothing has changed since memory refused the first who waits."""
        full = self.remembered.full
        if self.rules.ask_again == "every_step" or full is None:
            return False
        return full.since <= self.before.num_released <= full.until

    def _available(self) -> int:
        """Pages that could be had when the last prompt had been looked at.

        A prompt takes its pages at the commit; with vLLM's rule as it is planned, as decodes do.
        """
        if self.is_unified:
            return self.leases.available_pages
        taken = {
            req: len(row.lease.pages) - self.before.pages.get(row.lease, row.lease.shared_pages)
            for req, row in {**self.prompts, **self.decodes}.items()
        }
        return self.leases.available_pages + sum(taken.values())

    def _room(self, available: int, prompts: Iterable[Request]) -> Room:
        """What is left behind those prompts of the step."""
        config, size, mixed = self.config, self.config.page_size, self.num_mixed
        chunk = inf if config.chunked_prefill_size == -1 else config.chunked_prefill_size
        kept = sum(self.before.kept.values())
        now = available * size - mixed
        most = config.max_prefill_tokens - mixed
        room = Room(self.rules, size, now - kept, now, most, chunk - mixed)
        for row in [self.prompts[req] for req in prompts if req in self.prompts]:
            room.charge(row)
        return room

    def _pages(self, length: int) -> int:
        """Pages of so many positions."""
        return ceil(length / self.config.page_size)


NO_BUDGET, NO_MEMORY = "the budget of a step", "rows or memory"


def wants_logprobs(reqs: Iterable[Request]) -> bool:
    """Whether one of them wants log-probabilities: then SGLang mixes no batch."""
    return any(req.params.return_logprob for req in reqs)


# -- The order in which waiting requests are to be admitted, as ``schedule_policy`` declares it ----
#
# Told a second time, without the code of the policies and without touching the cache they look at:
# ``Decision`` holds every admission against it.

Pages = tuple[tuple[int, ...], ...]  # tokens, page by page
Path = list[tuple[TreeNode, int]]  # from the root down: nodes, and how many pages of each

BY_CACHE = ("lpm", "dfs-weight")


class QueueOrder:
    """In which order those who wait go, as the cache is when they are put in order.

    ``fcfs``: as they came to wait. ``lof``: the longest output first; priority, if it is on, goes
    before both. ``random``: any. ``lpm``: who finds most in the cache, but last who would find more
    once an earlier one has run. ``dfs-weight``: depth first through the cache, the branch first on
    which most of them wait. Among equals whoever came first; with the last two, whoever stood first
    after the pass before. Of branches that weigh the same, either. Without a cache these two are
    ``fcfs``; where many wait, ``lpm`` leaves all as they stand.
    """

    def __init__(self, scheduler: Scheduler, places: Mapping[Request, int]) -> None:
        self.config, self.places = scheduler.config, places
        self.tree = scheduler.tree
        self.policy = self.config.schedule_policy
        self.by_priority = self.config.enable_priority_scheduling or self.policy == "priority"
        if self.tree is None and self.policy in BY_CACHE:
            self.policy = "fcfs"
        self.stands = {req: at for at, req in enumerate(scheduler.waiting_queue)}
        self.leaves_all = self.policy == "lpm" and len(scheduler.waiting_queue) > LONG_QUEUE
        self.found: dict[Request, Pages] = {}  # what each finds in the cache

    def add(self, req: Request) -> None:
        """It waits, too."""
        self.stands.setdefault(req, len(self.stands))
        if self.tree is not None and self.policy in BY_CACHE and not self.leaves_all:
            self.found[req] = ()
            self.look_again([req])

    def look_again(self, reqs: Iterable[Request]) -> None:
        """What each finds in the cache now: who decodes may have evicted some of it."""
        for req in reqs:
            if self.tree is not None and req in self.found:
                tokens = req.known_tokens(0, req.known_len)
                num_pages = sum(count for _, count in walk(self.tree, tokens))
                self.found[req] = in_pages(tokens, self.tree.page_size)[:num_pages]

    def heads(self, waiting: Iterable[Request]) -> list[Request]:
        """Who of them is next; several where the policy does not say which."""
        waiting = list(waiting)
        return [req for req in waiting if not any(self.precedes(other, req) for other in waiting)]

    def precedes(self, one: Request, other: Request) -> bool:
        """Whether ``one`` has to be admitted before ``other``."""
        if self.policy == "random":
            return False
        if self.policy == "dfs-weight" and self.found[one] != self.found[other]:
            return self._is_before(self.found[one], self.found[other])
        return self._key(one) < self._key(other)

    def _key(self, req: Request) -> tuple[int, int, int]:
        """The least goes first; ``dfs-weight`` asks only for those who wait at one node."""
        if self.policy in BY_CACHE:
            last, cached = False, 0
            if self.policy == "lpm" and not self.leaves_all:
                cached = min(len(self.found[req]) * self.config.page_size, req.known_len - 1)
                last = req in self._last()
            return last, 0 if last else -cached, self.stands[req]
        place = self.places[req]
        longest_first = -req.params.max_new_tokens if self.policy == "lof" else 0
        return -req.priority if self.by_priority else 0, longest_first, place

    def _is_before(self, one: Pages, other: Pages) -> bool:
        """Depth first: what ends lower down, then the branch on which more of them wait."""
        at = num_shared(one, other)
        if at in (len(one), len(other)):
            return len(one) > len(other)
        here, there = (
            sum(found[: at + 1] == branch[: at + 1] for found in self.found.values())
            for branch in (one, other)
        )
        return here > there

    def _last(self) -> set[Request]:
        """Of those that share a long prefix which is not cached, all but the first."""
        last, earlier, size = set[Request](), list[tuple[int, ...]](), self.config.page_size
        for req in sorted(self.found, key=self.stands.__getitem__):
            if len(self.found[req]) * size > CHECK_THRESHOLD:
                continue
            tokens = req.known_tokens(0, req.known_len)
            shared = max((num_shared(tokens, item) for item in earlier), default=0)
            if shared >= DEPRIORITIZE_THRESHOLD:
                last.add(req)
            else:
                earlier.append(tokens)
        return last


def walk(tree: RadixCache, tokens: Sequence[int]) -> Path:
    """Where ``tokens`` lead in the cache, which stays as it is: no split, no time of access."""
    node, at, size, path = tree.root_node, 0, tree.page_size, Path()
    while child := node.children.get(tuple(tokens[at : at + size])):
        shared = child.shared_pages(tokens, at)
        path.append((child, shared))
        node, at = child, at + shared * size
        if shared < child.num_pages:
            break
    return path


def in_pages(tokens: Sequence[int], size: int) -> Pages:
    """The whole pages of some tokens."""
    return tuple(tuple(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size))


def num_shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many pages, or tokens, both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


# -- Who loses their memory: whom the rules name, told without the code of the policies ------------

ROUNDING = 1e-6  # tokens; shares of them are added up, in another order than the scheduler's

Places = Mapping[Request, int]  # in which order they came


def not_the_one(
    scheduler: Scheduler, req: Request, ready: Sequence[Request], reason: str,
    order: Sequence[Request],
) -> Iterator[str]:  # fmt: skip
    """What is wrong with it that ``req`` loses its memory now, for want of pages.

    A prompt in chunks goes first, as it has said nothing yet. Else whoever has said least; of them
    the longest prompt, then whose prompt was done last (``order``; SGLang ``retract_decode``); with
    vLLM's rule (``unified``) simply that one. Nobody at all, if what is free and what is on its
    way back is enough for all who are ``ready``: else one after the other would have to, and for
    ever (vllm-ascend #16315). Nor while one is about to end, whose memory comes back by itself.
    """
    rules = scheduler.config.in_force
    chunked, running = scheduler.prefill.chunked_req, scheduler.running_batch
    if chunked is not None:
        named, rule = chunked, "whose prompt is in chunks"
    elif reason == "unified":
        named, rule = max(running, key=order.index), "the newest"
    elif scheduler.config.in_force.victim == "newest":
        named, rule = running[-1], "who decodes since last"
    else:
        ranks = {req: (len(req.output_ids), -len(req.prompt), -order.index(req)) for req in running}
        named = min(running, key=ranks.__getitem__)
        outputs, prompt = counted(len(named.output_ids), "output"), len(named.prompt)
        rule = f"with {outputs} and a prompt of {counted(prompt, 'token')}"
        if req is not named and req in ranks and ranks[req][:2] == ranks[named][:2]:
            rule += ", too, and began to decode last"
    victim = f"behind step {scheduler.step} {req.rid} has to give its memory back"
    if req is not named:
        yield f"{victim}, but the rule names {named.rid}, {rule}"
    leases = scheduler.leases
    need = sum(leases.pages_lacking(req.lease, req.reach) for req in ready if req.lease)
    if chunked is not None and chunked.lease and rules.run_first == "unified":
        left = min(chunked.extend_len, scheduler.config.prefill_budget - len(ready))
        need += leases.pages_lacking(chunked.lease, chunked.computed_len + left)
    if need <= leases.available_pages + leases.pages_returning:
        yield (
            f"{victim}, when the next step needs {counted(need, 'page')}: "
            f"{leases.available_pages} can be had, and {leases.pages_returning} more when what is "
            "in flight is back"
        )
    if reason != "unified" and (ending := about_to_end(scheduler)):
        yield f"{victim}, when {words(ending)} will end with what is in flight"


def about_to_end(scheduler: Scheduler) -> list[Request]:
    """Who runs and has been launched as often as ever: the result in flight is the last."""
    most = scheduler.decode.overrun
    return [req for req in scheduler.running_batch if req.device_len >= req.max_device_len + most]


@dataclass
class MemoryAtHand:
    """What can be had for a request of high priority."""

    available: int  # pages
    has_row: bool  # or one is on its way back


@dataclass
class Preemption:
    """What was true when the first had to make way for a request of higher priority."""

    head: Request
    asked_len: int  # what it had to compute, when it was asked last before that
    admitted: list[Request]  # before it, in the same decision
    memory: MemoryAtHand
    places: Places  # as they were: who makes way gets another one
    victims: list[Request] = field(default_factory=list)


def new_tokens(req: Request) -> int:
    """What a request may still say."""
    return min(req.params.max_new_tokens - len(req.output_ids), CLIP_MAX_NEW_TOKENS)


def all_tokens(req: Request) -> int:
    """What a request is charged for when it comes, for the second time, too."""
    return min(req.params.max_new_tokens, CLIP_MAX_NEW_TOKENS)


def kept_back(req: Request, ratio: float, config: SchedulerConfig) -> float:
    """What is kept back of what one who runs may still say; or all of it and some of a page."""
    if config.in_force.reserves == "prompt":
        return 0
    if config.in_force.reserves == "rest":
        launches = req.max_device_len - req.device_len
        return launches + config.page_size - 1 if launches > 0 else 0
    return new_tokens(req) * (1.0 if req.params.ignore_eos else ratio)


def who_makes_way(
    head: Request, need: float, gives: Mapping[Request, float], config: SchedulerConfig,
    places: Places,
) -> list[list[Request]]:  # fmt: skip
    """Who has to make way for ``head``, which lacks ``need`` tokens: all that it takes, or nobody.

    The lowest priority first, then the newest, and only those lower by more than the threshold.
    ``gives`` are the tokens that come free with each; somebody has to go in any case, for a row.
    Several answers where rounding decides.
    """
    line = sorted(gives, key=lambda req: (req.priority, -places[req]))
    answers = []
    for short in (need, need - ROUNDING, need + ROUNDING):
        gone: list[Request] = []
        for victim in line:
            if short <= 0 and gone:
                break
            if head.priority - victim.priority <= config.priority_scheduling_preemption_threshold:
                short = inf
                break
            gone.append(victim)
            short -= gives[victim]
        answers.append(gone if short <= 0 and gone else [])
    return answers


def words(reqs: Sequence[Request]) -> str:
    """Their ids."""
    return " and ".join(req.rid for req in reqs) or "nobody"


class Watched:
    """One scheduler, whose public methods are listened to from before its engine starts.

    ``findings`` gets the first sentence that breaks either law, by the law's name.
    """

    def __init__(self, engine: Engine, findings: dict[str, str]) -> None:
        self.scheduler, self.depth, self.findings = engine.scheduler, engine.worker.depth, findings
        self.remembered = Remembered()
        self.before: Before | None = None  # while it decides
        self.repeats = 0  # steps of a burst behind its first
        self.listen()
        if isinstance(engine.scheduler, DecodeScheduler):
            self.listen_to_reservations(engine.scheduler)

    def listen(self) -> None:
        """Hear who comes, what is decided, and who loses memory."""
        scheduler, retraction = self.scheduler, self.scheduler.retraction
        queue = scheduler.waiting_queue
        add, in_order = queue.add, queue.in_order
        retract, plan = retraction.retract, scheduler.run_first.plan
        next_batch, chain, repeat = scheduler.next_batch, scheduler.chain, scheduler.repeat

        def added(req: Request) -> None:
            """Somebody comes to wait; a retracted one may keep its place."""
            keeps_place = scheduler.config.in_force.retracted_waits == "old_place"
            if not (req.num_stale_output_tokens or (keeps_place and req.retractions)):
                self.remembered.comes_to_wait(req)
            add(req)

        def ordered() -> Iterator[Request]:
            """The queue is gone through: what each finds in the cache now is what counts."""
            if self.before is not None:
                self.before.order.look_again(self.before.waiting)
            return in_order()

        def decided() -> ScheduleBatch | NoBatch:
            """The next step is decided, and judged."""
            if scheduler.batches_in_flight == 0 or not scheduler.running_batch:
                self.remembered.starving = None
            self.before, self.repeats = Before(scheduler, self.remembered), 0
            batch = next_batch()
            self._judge(self.before, batch or None)
            return batch

        def chained(batch: ScheduleBatch) -> ScheduleBatch:
            """A step of the same requests follows at once, and is judged."""
            before, again = Before(scheduler, self.remembered), chain(batch)
            self._judge(before, again, is_chained=True)
            return again

        def repeated(batch: ScheduleBatch) -> ScheduleBatch | None:
            """A burst goes on without asking: not for longer than it may."""
            again, most = repeat(batch), scheduler.decode.overrun
            self.repeats += again is not None
            if again and self.repeats > most:
                self._keep("progress", [
                    f"step {again.step} is the {self.repeats}th in a row that asks nobody else, "
                    f"but a burst has at most {most} of them"
                ])  # fmt: skip
            return again

        def planned() -> Plan:
            """A plan is made, or made anew."""
            if self.before is None:
                return plan()
            self.before.begins()
            made = plan()
            self.before.ends()
            return made

        def retracted(req: Request, reason: str) -> None:
            """Somebody loses their memory: the one whom the rule names, and for want of it."""
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

        queue.add, queue.in_order = added, ordered  # type: ignore[method-assign]
        scheduler.next_batch = decided  # type: ignore[method-assign]
        scheduler.chain = chained  # type: ignore[method-assign]
        scheduler.repeat = repeated  # type: ignore[method-assign]
        scheduler.run_first.plan = planned  # type: ignore[method-assign]
        retraction.retract = retracted  # type: ignore[method-assign]

    def listen_to_reservations(self, scheduler: DecodeScheduler) -> None:
        """Hear who gets pages on the decode side of ``pd``."""
        pop_preallocated, table = scheduler.pop_preallocated, scheduler.table

        def popped() -> list[tuple[Request, Lease]]:
            """Pages are reserved: first come, first served, as far as there are any."""
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
                f"are free, and it needs {counted(pages, 'page')}, when {can} can be reserved"
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
        known |= {chunked} if chunked else set()
        if isinstance(scheduler, PrefillScheduler):
            known |= {*scheduler.bootstrap_queue.values()}
        if isinstance(scheduler, DecodeScheduler):
            known |= {*scheduler.unanswered.values()}
        for req in scheduler.live.values():
            if req not in known:
                yield f"{req.rid} has not ended, but neither waits nor runs after {scheduler.step}"
