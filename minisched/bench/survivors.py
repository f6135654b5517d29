"""The mutants that are known to live, each with the reason why no test sees it.

A mutant is named by its function and by the lines that change; ``bench mutation`` calls every
other survivor unexplained. Reasons begin with what kind it is: ``EQUIVALENT`` (the program does the
same), ``SPEED`` (the same, only slower or faster) or ``WORDING`` (a text that no test should pin).
"""

from __future__ import annotations

from typing import NamedTuple

from .mutation_diff import Mutant

EQUIVALENT, SPEED, WORDING = "equivalent", "only speed", "only wording"


class Known(NamedTuple):
    """A mutant that lives; ``taken`` and ``put`` as ``Mutant`` has them."""

    function: str
    taken: str
    put: str
    why: str


AS_LONG = f"{EQUIVALENT}: both are made row by row from one batch, so strict finds nothing."

KNOWN: tuple[Known, ...] = (
    Known(
        "deliver_logprobs",
        "for row, found in zip(batch.rows, logprobs, strict=True):",
        "for row, found in zip(batch.rows, logprobs, strict=False):",
        AS_LONG,
    ),
    Known(
        "with_prefix_lens",
        "info = [(p, key, end) for (p, key, _), end in zip(flat.sampling_info, ends, strict=True)]",
        "info = [(p, key, end) for (p, key, _), end in zip(flat.sampling_info, ends, strict=None)]",
        AS_LONG,
    ),
    Known(
        "FillHost.fill",
        "for at, row in zip(masks.update_indices, masks.hit_indices, strict=True):",
        "for at, row in zip(masks.update_indices, masks.hit_indices, strict=False):",
        AS_LONG,
    ),
    Known(
        "FutureMapPool.__init__",
        'self.output_tokens_buf = device.memory("future map", size)',
        'self.output_tokens_buf = device.memory("XXfuture mapXX", size)',
        f"{WORDING}: what the simulated memory is called; what a step reads is declared apart.",
    ),
)


def why_it_lives(mutant: Mutant) -> str:
    """The reason that is on record; empty without one."""
    same = (mutant.function, mutant.taken, mutant.put)
    return next((item.why for item in KNOWN if item[:3] == same), "")
