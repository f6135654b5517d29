"""The mutants that are known to live, each with the reason why no test sees it.

A mutant is named by its function and by the lines that change; ``bench mutation`` calls every
other survivor unexplained. Reasons begin with what kind it is: ``EQUIVALENT`` (the program does the
same), ``SPEED`` (the same, only slower or faster) or ``WORDING`` (a text that no test should pin).
"""

from __future__ import annotations

from typing import NamedTuple

from .diff import Mutant

EQUIVALENT, SPEED, WORDING = "equivalent", "only speed", "only wording"


class Known(NamedTuple):
    """A mutant that lives; ``taken`` and ``put`` as ``Mutant`` has them."""

    function: str
    taken: str
    put: str
    why: str


KNOWN: tuple[Known, ...] = (
    Known(
        "ForwardLoop.forward",
        "return lose_step(worker, item.batch, laid_out(inputs), error)",
        "return lose_step(worker, item.batch, laid_out(None), error)",
        f"{EQUIVALENT}: a lost step takes its relay's turn, and MindIE's relays count no turns.",
    ),
    Known(
        "overlap",
        "last_batch: ScheduleBatch | NoBatch = NoBatch.IDLE",
        "last_batch: ScheduleBatch | NoBatch = None",
        f"{EQUIVALENT}: before the first step, only whether there is a batch is asked.",
    ),
    Known(
        "RadixCache.reset",
        "self.clock = 0  # logical: how many walks there were",
        "self.clock = 1  # logical: how many walks there were",
        f"{EQUIVALENT}: only the order of times counts.",
    ),
    Known(
        "RadixCache.reset",
        "self.root_node = TreeNode(None, Edge((), (), self.page_size), 0, 0, lock_ref=1)",
        "self.root_node = TreeNode(None, None, 0, 0, lock_ref=1)",
        f"{EQUIVALENT}: no edge leads to the root; the empty one is for the type checker.",
    ),
    Known(
        "Results.process",
        "deliver_logprobs(batch, result.logprobs, outputs, self.config.keep_stale_outputs)",
        "deliver_logprobs(batch, result.logprobs, outputs, None)",
        f"{SPEED}: what is dropped of a prompt, the request's next life asks for again.",
    ),
    Known(
        "PageAllocator.disown",
        "self._owner.pop(page, None)",
        "self._owner.pop(page, )",
        f"{EQUIVALENT}: who is disowned has an owner; only a broken cache asks twice.",
    ),
)


def why_it_lives(mutant: Mutant) -> str:
    """The reason that is on record; empty without one."""
    same = (mutant.function, mutant.taken, mutant.put)
    return next((item.why for item in KNOWN if item[:3] == same), "")
