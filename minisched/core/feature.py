"""Hooks: what the core calls of capabilities that it does not know.

A *feature* is a capability that most requests do without: a grammar, log-probabilities, stop
strings. Each is one file in ``features/``, and no file of the core imports it. A feature keeps its
state in up to three places::

    Feature        one for an engine     data that all requests share, such as a compiler
    RequestPart    one for a request     in ``Request.parts`` (``part.py``), made by ``part_of``
    StepPart       one for a step        in ``Step.parts``, made by ``step_part`` at the layout

A plain request, batch or step has none of these, so each hook is a loop over an empty tuple. A
capability that replaces a part of a step is a subclass instead, next to the design that needs it:
drafts (``worker/verify.py``), uploads (``loops/mini.py``), pipelines (``loops/vllm_pp.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .batch import Outputs, Result, ScheduleBatch
from .part import RequestPart
from .request import Request


class StepPart:
    """A feature's share of one step, from its layout until its result is read."""

    is_ready = True  # the host has nothing left to build before the step can sample

    def lay_out(self, flat: Any) -> Any:
        """Return the flat batch (``models/base.py:ForwardBatch``) to ship, on the host."""
        return flat

    def ship(self) -> None:
        """Bring to the device what the step needs besides the flat batch."""

    def before_sample(self, newest: Mapping[str, Sequence[int]]) -> None:
        """Build what sampling needs; ``newest`` has tokens that the requests lack, by id."""

    def sample_inputs(self, inputs: Any) -> Any:
        """Return the shipped batch for the sample op."""
        return inputs

    def after_copy(self) -> None:
        """Queue the step's further ops, after the copy of its tokens."""

    def read(self, result: Result) -> Result:
        """Add the values of those ops to the result."""
        return result


class Feature:
    """A capability of an engine. A subclass overrides the hooks that it needs."""

    keeps_late = False  # a token counts although its request lost its lease after the launch

    def attach(self, scheduler: Any) -> None:
        """Take what the feature needs of its scheduler; called once."""

    def part_of(self, req: Request) -> RequestPart | None:
        """Return the part of a request that uses this feature, or None.

        Raises:
            ValueError: the request can't have the feature; the message has the reason.
        """
        return None

    def on_commit(self, batch: ScheduleBatch) -> None:
        """Follow the commit of a step."""

    def on_return(self, batch: ScheduleBatch) -> None:
        """Follow the return of a step, before its tokens are delivered."""

    def on_result(self, batch: ScheduleBatch, result: Result, outputs: Outputs) -> None:
        """Add to ``outputs``, which clients will receive, after the tokens are delivered."""

    def has_history(self, batch: ScheduleBatch) -> bool:
        """Return whether a token that the step samples depends on the tokens before it."""
        return False

    def missing_history(self, batch: ScheduleBatch, steps_ahead: int) -> str:
        """Return in one word why the step can't be sampled yet; empty if it can."""
        return ""

    def step_part(self, worker: Any, step: Any) -> StepPart | None:
        """Return the feature's share of a step, or None."""
        return None
