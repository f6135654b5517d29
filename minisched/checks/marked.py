"""Marks of the memory, the cache and the queue, for the law *record*: one for each call.

``labels.py`` compares the marks of steps, ``admission.py`` those of one pass through the queue.
``MarkWatch`` wraps the public methods of one scheduler that change its memory, its prefix cache or
its requests. It reads the state before and after each call, and expects the marks of that change:
each once, in order, with all of its attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..core import Lease, Output, Outputs, Request, Result, ScheduleBatch
from ..core.form import wrong_form
from ..engine.engine import Engine
from ..engine.frontend import FlushCacheReq, Message
from ..memory import BlockPool, Match, RadixCache
from ..memory.block_pool import Chain
from ..memory.radix_cache import Insertion, TreeNode
from ..policy.admission import Work
from ..policy.waiting import CACHE_AWARE
from ..trace import Trace
from ..trace.cells import spans_of
from ..trace.sides import own_attrs
from .history import Offence
from .prefix_audit import nodes_of, pages_locked_once

LONG_QUEUE = 128  # requests; with more, SGLang does not sort by the longest prefix
SHOWN_REQS, SHOWN_TOKENS = 20, 8  # in a mark of the queue, and of a node
Attrs = dict[str, Any]


class MarkWatch:
    """Observes one engine; ``found`` has the first call with other marks than its own."""

    def __init__(self, engine: Engine) -> None:
        self.scheduler, self.leases = engine.scheduler, engine.scheduler.leases
        self.recorder, self.found = engine.device.recorder, list[str]()
        self.has_drafts = bool(self.scheduler.config.num_draft_tokens)
        self.watch_leases()
        self.watch_requests(engine)
        cache = self.leases.cache
        if isinstance(cache, RadixCache):
            self.watch_tree(cache)
        elif isinstance(cache, BlockPool) and not self.scheduler.prefix_cache.is_off:
            self.watch_blocks(cache)

    @property
    def count(self) -> int:
        """Return the number of marks so far."""
        return len(self.recorder.marks)

    def expect(self, since: int, names: Sequence[str], *expected: tuple[str, Attrs]) -> None:
        """Compare the marks of some names that a call has made with those of its change."""
        made = [
            (mark.name, own_attrs(mark))
            for mark in self.recorder.marks[since:]
            if mark.name in names
        ]
        if made != [*expected] and not self.found:
            step = self.leases.launched_step
            words = [", ".join(f"{name} {attrs}" for name, attrs in it) or "no mark"
                     for it in (made, expected)]  # fmt: skip
            self.found.append(f"after step {step} a call makes {words[0]} instead of {words[1]}")

    # -- leases, and the pages that they share -----------------------------------------------------

    def pages_alone(self, lease: Lease | None) -> int:
        """Return the pages that only this lease keeps: its own, and those that it alone locks."""
        if lease is None:
            return 0
        owner = self.leases.allocator.owner
        own = sum(owner.get(page) is lease for page in lease.pages)
        return own + pages_locked_once(lease.node)

    def watch_leases(self) -> None:
        """Wrap what retracts a request, looks it up in the cache, and shares its pages."""
        retraction, cache = self.scheduler.retraction, self.scheduler.prefix_cache
        ratio = self.scheduler.new_token_ratio
        retract, match_prefix = retraction.retract, cache.match_prefix
        share, on_retraction, reset = cache.cache_unfinished_req, ratio.on_retraction, ratio.reset

        def retracted(req: Request, reason: str) -> None:
            """Expect the mark of a retraction."""
            since, outputs, pages = self.count, len(req.output_ids), self.pages_alone(req.lease)
            retract(req, reason)
            attrs = {"rid": req.rid, "reason": reason, "outputs": outputs, "pages": pages}
            self.expect(since, ["retraction"], ("retraction", attrs))

        def matched(req: Request) -> Match | None:
            """Expect the mark of a look-up."""
            since, match = self.count, match_prefix(req)
            if match is not None:
                hit_len = len(match.pages) * self.scheduler.config.page_size
                attrs = {"rid": req.rid, "hit_len": hit_len, "prompt_len": req.known_len}
                self.expect(since, ["match"], ("match", attrs))
            return match

        def shared(req: Request, lease: Lease, length: int | None = None) -> None:
            """Expect a mark if more pages of a lease are shared."""
            since, before, had = self.count, list(lease.pages), lease.shared_pages
            share(req, lease, length)
            expected = list[tuple[str, Attrs]]()
            if (now := lease.shared_pages) > had:
                pairs = zip(before[had:now], lease.pages[had:now], strict=True)
                twice = sum(own != page for own, page in pairs)
                expected = [("insert", {"rid": req.rid, "pages": now, "duplicates": twice})]
            self.expect(since, ["insert"], *expected)

        def estimated(remaining: Any) -> None:
            """Expect the mark of a new estimate."""
            since = self.count
            on_retraction(remaining)
            self.expect(since, ["new token ratio"], self.ratio)

        def started_again() -> None:
            """Expect a mark if the estimate differs from the one at the start."""
            since, before = self.count, ratio.current
            reset()
            expected = [self.ratio] if before != ratio.current else []
            self.expect(since, ["new token ratio"], *expected)

        retraction.retract, cache.match_prefix = retracted, matched  # type: ignore[method-assign]
        cache.cache_unfinished_req = shared  # type: ignore[method-assign]
        ratio.on_retraction, ratio.reset = estimated, started_again  # type: ignore[method-assign]
        retraction.on_retraction = estimated

    @property
    def ratio(self) -> tuple[str, Attrs]:
        """Return the mark of the present estimate."""
        return "new token ratio", {"value": round(self.scheduler.new_token_ratio.current, 6)}

    # -- requests that arrive, and the queue -------------------------------------------------------

    def watch_requests(self, engine: Engine) -> None:
        """Wrap what takes messages, accepts a request, and sorts the queue."""
        scheduler, queue = self.scheduler, self.scheduler.waiting_queue
        inputs = scheduler.input_processor
        process, accept, refuse = engine.process_input_requests, inputs.accept, inputs.refuse
        plan, returned = scheduler.get_new_batch_prefill, scheduler.process
        in_order, policy = queue.in_order, scheduler.config.schedule_policy
        by_cache = policy in CACHE_AWARE and isinstance(self.leases.cache, RadixCache)

        def processed(messages: Sequence[Message]) -> None:
            """Expect a mark for each message that empties the cache."""
            since = self.count
            process(messages)
            wanted = sum(isinstance(item, FlushCacheReq) for item in messages)
            count = sum(it.name == "flush cache" for it in self.recorder.marks[since:])
            if count != wanted:
                self.found.append(f"{wanted} messages to flush the cache make {count} marks")

        def accepted(req: Request) -> str:
            """Expect the marks of a clipped output and of a grammar."""
            if wrong_form(req):
                return accept(req)
            since, asked = self.count, req.params.max_new_tokens
            problem = accept(req)
            expected = list[tuple[str, Attrs]]()
            if not problem and req.params.has_grammar:
                rule = req.params.regex or ""
                expected.append(("grammar", {"rid": req.rid, "rule": rule}))
            if (fitting := req.params.max_new_tokens) < asked:
                expected.append(("clip", {"rid": req.rid, "max_new_tokens": fitting}))
            if not problem:
                self.expect(since, ["grammar", "clip"], *expected)
            return problem

        def refused(req: Request, problem: str) -> Output:
            """Expect the mark of an end, or of a refusal next to a live request of this name."""
            since, output = self.count, refuse(req, problem)
            expected: tuple[str, Attrs] = ("refused", {"rid": req.name})
            if req.name not in scheduler.live:
                expected = ("finish", {"rid": req.name, "reason": "error", "outputs": 0})
            self.expect(since, ["refused", "finish"], expected)
            return output

        def planned() -> tuple[Work, list[Request]]:
            """Expect a mark if prompts and decodes could not be mixed."""
            since, config, decode = self.count, scheduler.config, scheduler.decode
            ready = [
                req for req in decode.running_reqs
                if req.device_len < req.max_device_len + decode.overrun
                and (config.run_ahead or req.computed_len < req.known_len)
            ] if config.enable_mixed_chunk else []  # fmt: skip
            prompts, decodes = plan()
            left = sum(req.lease is not None for req in ready)
            is_apart = bool(prompts and left) and not decodes
            expected = [("not mixed", {"running": left})] if is_apart else []
            if decode.ends_in_flight is None:
                self.expect(since, ["not mixed"], *expected)
            return prompts, decodes

        def handled(batch: ScheduleBatch, result: Result) -> Outputs:
            """Expect a mark for each row of a request that has left it before its result."""
            since, step = self.count, batch.step
            gone = [row.req for row in batch.rows if row.req.lease is not row.lease]
            due = Counter(req.rid for req in gone if req.finished or not result.error)
            outputs = returned(batch, result)
            left = [row.req for row in batch.rows if row.req.lease is not row.lease]
            may = Counter(req.rid for req in left if req in gone or req.error or not req.finished)
            made = Counter(
                it.attrs["rid"] for it in self.recorder.marks[since:]
                if it.name in ("wasted row", "stale output")
            )  # fmt: skip
            if due - made or (made - may and not self.has_drafts):
                self.found.append(
                    f"rows of {' '.join(due) or 'no request'} have no use in step {step}, but the "
                    f"marks have {' '.join(made.elements()) or 'none'}"
                )
            return outputs

        def sorted_queue() -> Iterator[Request]:
            """Expect the mark of an order by the cache."""
            since, heads = self.count, in_order()
            expected = list[tuple[str, Attrs]]()
            if by_cache and (policy != "lpm" or len(queue) <= LONG_QUEUE):
                rids = tuple(req.rid for req in [*queue.waiting][:SHOWN_REQS])
                expected = [("queue order", {"policy": policy, "rids": rids})]
            self.expect(since, ["queue order"], *expected)
            return heads

        engine.process_input_requests = processed  # type: ignore[method-assign]
        inputs.accept, inputs.refuse = accepted, refused  # type: ignore[method-assign]
        scheduler.get_new_batch_prefill = planned  # type: ignore[method-assign]
        scheduler.process = handled  # type: ignore[method-assign]
        queue.in_order = sorted_queue  # type: ignore[method-assign]

    # -- the prefix cache --------------------------------------------------------------------------

    def watch_tree(self, tree: RadixCache) -> None:
        """Wrap the changes of a radix tree."""
        insert, match, evict = tree.insert, tree.match_prefix, tree.evict
        inc_lock_ref, dec_lock_ref = tree.inc_lock_ref, tree.dec_lock_ref

        def inserted(
            tokens: Sequence[int], pages: Sequence[int], inserted_pages: int = 0
        ) -> Insertion:
            """Expect a mark for each new node."""
            since, before = self.count, nodes_of(tree)
            insertion = insert(tokens, pages, inserted_pages)
            self.expect(since, ["radix split", "radix add"], *grown(tree, before))
            return insertion

        def matched(tokens: Sequence[int]) -> Match:
            """Expect the mark of a split."""
            since, before = self.count, nodes_of(tree)
            found = match(tokens)
            self.expect(since, ["radix split", "radix add"], *grown(tree, before))
            return found

        def locked(node: TreeNode) -> None:
            """Expect the mark of one more lock."""
            since, before = self.count, node.lock_ref
            inc_lock_ref(node)
            self.expect(since, ["radix lock"], lock_of(node, before, 1))

        def unlocked(node: TreeNode) -> None:
            """Expect the mark of one lock less."""
            since, before = self.count, node.lock_ref
            dec_lock_ref(node)
            self.expect(since, ["radix lock"], lock_of(node, before, -1))

        def evicted(num_pages: int) -> list[int]:
            """Expect a mark for each node that is gone, in the order of its pages."""
            since, by_page = self.count, {node.pages[0]: node for node in nodes_of(tree)}
            pages = evict(num_pages)
            gone = [by_page[page] for page in pages if page in by_page]
            marks = (("radix evict", {"node": it.id, "pages": it.num_pages}) for it in gone)
            self.expect(since, ["radix evict"], *marks)
            return pages

        tree.insert, tree.match_prefix = inserted, matched  # type: ignore[method-assign]
        tree.inc_lock_ref, tree.dec_lock_ref = locked, unlocked  # type: ignore[method-assign]
        tree.evict = evicted  # type: ignore[method-assign]

    def watch_blocks(self, pool: BlockPool) -> None:
        """Wrap the changes of a map of blocks."""
        insert, evict, forget = pool.insert, pool.evict, pool.forget
        inc_lock_ref, dec_lock_ref = pool.inc_lock_ref, pool.dec_lock_ref

        def changed(since: int, name: str, pages: Sequence[int], **more: int) -> None:
            """Expect the mark of a change of some pages."""
            expected = [(name, {"pages": (*pages,), **more})] if pages else []
            self.expect(since, [name], *expected)

        def inserted(tokens: Sequence[int], pages: Sequence[int]) -> Insertion:
            """Expect the mark of the new blocks."""
            since, before = self.count, {*pool.blocks}
            insertion = insert(tokens, pages)
            changed(since, "block add", [page for page in pool.blocks if page not in before])
            return insertion

        def locked(node: Chain) -> None:
            """Expect the mark of one more user of some blocks."""
            since = self.count
            inc_lock_ref(node)
            changed(since, "block lock", [block.page for block in node], delta=1)

        def unlocked(node: Chain) -> None:
            """Expect the mark of one user less."""
            since = self.count
            dec_lock_ref(node)
            changed(since, "block lock", [block.page for block in node], delta=-1)

        def evicted(num_pages: int) -> list[int]:
            """Expect the mark of the blocks that are gone."""
            since, pages = self.count, evict(num_pages)
            changed(since, "block evict", pages)
            return pages

        def forgotten(node: Chain) -> None:
            """Expect the mark of blocks that can't be found any more."""
            since = self.count
            forget(node)
            changed(since, "block forget", [block.page for block in node])

        pool.insert, pool.evict, pool.forget = inserted, evicted, forgotten  # type: ignore
        pool.inc_lock_ref, pool.dec_lock_ref = locked, unlocked  # type: ignore[method-assign]


