"""Where a grammar would come in: what vLLM's two step functions ask of structured output."""

from __future__ import annotations

from typing import Protocol

from ..core import Request, ScheduleBatch


class StructuredOutput(Protocol):
    """The part of vLLM's scheduler that knows grammars (``get_grammar_bitmask``).

    A mask says which tokens may come next, so it needs the token before; the forward pass does
    not need the mask. That is why sampling was split from the forward pass (#26866).
    """

    def uses(self, req: Request) -> bool:
        """Whether a request's output follows a grammar."""
        ...

    def get_grammar_bitmask(self, batch: ScheduleBatch) -> None:
        """Host: build the masks for a step whose forward pass is launched, before it samples."""
        ...


def pending_structured_output_tokens(grammar: StructuredOutput, batch: ScheduleBatch) -> bool:
    """Whether the mask of a row needs a token that is still in flight.

    vLLM sets it where a request that uses structured output had output placeholders *before* this
    step added its own: then its input token is one that the host does not know.
    """
    return any(
        None in ids and grammar.uses(req) for req, ids in zip(batch.reqs, batch.ids, strict=True)
    )
