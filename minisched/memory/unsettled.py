"""Pages that are shared before their step has come back, and what is undone when it fails.

vLLM lets a page be found as soon as the step that computes it is planned. On one stream that is
right: whoever reads the page runs later, or in the same step, which writes before it reads. But
where a step fails its pages hold nothing, and neither does what was computed from them. vLLM's
engine ends with such a step; here only those end who were in it, and the others compute again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..core import Lease
from .block_pool import Block, BlockPool


@dataclass
class Unsettled:
    """Who is to write which shared pages, and who was admitted on them meanwhile."""

    pool: BlockPool
    shared: dict[int, list[Block]] = field(default_factory=dict)  # by step; they come back in order
    readers: dict[Lease, list[Block]] = field(default_factory=dict)  # the blocks not written yet

    def share(self, step: int, lease: Lease, blocks: Iterable[Block]) -> None:
        """``lease`` will have written these once ``step`` has come back."""
        for block in blocks:
            block.writer = lease
            self.shared.setdefault(step, []).append(block)

    def read(self, lease: Lease, blocks: Sequence[Block]) -> None:
        """``lease`` begins with these."""
        if unwritten := [block for block in blocks if block.writer]:
            self.readers[lease] = unwritten

    def settle(self, step: int) -> None:
        """A step has come back: what is left of its blocks holds what it should."""
        for block in self.shared.pop(step, ()):
            block.writer = None
        for lease, blocks in list(self.readers.items()):
            self.readers[lease] = [block for block in blocks if block.writer]
            if not self.readers[lease]:
                del self.readers[lease]

    def spoil(self, leases: Iterable[Lease]) -> None:
        """A step has not written what it should for ``leases``: nobody may find it any more.

        Neither what others have been computing from it: their leases are ``is_spoiled`` as well.
        """
        spoiled = dict.fromkeys(leases)
        todo = list(spoiled)
        while todo:
            lease = todo.pop()
            lease.is_spoiled = True
            for reader, blocks in self.readers.items():
                if reader not in spoiled and any(block.writer is lease for block in blocks):
                    spoiled[reader] = None
                    todo.append(reader)
        for blocks in self.shared.values():
            self.pool.forget([block for block in blocks if block.writer in spoiled])