def lock_of(node: TreeNode, before: int, delta: int) -> tuple[str, Attrs]:
    """Return the mark of a lock on a node that had some locks before; the root always has one."""
    count = before + delta if node.parent is not None else before
    return "radix lock", {"node": node.id, "lock_ref": count, "delta": delta}


def grown(tree: RadixCache, before: Sequence[TreeNode]) -> Iterator[tuple[str, Attrs]]:
    """Yield the marks of the nodes that a tree has got, in order of their ids.

    A new node above an old one is the upper part of a split edge.
    """
    old = {*before}
    new = [node for node in nodes_of(tree) if node not in old]
    for node in sorted(new, key=lambda node: node.id):
        begin, size = tokens_of(node), len(node.pages)
        lower = next((it for it in node.children.values() if it in old), None)
        if lower is not None:
            yield "radix split", {
                "node": node.id, "child": lower.id, "pages": size, "tokens": begin,
                "child_tokens": tokens_of(lower),
            }  # fmt: skip
        elif node.parent is not None:
            yield "radix add", {
                "node": node.id, "parent": node.parent.id, "pages": size, "tokens": begin,
                "page_ids": (*node.pages,),
            }  # fmt: skip


def tokens_of(node: TreeNode) -> str:
    """Return the first tokens of a node as its mark has them."""
    shown = [str(token) for token in node.tokens[:SHOWN_TOKENS]]
    return " ".join(shown) + " …" * (len(node.tokens) > SHOWN_TOKENS)


