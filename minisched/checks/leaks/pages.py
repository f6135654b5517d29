"""Whose every page is, as the allocator and the prefix cache marked it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ...trace.program import to_text
from .leak import Leak, plural
from .lease import HeldLease
from .moment import Moment


class PageBook:
    """A page is a lease's, or the cache's, or on its way from one to the other, or free.

    ``knows_all`` says that nobody held a page before the first mark; ``knows_tree`` that the trace
    says which pages a node of the radix tree has.
    """

    def __init__(self, leaks: list[Leak]) -> None:
        self.leaks = leaks
        self.held: dict[int, HeldLease] = {}
        self.cached: dict[int, int] = {}  # page -> node
        self.nodes: dict[int, list[int]] = {}  # the other way round
        self.disowned: dict[int, tuple[HeldLease, Moment]] = {}  # and not free or cached as yet
        self.freed: dict[int, tuple[str, Moment]] = {}  # by whom, or empty for the cache, and when
        self.knows_all = False
        self.knows_tree = True

    def take(self, lease: HeldLease, pages: Sequence[int], now: Moment) -> None:
        """They are handed out."""
        for page in pages:
            if page in self.held or page in self.cached:
                self._given_twice(page, lease, now)
            self.held[page] = lease
            self.freed.pop(page, None)
            lease.pages[page] = now

    def disown(self, pages: Sequence[int], now: Moment) -> None:
        """They stop being a lease's."""
        for page in pages:
            lease = self.held.pop(page, None)
            if lease is not None:
                lease.pages.pop(page, None)
                if page not in self.cached:
                    self.disowned[page] = lease, now

    def free(self, pages: Sequence[int], now: Moment) -> None:
        """They are free from now on."""
        for page in pages:
            lease = self.held.pop(page, None)
            if lease is not None:
                if lease.closed is None:
                    self._freed_under(page, lease, now)
                lease.pages.pop(page, None)
            elif page in self.disowned:
                lease, _ = self.disowned.pop(page)
            elif page in self.freed or self.knows_all:
                self._freed_twice(page, now)
            if page in self.cached:
                self._freed_in_cache(page, now)
            self.freed[page] = lease.rid if lease else "", now

    def add(self, node: int, pages: Sequence[int]) -> None:
        """A node of the tree has them."""
        self.knows_tree = self.knows_tree and bool(pages)
        self.nodes[node] = list(pages)
        for page in pages:
            self.cached[page] = node
            self.disowned.pop(page, None)

    def split(self, node: int, child: int, num_pages: int) -> None:
        """A new node takes the first pages of another one's."""
        pages = self.nodes.get(child, [])
        self.nodes[node], self.nodes[child] = pages[:num_pages], pages[num_pages:]
        self.cached |= dict.fromkeys(pages[:num_pages], node)

    def evict(self, node: int, now: Moment) -> None:
        """A node is gone; its pages are about to be free."""
        owner = HeldLease("", 0, now)
        for page in self.nodes.pop(node, []):
            self.cached.pop(page, None)
            self.disowned[page] = owner, now

    def find_lost(self, now: Moment) -> None:
        """Between two steps nothing is on its way."""
        if not self.knows_tree:
            self.disowned.clear()
        by_owner: defaultdict[tuple[HeldLease, Moment], list[int]] = defaultdict(list)
        for page, owner in self.disowned.items():
            by_owner[owner].append(page)
        self.disowned.clear()
        for (lease, when), pages in by_owner.items():
            what = plural("page", to_text(pages))
            giver = f"{lease.rid} gave up" if lease.rid else "the prefix cache evicted"
            self.leaks.append(
                Leak("page", what, "lost", lease.rid,
                     f"{giver} {what} {when}, and nobody has put it back among the free ones: it "
                     "is neither free, nor cached, nor anybody's",
                     now.time, when.slices)
            )  # fmt: skip

    def _given_twice(self, page: int, lease: HeldLease, now: Moment) -> None:
        before = self.held.get(page)
        whose = before.rid if before else "the prefix cache"
        since = f", allocated to {before.history}" if before else ""
        self.leaks.append(
            Leak("page", f"page {page}", "given", whose if before else "",
                 f"page {page} was handed out to {lease.rid} {now} while it was still "
                 f"{whose}'s{since}", now.time, now.slices)
        )  # fmt: skip

    def _freed_twice(self, page: int, now: Moment) -> None:
        rid, before = self.freed.get(page, ("", None))
        story = f"page {page} was freed {now}, although nobody held it"
        if before is not None:
            first = f"when it was {rid}'s" if rid else "when the prefix cache gave it up"
            story = f"page {page} was freed twice: {before}, {first}, and again {now}"
        slices = (*(before.slices if before else ()), *now.slices)
        leak = Leak("page", f"page {page}", "freed", rid, story, now.time, slices)
        self.leaks.append(leak)

    def _freed_under(self, page: int, lease: HeldLease, now: Moment) -> None:
        story = f"page {page} was freed {now}, although it was allocated to {lease.history}"
        slices = (*lease.slices, *now.slices)
        self.leaks.append(Leak("page", f"page {page}", "freed", lease.rid, story, now.time, slices))

    def _freed_in_cache(self, page: int, now: Moment) -> None:
        story = f"page {page} was freed {now}, although node {self.cached[page]} still has it"
        self.leaks.append(Leak("page", f"page {page}", "freed", "", story, now.time, now.slices))
