"""Formulas of the rules, written a second time: one budget, the ratio, orders by the cache.

``minisched fidelity`` compares all numbers of a rule with its original's code. These two need no
original, so each decision of a scheduler is compared with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isclose

from ..core import Request, Row
from ..memory import RadixCache
from ..memory.radix_cache import TreeNode
from ..scheduler import SchedulerConfig
from .history import many

START, LEAST, STEPS = 0.7, 0.14, 600  # SGLang: of the ratio at first, as a share, decode steps
AHEAD = 20  # decode steps that a retraction expects of each request


class ExpectedRatio:
    """The new token ratio of one configuration, and how decisions change it."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.start = min(START * config.schedule_conservativeness, 1.0)
        self.least = LEAST * self.start

    def decayed(self, ratio: float) -> float:
        """Return the ratio after a step of decodes."""
        lower = max(ratio - (self.start - self.least) / STEPS, self.least)
        return lower if ratio > self.least else ratio

    def estimated(self, kept: Iterable[Request]) -> float:
        """Return the ratio after a retraction, which keeps these requests."""
        reqs = list(kept)
        outputs = sum(len(req.output_ids) + AHEAD for req in reqs)
        return min(1.0, outputs / (1 + sum(req.params.max_new_tokens for req in reqs)))

    def wrong(
        self, before: float, now: float, expected: Sequence[float], step: int
    ) -> Iterator[str]:
        """Yield a sentence if the ratio is none of the expected values."""
        if not any(isclose(now, value) for value in expected):
            yield (
                f"the new token ratio is {now:.4f} after the decision on step {step}, and was "
                f"{before:.4f}, but its rule gives {expected[0]:.4f}"
            )


LONG_QUEUE = 128  # SGLang: a longer one is not sorted by the cache
ENOUGH = 32  # tokens, cached or shared with an earlier request


def order_by_cache(policy: str, reqs: Sequence[Request], tree: RadixCache) -> list[Request]:
    """Return the order of a queue by ``lpm`` or ``dfs-weight``; ``reqs`` are in the last order."""
    ends = {req: path_of(req, tree) for req in reqs}
    if policy == "lpm":
        if len(reqs) > LONG_QUEUE:
            return list(reqs)
        cached = {req: sum(node.num_pages for node in ends[req]) * tree.page_size for req in reqs}
        later, seen = set[Request](), list[tuple[int, ...]]()
        for req in reqs:
            tokens = req.known_tokens(0, req.known_len)
            if cached[req] <= ENOUGH:
                is_like = any(tokens[:ENOUGH] == other[:ENOUGH] for other in seen)
                if is_like and len(tokens) >= ENOUGH:
                    later.add(req)
                else:
                    seen.append(tokens)
        rank = {req: -min(cached[req], req.known_len - 1) for req in reqs}
        return sorted(reqs, key=lambda req: (req in later, 0 if req in later else rank[req]))

    def branch(node: TreeNode) -> list[Request]:
        """Return the requests that match a node, those of its largest branches first."""
        below = sorted(map(branch, node.children.values()), key=len, reverse=True)
        own = [req for req in reqs if (ends[req] or [tree.root_node])[-1] is node]
        return [*chain.from_iterable(below), *own]

    return branch(tree.root_node)


def path_of(req: Request, tree: RadixCache) -> list[TreeNode]:
    """Return the nodes of the tree that a request's tokens match as a whole, from the root on."""
    node, path, at, size = tree.root_node, list[TreeNode](), 0, tree.page_size
    tokens = req.known_tokens(0, req.known_len)
    while child := node.children.get(tokens[at : at + size]):
        if child.shared_pages(tokens, at) < child.num_pages:
            break
        path.append(node := child)
        at += child.num_pages * size
    return path


def wrong_cuts(prompts: Mapping[Request, Row], started: Request | None, left: int) -> Iterator[str]:
    """Yield the prompts of a step with one budget that compute another number of tokens.

    ``left`` is the budget for them. The prompt ``started`` before may compute fewer for lack of
    memory. ``admission.py`` judges prompts that have a budget of their own.
    """
    for req, row in prompts.items():
        rest, count = req.known_len - row.start, len(row.ids)
        most = min(rest, left)
        if count > most or (count < most and req is not started):
            yield (
                f"{req.rid} computes {many(count, 'token')} of its prompt in a step, but the rules "
                f"cut the {rest} that are left to {most}, because {left} of the budget are left"
            )
        left -= count
