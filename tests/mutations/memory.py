"""Mutations of who owns memory: leases, pages, rows, the prefix cache, and what they go by."""

from __future__ import annotations

from .mutation import mutation as m

COMMIT, POOL = "scheduler.commit:", "memory.lease_pool:LeasePool."
TREE, CACHE = "memory.radix_cache:RadixCache.", "memory.prefix_cache:PrefixCache."
ALLOCATOR = "memory.page_allocator:PageAllocator."

MEMORY = (
    # -- which step still names a lease ------------------------------------------------------------
    m(
        "a decode step is not noted as the last that names the lease",
        "race ownership identity",
        (COMMIT + "add_decodes", "lease.last_step = step\n", "pass\n"),
    ),
    m(
        "a prompt's step is not noted as the last that names the lease",
        "race ownership identity",
        (COMMIT + "add_prompt", "lease.last_step = batch.step\n", "pass\n"),
    ),
    m(
        "a lease goes back a step early",
        "race ownership identity",
        ("memory.free_rule:lease", "<= steps.returned", "<= steps.returned + 1"),
    ),
    m(
        "a lease goes back at once",
        "race ownership identity",
        ("memory.free_rule:lease", "return lease.last_step <= steps.returned", "return True"),
    ),
    m(
        "only the first closed lease comes back with a step",
        "leak",
        (POOL + "came_back", "list(self.returning)", "list(self.returning)[:1]"),
    ),
    m(
        "duplicates go back a step early",
        "race ownership identity",
        (POOL + "retire", "(lease.last_step, pages)", "(lease.last_step - 1, pages)"),
    ),
    m(
        "duplicates go back at once",
        "race ownership identity",
        (
            CACHE + "cache_unfinished_req",
            "self.leases.retire(lease, duplicates)",
            "self.leases.allocator.disown(duplicates); self.leases.allocator.free(duplicates)",
        ),
    ),
    m(
        "a page table that is a position short",
        "ownership identity race",
        (
            COMMIT + "add_decodes",
            "lease.sent_pages * page_size < end:",
            "lease.sent_pages * page_size < end - 1:",
        ),
    ),
    m(
        "the row lists its duplicates still",
        "race ownership identity",
        (
            CACHE + "cache_unfinished_req",
            "lease.sent_pages = min(lease.sent_pages, lease.shared_pages)",
            "pass",
        ),
    ),
    # -- locks on cached prefixes ------------------------------------------------------------------
    m(
        "a released lease keeps its lock",
        "leak",
        (POOL + "release", "self.tree.dec_lock_ref(lease.node)", "pass"),
    ),
    m(
        "a prefix is read without a lock",
        "leak identity crash",
        (POOL + "open", "self.tree.inc_lock_ref(match.node)", "pass"),
    ),
    m(
        "a locked leaf may be evicted",
        "leak identity crash",
        (
            "memory.radix_node:TreeNode.is_evictable_leaf",
            "not self.children and not self.lock_ref",
            "not self.children",
        ),
    ),
    m(
        "a lock holds the leaf and not what is above it",
        "leak crash",
        (
            TREE + "inc_lock_ref",
            "for above in self._path(node):",
            "for above in self._path(node)[:1]:",
        ),
    ),
    m(
        "an unlock frees the leaf and not what is above it",
        "leak",
        (TREE + "dec_lock_ref", "path = self._path(node)", "path = self._path(node)[:1]"),
    ),
    m(
        "a split node forgets the locks",
        "leak crash",
        (
            "memory.radix_node:TreeNode.split",
            "node.hit_count, node.lock_ref = self.hit_count, self.lock_ref",
            "node.hit_count = self.hit_count",
        ),
    ),
    m(
        "a lock stays where it was when it moves, at four pages",
        "leak",
        (
            CACHE + "_move_lock",
            "tree.dec_lock_ref(lease.node)",
            "tree.dec_lock_ref(lease.node) if len(lease.pages) != 4 else None",
        ),
    ),
    m(
        "a lock moves by being lost first",
        "",
        (
            CACHE + "_move_lock",
            "tree.inc_lock_ref(node)\n    tree.dec_lock_ref(lease.node)\n",
            "tree.dec_lock_ref(lease.node)\n    tree.inc_lock_ref(node)\n",
        ),
        equivalent="nothing evicts between the two, and a leaf that is locked again is passed over",
    ),
    # -- what is cached ----------------------------------------------------------------------------
    m(
        "the newest token's position counts as written",
        "crash race ownership identity",
        (
            "scheduler.results:Results.process",
            "lease.settled_len = req.known_len ",
            "lease.settled_len = req.known_len + 1 ",
        ),
    ),
    m(
        "at its end all that a request has launched is cached",
        "race identity",
        (
            "scheduler.ending:Endings._finish",
            "self.prefix_cache.cache_finished_req(req, lease)",
            "lease.settled_len = min(req.computed_len, req.known_len); "
            "self.prefix_cache.cache_finished_req(req, lease)",
        ),
    ),
    m(
        "a prompt may be cached to its last token",
        "identity livelock crash",
        (CACHE + "match_prefix", "min(wanted, req.known_len - 1)", "min(wanted, req.known_len)"),
    ),
    m(
        "a cached prefix hides the log-probabilities that were asked for",
        "logprobs",
        (CACHE + "match_prefix", "min(wanted, req.known_len - 1)", "req.known_len - 1"),
    ),
    m(
        "a cut edge keeps its tokens and loses its pages",
        "identity leak crash",
        (
            "memory.radix_edge:Edge.cut",
            "self.tokens[middle * size :], self.pages[middle:]",
            "self.tokens[begin * size :], self.pages[middle:]",
        ),
    ),
    m(
        "an edge is compared beyond the end of the tokens",
        "",
        (
            "memory.radix_edge:Edge.shared_pages",
            "min(self.num_pages, (len(tokens) - offset) // size)",
            "self.num_pages",
        ),
        equivalent="a block that ends early differs from a whole one, and is halved until it fits",
    ),
    m(
        "a cached page keeps its owner",
        "leak ownership",
        (
            CACHE + "cache_unfinished_req",
            "self.leases.allocator.disown(lease.pages[num_cached:num_pages])",
            "pass",
        ),
    ),
    m(
        "the cache may be flushed while somebody runs",
        "",
        (
            "scheduler.state:SchedulerState.flush_cache",
            "if not self.leases.is_idle:",
            "if False:",
        ),
        equivalent="what anybody reads is locked, and only the rest is forgotten",
    ),
    m(
        "a flush gives its pages back twice",
        "leak race",
        (
            "scheduler.state:SchedulerState.flush_cache",
            "self.allocator.free(self.tree.evict(self.tree.total_size))",
            "pages = self.tree.evict(self.tree.total_size)\n"
            "        self.allocator.free(pages)\n        self.allocator.free(pages)",
        ),
    ),
    m(
        "nothing is ever cached",
        "",
        (CACHE + "cache_unfinished_req", "if tree is None or", "if True or tree is None or"),
        equivalent="only slower: prefixes are computed again",
    ),
    m(
        "what was used last is evicted first",
        "",
        ("memory.eviction:lru", "(node.last_access_time,)", "(-node.last_access_time,)"),
        equivalent="only slower: the cache keeps what is wanted less",
    ),
    # -- pages and rows ----------------------------------------------------------------------------
    m(
        "an evicted leaf is still counted",
        "leak crash",
        (TREE + "evict", "self.evictable_size -= leaf.edge.num_pages", "pass"),
    ),
    m(
        "half of an evicted leaf is lost",
        "leak",
        (
            TREE + "evict",
            "evicted += leaf.edge.page_ids",
            "evicted += leaf.edge.page_ids[: (leaf.edge.num_pages + 1) // 2]",
        ),
    ),
    m(
        "a page goes back twice",
        "leak",
        (ALLOCATOR + "free", "self.free_pages += pages", "self.free_pages += [*pages, *pages[:1]]"),
    ),
    m(
        "a page is lost when more than two go back",
        "leak",
        (
            ALLOCATOR + "free",
            "self.free_pages += pages",
            "self.free_pages += pages[: len(pages) - (len(pages) > 2)]",
        ),
    ),
    m(
        "a row with three pages is lost",
        "leak",
        (
            POOL + "release",
            "self.table.free(lease)",
            "self.table.free(lease) if len(lease.pages) != 3 else None",
        ),
    ),
    m(
        "a page of the shared prefix goes back as well",
        "leak",
        (
            POOL + "release",
            "lease.pages[lease.shared_pages :]",
            "lease.pages[max(0, lease.shared_pages - 1) :]",
        ),
    ),
    m(
        "the slots of a page run backwards",
        "",
        (
            "core.model_worker_batch:slots_of",
            "page * page_size + at for",
            "page * page_size + page_size - 1 - at for",
        ),
        equivalent="every page has all its slots, in one order that all who read it go by",
    ),
    # -- transfers of PD separation ----------------------------------------------------------------
    m(
        "a lease whose KV is to be sent is not held",
        "leak race crash",
        ("scheduler.transfer:PrefillScheduler._finish", "self.leases.hold(lease)", "pass"),
    ),
    m(
        "a row 2 is held for ever",
        "leak livelock deadlock",
        (POOL + "let_go", "lease.num_transfers -= 1", "lease.num_transfers -= lease.row != 2"),
    ),
    m(
        "a chunk on its way does not hold its lease",
        "leak race crash",
        (
            "loops.pd_prefill:PrefillEngine.send_kv_chunk",
            "        self.scheduler.leases.hold(lease)\n",
            "        pass\n",
        ),
    ),
    m(
        "pages promised to those on their way are given away",
        "identity crash livelock leak",
        (
            "scheduler.prealloc:DecodeScheduler.allocatable_pages",
            "self.leases.available_pages - promised",
            "self.leases.available_pages",
        ),
    ),
)
