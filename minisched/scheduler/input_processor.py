"""New requests: which of them may enter, and the features that they use.

A request enters the waiting queue if its form is right, if it could run here, if its id is free,
and if each feature can serve it. Otherwise it is refused with one sentence, and no other request is
affected. One that asks for more tokens than fit may get fewer (rule ``too_many_tokens``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..core import FinishReason, Output, Request
from ..core.feature import Feature
from ..core.sampling import shown
from ..trace import Recorder
from .config import SchedulerConfig, filled_by_a_run


class InputProcessor:
    """Checks new requests and makes their parts (vLLM ``v1/engine/input_processor.py``).

    Raises:
        ValueError: a setting needs a feature that is missing.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        features: Iterable[Feature],
        live: Mapping[str, Request],
        recorder: Recorder,
    ) -> None:
        self.config, self.live, self.recorder = config, live, recorder
        self.features = tuple(features)  # that requests may use
        self.in_use: tuple[Feature, ...] = ()  # those of them that live requests use
        self.uses: dict[Request, tuple[Feature, ...]] = {}  # by live request, if it uses any
        if config.keep_stale_outputs and not any(item.keeps_late for item in self.features):
            raise ValueError(
                "keep_stale_outputs is True, but no feature of this scheduler keeps stale outputs; "
                "features must have a StaleOutputs(), as in the list that features_of makes."
            )

    def accept(self, req: Request) -> str:
        """Let a request in with its parts and stop tokens; return why it is refused, or nothing."""
        problem = self.config.refusal(req) or self._is_taken(req) or self._add_parts(req)
        if not problem:
            model_stops = frozenset() if req.params.ignore_eos else self.config.eos_ids
            req.stop_ids = req.params.stop_token_ids | model_stops
            if (fitting := self.config.new_tokens_of(req)) < req.params.max_new_tokens:
                self.recorder.mark("clip", rid=req.rid, max_new_tokens=fitting)
                req.clip(fitting)
        return problem

    def refuse(self, req: Request, problem: str) -> Output:
        """End a request that did not enter, and return its output. A live namesake goes on.

        A request that was sent twice keeps its state.
        """
        reason, other = FinishReason.ERROR, self.live.get(req.name)
        if other is not req and not req.finished:
            req.finish_reason, req.error = reason, problem
        if other is None:
            self.recorder.mark("finish", rid=req.name, reason=reason.value, outputs=0)
        else:
            self.recorder.mark("refused", rid=req.name)
        return Output(req.name, None, reason, problem, namesake=other is not None)

    def leave(self, req: Request) -> None:
        """Forget the features of a request that has ended."""
        if self.uses.pop(req, None):
            self._count_features()

    def _is_taken(self, req: Request) -> str:
        """Return why a request of good form can't enter now, or nothing."""
        if req.rid in self.live:
            return f"request id {shown(req.rid)} is already in use; each request needs its own."
        if req.finished:
            return f"request {shown(req.rid)} has run already; a new run needs a new Request."
        return filled_by_a_run(req)

    def _add_parts(self, req: Request) -> str:
        """Let each feature make its part of a request; return why one refuses it, or nothing."""
        try:
            found = {feature: feature.part_of(req) for feature in self.features}
        except ValueError as error:
            return str(error)
        req.parts = tuple(part for part in found.values() if part is not None)
        if req.parts:
            self.uses[req] = tuple(feature for feature, part in found.items() if part is not None)
            self._count_features()
        return ""

    def _count_features(self) -> None:
        """Find the features that live requests use, for the next batches."""
        used = set().union(*self.uses.values())
        self.in_use = tuple(feature for feature in self.features if feature in used)
