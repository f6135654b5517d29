"""Why a request does not run: recorded each time, so that a learner can ask."""

from __future__ import annotations

from ..core import Request
from ..trace import Recorder
from .prefill_budget import AddReqResult


def refuse(
    recorder: Recorder, req: Request, result: AddReqResult, what: str, need: int, left: int
) -> AddReqResult:
    """Record that ``req`` was refused for want of ``what``; gives ``result`` back."""
    if recorder.is_on:
        unit = "row" if what == "max_running_requests" else "token" if need == 1 else "tokens"
        recorder.mark(
            "refuse", rid=req.rid, result=result.name, need=need, left=left,
            reason=f"{what}: needs {need} {unit}, {left} left",
        )  # fmt: skip
    return result


def hold_back(recorder: Recorder, req: Request | None, reason: str) -> None:
    """Record that ``req``, the first who waits, was not even asked, and why."""
    if req is not None and recorder.is_on:
        other = AddReqResult.OTHER.name
        recorder.mark("refuse", rid=req.rid, result=other, need=0, left=0, reason=reason)
