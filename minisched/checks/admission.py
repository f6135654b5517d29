"""A second computation of admission, for the law *progress*: what one pass through the queue does.

Each pass is compared with it: the requests that are admitted, the number of their tokens, and the
memory and tokens that are left. ``PassWatch`` observes two calls, ``PrefillManager.admit`` and
``PrefixCache.match_prefix``, and reads the free memory at these moments. The rules are those of
``policy/rules.py``; ``minisched fidelity`` compares them with the originals' code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isclose
from typing import Any

from ..core import Request, Row
from ..memory import Match
from ..policy.admission import Retract
from ..policy.prefill_adder import PrefillAdder
from ..scheduler import Scheduler
from ..trace import Mark
from ..trace.sides import own_attrs
from .formulas import order_by_cache

MOST_NEW = 4096  # SGLang: no request is expected to generate more tokens

DECODES_FIRST = "those who decode run first"
STARVED = "a decode step waits for memory that is on its way back"
NOT_NOW = "somebody was preempted or starves, or a prompt is in chunks"
"""The reasons of a queue that is not looked at: two budgets, a starving decode, one budget."""


def may_preempt(scheduler: Scheduler) -> bool:
    """Return whether requests of higher priority may preempt running ones."""
    config = scheduler.config
    by_priority = config.enable_priority_scheduling or config.schedule_policy == "priority"
    return by_priority and scheduler.unified is None


class Pass:
    """One pass through the queue, followed from its beginning."""

    def __init__(self, scheduler: Scheduler, adder: PrefillAdder) -> None:
        self.scheduler, self.adder, self.leases = scheduler, adder, scheduler.leases
        self.config, self.rules = scheduler.config, scheduler.config.in_force
        self.size, self.is_unified = self.config.page_size, scheduler.unified is not None
        nothing = "prompt" if self.is_unified else self.rules.reserves
        self.reserves = "rest" if self.rules.reserves == "rest" else nothing
        self.preempts = may_preempt(scheduler)
        self.running = {req: self.kept_for(req) for req in scheduler.running_batch}
        self.latest = scheduler.waiting_queue.num_added  # a later one waits for the next pass
        mixed = len(self.running) if self.config.enable_mixed_chunk and not self.is_unified else 0
        self.reserved, self.taken = mixed + sum(self.running.values()), mixed  # tokens of memory
        self.input = self.config.max_prefill_tokens - mixed
        self.chunk = self.config.chunked_prefill_size - mixed
        self.has_chunks = self.is_unified or self.config.chunked_prefill_size != -1
        self.added, self.found = list[tuple[Request, int]](), list[str]()
        self.goes_on = False  # more of a started prompt is left
        self.is_first, self.needs_row = True, False  # no request was looked at; none has a free row
        self.is_full = False  # the queue waits for a release of memory
        self.refused: Request | None = None
        self.alone: Request | None = None  # refused, and tried again without the rule
        self.way_for: Request | None = None  # a request for which others were preempted
        self.to_preempt = list[Request]()  # and are expected to be, yet
        self.marked = list[str]()  # wrong marks
        self.due: tuple[str, str, int, int] | None = None  # the mark of an expected refusal
        self.budget: dict[str, int] = {}  # before any prompt
        self.stalled = list[int]()  # tokens left for a chunk that gets none
        if self.is_unified:  # ``progress.py`` compares the whole step with its one budget
            self.input = self.chunk = adder.rem_input_tokens
            for req, length in adder.can_run_list:
                self.added.append((req, length))
                self.reserved += self.rest_of(req, 0) if self.reserves == "rest" else 0
        else:
            self.budget = {"mixed_decode_tokens": mixed, **self.remains()}
            self.go_on()

    def remains(self) -> dict[str, int]:
        """Return the four numbers of a mark, by its attributes."""
        return {
            "rem_total": int(self.free - self.reserved), "cur_rem": self.free - self.taken,
            "rem_input": self.input, "rem_chunk": self.chunk if self.has_chunks else -1,
        }  # fmt: skip

    # -- tokens of memory --------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Return the tokens of memory that are free or evictable now."""
        return self.leases.available_pages * self.size

    def paged(self, tokens: int) -> int:
        """Return ``tokens`` in whole pages."""
        return -(-tokens // self.size) * self.size

    def new_tokens(self, req: Request) -> int:
        """Return the tokens that a request is expected to generate."""
        left = req.params.max_new_tokens - len(req.output_ids)
        return left if self.reserves == "rest" else min(left, MOST_NEW)

    def rest_of(self, req: Request, end: int) -> int:
        """Return the tokens of the pages that a request takes after those up to ``end``."""
        pages = len(req.lease.pages) if req.lease else 0
        return max(0, self.paged(req.max_device_len) - max(pages * self.size, self.paged(end)))

    def kept_for(self, req: Request) -> float:
        """Return the tokens that are reserved for a running request."""
        left = req.max_device_len - req.device_len
        if self.reserves == "ratio":
            ratio = self.scheduler.new_token_ratio.current
            return self.new_tokens(req) * (1.0 if req.params.ignore_eos else ratio)
        if self.reserves == "prompt" or left <= 0:
            return 0
        return self.rest_of(req, 0) if self.is_unified else left + self.size - 1

    # -- tokens of the step ------------------------------------------------------------------------

    def paid(self, tokens: int) -> int:
        """Return what prompt tokens cost of a step's budget."""
        counts_pages = self.rules.budget_counts == "pages" and not self.is_unified
        return self.paged(tokens) if counts_pages else tokens

    def cut(self, tokens: int) -> int:
        """Return how many prompt tokens the step has left for a request."""
        if not self.has_chunks or self.paid(tokens) <= self.chunk:
            return tokens
        ends_with_page = self.rules.chunk_ends == "page" and not self.is_unified
        rest = self.chunk - self.chunk % self.size if ends_with_page else self.chunk
        return max(0, min(rest, tokens))

    @property
    def is_spent(self) -> bool:
        """Return whether no memory is left for another request."""
        return self.reserves == "ratio" and self.free <= max(self.reserved, self.taken)

    @property
    def asks(self) -> bool:
        """Return whether one more request is looked at."""
        if self.refused is not None or self.alone is not None:
            return False
        has_tokens = self.input > 0 and (not self.has_chunks or self.chunk > 0)
        may_start = has_tokens and not self.goes_on
        return may_start or self.is_spent if self.is_first else may_start and not self.is_spent

    def go_on(self) -> None:
        """Expect the next chunk of the prompt that has started."""
        req = self.scheduler.prefill.chunked_req
        if req is None and self.adder.can_run_list:  # this was its last chunk
            req = self.adder.can_run_list[0][0]
        if req is None or req.lease is None:
            return
        length, memory = req.extend_len, self.free - self.reserved
        if self.has_chunks:
            length = min(length, self.chunk)
            if self.reserves == "ratio" and memory >= 1:
                length = min(length, int(memory))
        own = len(req.lease.pages) * self.size - req.computed_len
        length = max(0, min(length, self.free + own))
        self.goes_on = not 0 < length == req.extend_len
        if length:
            self.add(req, length, req.computed_len, req.extend_len)
        else:
            self.stalled = [min(0, self.chunk) if self.has_chunks else 0]

    def add(self, req: Request, length: int, start: int, rest: int) -> None:
        """Charge a prompt that computes ``length`` of its ``rest`` tokens, from ``start`` on."""
        self.added.append((req, length))
        paged, is_cut, new = self.paged(length), length < rest, req.params.max_new_tokens
        if self.reserves == "ratio":
            self.reserved += paged + self.size + (0 if is_cut else min(new, MOST_NEW))
            self.taken += paged + self.size
        elif self.reserves == "rest" and self.is_unified:
            self.reserved += self.rest_of(req, start + length)
        elif self.reserves == "rest":
            self.reserved += rest + self.new_tokens(req)
            pages = len(req.lease.pages) if req.lease else start // self.size
            self.taken += max(0, self.paged(start + length) - pages * self.size)
        self.input -= self.paid(length)
        self.chunk -= self.paid(length)

    # -- the requests of the queue -----------------------------------------------------------------

    def need_of(self, req: Request, rest: int) -> int:
        """Return the tokens of memory that must be left for ``rest`` tokens of a request."""
        if self.reserves == "prompt":
            return self.paged(rest)
        need = rest + self.new_tokens(req)
        if self.reserves == "ratio":
            return need + self.size
        return self.paged(need) if self.is_unified else need

    def fits(self, req: Request, rest: int, lock: int) -> bool:
        """Return whether there is memory for a request with ``rest`` tokens to compute.

        ``lock`` tokens of its cached prefix can't be evicted any more.
        """
        need, left, now = self.need_of(req, rest), self.free - self.reserved, self.free - self.taken
        if self.reserves == "ratio":
            return need < left - lock
        if self.reserves == "prompt":
            return need <= now - lock
        is_now = self.is_unified or self.paged(self.cut(rest)) <= now - lock
        return need <= left - lock and is_now

    def looked_at(self, req: Request, match: Match | None) -> None:
        """Expect the result of a look-up: the request is admitted, refused, or looked at again."""
        hit, lock = 0, 0
        if match is not None:
            hit = len(match.pages) * self.size
            lock = self.leases.cache.num_pages_locked(match.node, 0) * self.size
        rest, is_again, has_way = req.known_len - hit, self.alone is req, self.way_for is req
        if not (is_again or has_way or (self.asks and not self.needs_row)):
            self.found.append(f"{req.rid} is looked at, but no further request may be admitted")
        self.report_way()
        self.is_first, self.alone, self.way_for = False, None, None
        if not is_again and not self.fits(req, rest, lock):
            need, left = self.need_of(req, rest) + lock, int(self.free - self.reserved)
            self.due = ("NO_TOKEN", "KV memory", need, left)
            if self.leases.is_idle and not self.is_unified:
                self.alone = req
            else:
                self.refuse(req)
            return
        length, is_later = self.cut(rest), bool(self.added)
        is_cut = length < rest and self.rules.who_is_cut == "first" and not self.is_unified
        is_much = not self.has_chunks and self.paged(rest) >= self.input
        if not length or (is_later and (is_much or is_cut)):
            self.refused = req
            self.due = ("OTHER", "a page of a chunk", self.size, max(0, self.chunk))
            if is_later and is_much:
                self.due = ("OTHER", "max_prefill_tokens", rest, self.input)
        else:
            self.add(req, length, hit, rest)

    def refuse(self, req: Request) -> None:
        """Expect that a request is refused for lack of a row or of memory."""
        self.refused, self.is_full = req, bool(self.running) and not self.preempts

    def victims_for(self, req: Request) -> list[Request]:
        """Return the running requests that are preempted for one without a row."""
        if not self.preempts or self.leases.returning:
            return []
        least, victims = self.config.priority_scheduling_preemption_threshold, list[Request]()
        need = req.admission.asked_len + min(req.params.max_new_tokens, MOST_NEW)
        short = need - (self.free - self.reserved)
        for victim in sorted(self.running, key=lambda it: (it.priority, -it.admission.order)):
            if req.priority - victim.priority > least and (short > 0 or not victims):
                victims.append(victim)
                short -= self.running[victim]
        return victims if short <= 0 else []

    def preempted(self, victim: Request) -> None:
        """Compare a preemption with the rule, before it happens."""
        head = self.scheduler.waiting_queue.first()
        if self.way_for is None and head is not None:
            self.to_preempt = self.victims_for(head) if self.asks else []
            self.way_for, self.needs_row = head, True
        if victim not in self.to_preempt:
            self.found.append(f"{victim.rid} is preempted, but it need not make way")
        else:
            self.to_preempt.remove(victim)
        self.reserved -= self.running.pop(victim, 0)

    def judge_budget(self, marks: Sequence[Mark]) -> None:
        """Compare the marks of the budget before any prompt, and of a chunk that gets none."""
        budgets = [it.attrs for it in marks if it.name == "budget"]
        budget = budgets[-1] if len(budgets) == 1 else {"marks": len(budgets)}
        if self.budget.items() - budget.items() or len(budgets) != 1:
            self.marked.append(f"its budget is {budget}, but the rules give {self.budget}")
        left = [
            it.attrs["left"] if (it.attrs["result"], it.attrs["need"]) == ("OTHER", 1) else None
            for it in marks
            if it.name == "refuse" and it.attrs["reason"].startswith("the next chunk")
        ]
        if left != self.stalled:
            self.marked.append(f"the next chunk has the tokens {left} in marks, not {self.stalled}")

    def refusal(self, rid: str, result: str, need: int, left: int, reason: str) -> None:
        """Compare the mark of a refusal with the rule that refuses."""
        what, spent = reason.partition(":")[0], self.remains()
        memory = min(spent["rem_total"], spent["cur_rem"])
        usual = {"KV memory": memory, "max_prefill_tokens": self.input, "max_running_requests": 0,
                 "chunked_prefill_size": self.chunk}  # fmt: skip
        due = self.due or (result, what, 1, usual.get(what, left))
        if (result, what, need, left) != due:
            got, wanted = (f"{it[1]} ({it[0]}): {it[2]} of {it[3]}" for it in
                            ((result, what, need, left), due))  # fmt: skip
            self.marked.append(f"{rid} is refused with the mark {got}, but by the rule {wanted}")
        self.due = None

    def report_way(self) -> None:
        """Keep the requests that should have been preempted."""
        self.found += [
            f"{req.rid} is not preempted, but has to make way" for req in self.to_preempt
        ]

    def end(self) -> None:
        """Compare the result of the pass with the expected one."""
        adder, head = self.adder, self.scheduler.waiting_queue.first()
        if self.due is not None:
            self.marked.append(f"a refusal has no mark: {self.due}")
        self.report_way()
        if self.alone is not None:
            self.found.append(f"{self.alone.rid} is refused, but no other request holds memory")
        if self.way_for is not None:
            self.refuse(self.way_for)  # the row is released later
        elif self.refused is None and self.is_spent and not self.is_first:
            self.is_full = bool(self.running) and not self.preempts
        elif head is not None and head.admission.order < self.latest and self.asks:
            has_row = self.leases.table.available_size and not self.needs_row
            if has_row or self.victims_for(head):
                self.found.append(f"{head.rid} may be admitted, but is not looked at")
            else:
                self.refuse(head)
        if self.added != adder.can_run_list:
            words = [", ".join(f"{count} tokens of {req.rid}" for req, count in work) or "nothing"
                     for work in (adder.can_run_list, self.added)]  # fmt: skip
            self.found.append(f"it computes {words[0]}, but the rules admit {words[1]}")
        for what, now, expected in (
            ("tokens of memory reserved", adder.rem_total_token_offset, self.reserved),
            ("tokens of memory in use", adder.cur_rem_token_offset, self.taken),
            ("prompt tokens left", adder.rem_input_tokens, self.input),
            ("tokens of the chunk left", adder.rem_chunk_tokens, self.chunk),
        ):
            if now is not None and not isclose(now, expected, abs_tol=1e-6):
                self.found.append(f"it has {now} {what}, but the rules give {expected}")


class PassWatch:
    """Follows the passes of one scheduler; ``found`` are the sentences found so far."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.found = scheduler, list[str]()
        self.newest: Pass | None = None  # while it runs
        self.line: list[Request] | None = None  # the queue before the pass, if no request joins it
        self.misplaced = list[str]()  # against an order by the cache
        self.full_at: int | None = None  # the number of releases at the last refusal for memory
        self.marked = list[str]()  # wrong marks, for the law *record*
        self.was_full = False
        self.may_starve = False  # memory can come back for a step that waits
        self.num_marks = 0  # recorded before this decision
        self.num_looked_up = 0  # tokens of the last look-up
        self.passed_at = 0  # marks recorded up to the end of the last pass
        prefill, cache = scheduler.prefill, scheduler.prefix_cache
        page_cache, look_up = scheduler.page_cache, scheduler.page_cache.match_prefix
        self.recorder = prefill.recorder
        admit, match_prefix = prefill.admit, cache.match_prefix

        def admitted(
            waiting: Iterator[Request], adder: PrefillAdder, retract: Retract = lambda req: None
        ) -> None:
            """Follow a pass, and compare it with the rules."""
            passed = self.newest = Pass(scheduler, adder)
            passed.judge_budget(self.recorder.marks[max(self.num_marks, self.passed_at) :])
            if passed.added or passed.goes_on:
                self.full_at = None
            elif self.line is not None:
                self.judge_order(self.line)
            if self.full_at == scheduler.leases.num_released:
                passed.found.append("it looks at the queue, but no memory was released")
            mark = self.recorder.mark
            self.recorder.mark = partial(self.told, mark)  # type: ignore[method-assign]
            admit(waiting, adder, retract)
            self.recorder.mark = mark  # type: ignore[method-assign]
            passed.end()
            self.newest, self.passed_at = None, len(self.recorder.marks)
            if passed.is_full and scheduler.config.in_force.ask_again == "left":
                self.full_at = scheduler.leases.num_released
            step = scheduler.leases.launched_step + 1
            self.marked += [f"the pass for step {step}: {words}" for words in passed.marked]
            self.found += [f"the pass for step {step}: {words}" for words in passed.found]

        def looked_up(tokens: Sequence[int]) -> Match:
            """Record the length of a look-up in the tree or the map."""
            self.num_looked_up = len(tokens)
            return look_up(tokens)

        def matched(req: Request) -> Match | None:
            """Follow a look-up of the cache, of all known tokens but the last one."""
            match = match_prefix(req)
            is_whole = self.num_looked_up == req.known_len - 1 or req.params.return_logprob
            if match is not None and not is_whole:
                step, count = scheduler.leases.launched_step + 1, self.num_looked_up
                self.found.append(
                    f"for step {step} {req.rid} looks up {count} of its {req.known_len} tokens"
                )
            if self.newest is not None:
                self.newest.looked_at(req, match)
            return match

        page_cache.match_prefix = looked_up  # type: ignore[method-assign]
        prefill.admit = admitted  # type: ignore[method-assign]
        cache.match_prefix = matched  # type: ignore[method-assign]

    def told(self, mark: Callable[..., None], name: str, **attrs: Any) -> None:
        """Record a mark during a pass, and compare it with the pass."""
        before = len(self.recorder.marks)
        mark(name, **attrs)
        assert self.newest is not None
        if name not in ("refuse", "admit"):
            return
        made = self.recorder.marks[before:]
        if len(made) != 1 or made[0].name != name:
            self.marked.append(f"{attrs['rid']} has {len(made)} marks {name!r}")
        elif name == "refuse":
            self.newest.refusal(**own_attrs(made[0]))
        else:
            self.admission(self.newest, made[0].attrs)

    def admission(self, passed: Pass, attrs: dict[str, Any]) -> None:
        """Compare the mark of an admission with what the batch builder has left."""
        adder, free = passed.adder, passed.free
        req, length = adder.can_run_list[-1]
        chunk = adder.rem_chunk_tokens
        wanted = {
            "rid": req.rid, "hit_len": req.admission.hit_len, "extend_len": length,
            "is_chunked": length < req.extend_len,
            "rem_total": int(free - adder.rem_total_token_offset),
            "cur_rem": free - adder.cur_rem_token_offset,
            "rem_input": adder.rem_input_tokens, "rem_chunk": -1 if chunk is None else chunk,
        }  # fmt: skip
        if wrong := wanted.items() - attrs.items():
            name, value = min(wrong)
            self.marked.append(f"the mark of {req.rid}'s admission has {name} {attrs[name]}, "
                               f"but it is {value}")  # fmt: skip

    def begin(self, line: list[Request]) -> None:
        """Begin a decision with these requests in the queue."""
        scheduler = self.scheduler
        self.line, self.was_full = line, scheduler.prefill.batch_is_full
        self.may_starve = bool(scheduler.batches_in_flight and scheduler.running_batch)
        self.num_marks = len(self.recorder.marks)

    def admissions(
        self, prompts: Mapping[Request, Row], num_decodes: int | None = None
    ) -> Iterator[str]:
        """Yield a decision with other marks of admissions than its step has prompts.

        A budget for both has the decodes of the step, if ``num_decodes`` of them are known.
        """
        marks = self.recorder.marks[self.num_marks :]
        budgets = [it.attrs["mixed_decode_tokens"] for it in marks if it.name == "budget"]
        if num_decodes is not None and any(count != num_decodes for count in budgets):
            yield f"a budget is marked with {budgets} decodes, but the step has {num_decodes}"
        made = [
            tuple(mark.attrs[name] for name in ("rid", "hit_len", "extend_len", "is_chunked"))
            for mark in marks
            if mark.name == "admit"
        ]
        expected = [
            (req.rid, req.admission.hit_len, row.end - row.start, not row.deliver)
            for req, row in prompts.items()
        ]
        if made != expected:
            step = self.scheduler.leases.launched_step
            yield f"step {step} has the prompts {expected}, but the marks admit {made}"

    def refusals(self) -> Iterator[str]:
        """Yield refusals with other words than numbers, and a request that waits without one."""
        reasons, scheduler = set[object](), self.scheduler
        two_budgets = [STARVED, DECODES_FIRST] if scheduler.decodes_first else [STARVED]
        skipped = two_budgets if scheduler.unified is None else [NOT_NOW]
        for mark in self.recorder.marks[self.num_marks :]:
            if mark.name != "refuse":
                continue
            rid, need, left = (mark.attrs[name] for name in ("rid", "need", "left"))
            reasons.add(rid)
            what, _, numbers = mark.attrs["reason"].partition(": ")
            if what.startswith("a decode step waits") and not self.may_starve:
                yield f"{rid} waits because {what}, but no step is in flight, or none can wait"
            unit = "row" if what == "max_running_requests" else "token" if need == 1 else "tokens"
            if numbers != (f"needs {need} {unit}, {left} left" if need else ""):
                yield f"{rid} is refused ({mark.attrs['reason']}), but needs {need} of {left}"
            result = mark.attrs["result"]
            if not need or what == "max_running_requests":  # outside of a pass
                expected = "NO_TOKEN" if need else "OTHER"
                if result != expected:
                    yield f"{rid} is refused for {what} with {result} instead of {expected}"
            if not need and what not in skipped:
                yield f"{rid} waits with the reason {what!r} instead of {' or '.join(skipped)!r}"
        head = self.scheduler.waiting_queue.first()
        if head is None or self.was_full or head.rid in reasons:
            return
        if head in (self.line or ()):
            step = self.scheduler.leases.launched_step
            yield f"after step {step} {head.rid} waits, but no mark has the reason"

    def preempted(self, req: Request) -> None:
        """Follow a preemption by priority."""
        if self.newest is not None:
            self.newest.preempted(req)

    def judge_order(self, line: list[Request]) -> None:
        """Compare the order of the queue with one that looks at the cache."""
        scheduler, policy = self.scheduler, self.scheduler.config.schedule_policy
        if scheduler.tree is not None and policy in ("lpm", "dfs-weight"):
            expected = order_by_cache(policy, line, scheduler.tree)
            now = [*scheduler.waiting_queue.waiting]
            for req, other in zip(now, expected, strict=True):
                if req is not other:
                    step = scheduler.leases.launched_step + 1
                    words = f"for step {step} {req.rid} is looked at before {other.rid}, which by "
                    self.misplaced.append(f"{words}{policy} goes first")
                    break

    def mixed(self) -> None:
        """Expect that the queue is looked at in the next step: prompts and decodes were mixed."""
        self.full_at = None

    def closed_queue(self) -> Iterator[str]:
        """Yield a sentence if the queue is looked at next, or is not, against the rule."""
        prefill, leases = self.scheduler.prefill, self.scheduler.leases
        is_full = self.full_at == leases.num_released
        preempts = may_preempt(self.scheduler)  # then no refusal closes the queue
        has_row = leases.table.available_size and prefill.chunked_req is None
        if (has_row or preempts) and prefill.batch_is_full != is_full:
            word = "is not" if prefill.batch_is_full else "is"
            yield f"the queue {word} looked at after step {leases.launched_step}, against the rule"