def find_wrong_rows(trace: Trace) -> Iterator[Offence]:
    """Yield marks with another request than a row has, and a flush that rows contradict.

    The cache is flushed if no request has a row.
    """
    taken = dict[str, dict[int, str]]()  # requests by row, by side
    for mark in trace.marks:
        of, story = mark.attrs, ""
        rows = taken.setdefault(str(of.get("side", "")), {})
        if mark.name == "row alloc":
            rows[of["row"]] = of["rid"]
        elif mark.name in ("page alloc", "row free", "row hold", "row let go"):
            if rows.get(of["row"], of["rid"]) != of["rid"]:
                story = f"a mark {mark.name!r} is of {of['rid']}, but {rows[of['row']]} has the row"
            if mark.name == "row free":
                rows.pop(of["row"], None)
        elif mark.name == "flush cache" and of["done"] == bool(rows):
            story = f"a flush is marked with done = {of['done']}, but {len(rows)} rows are taken"
        if story:
            yield Offence(story, (mark.during,), "label", "", mark.time)


def find_wrong_transfers(trace: Trace) -> Iterator[Offence]:
    """Yield the marks of transfers with another size than their op reads, and ops without one."""
    made = [mark for mark in trace.marks if mark.name == "kv transfer"]
    marks = {mark.during: mark.attrs for mark in made}
    if not made and not any(item.lane == "kv transfer" for item in trace.slices):
        return
    size, launched = Counter[int](), dict[int, int]()  # slots of an op, and the slice of its launch
    for act in trace.program:
        if act.kind == "launch":
            launched[act.op] = act.during
        elif act.kind == "read" and act.lane == "kv transfer" and act.resource.endswith("kv"):
            size[act.op] += sum(last + 1 - first for first, last in spans_of(act.at))
    per_slot = set[float]()
    for item in trace.slices:
        if item.lane != "kv transfer" or item.name != "transfer":
            continue
        of = marks.get(launched.get(item.id, 0), {"rid": "no request", "slots": 0, "bytes": 0})
        has_other_size = size[item.id] and of["slots"] != size[item.id]  # none after an abort
        if (of["rid"],) != item.rids or has_other_size:
            story = (
                f"a transfer reads {size[item.id]} slots of {' '.join(item.rids)}, but its mark "
            )
            yield Offence(f"{story}has {of['slots']} of {of['rid']}", (item.id,), "label")
        elif of["slots"]:
            per_slot.add(of["bytes"] / of["slots"])
    if len(made) > len(marks):
        yield Offence("a transfer has two marks", (), "label")
    if len(per_slot) > 1:
        yield Offence(f"a slot has {len(per_slot)} sizes in the marks of transfers", (), "label")
