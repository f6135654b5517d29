"""What each request would get alone, as the trace of a run: a baseline that no scheduler made."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import quote

from ...core import FinishReason, Request
from ...trace import Mark, Trace
from ..laws import tokens_alone
from ..workload import Workload


def oracle_trace(workload: Workload, refused: Collection[str] = ()) -> Trace:
    """Marks ``tokens`` and ``finish`` alone: nobody ran it, so it has neither lanes nor times.

    ``workload`` is as a run has left it: of who gave up there, or was in a step that failed, the
    first tokens are asked for, and who is ``refused`` gets none.
    """
    marks = [mark for req in workload.requests for mark in _marks(workload, req, refused)]
    return Trace("oracle", "", "hash", "virtual", (), (), (), tuple(marks))


def _marks(workload: Workload, req: Request, refused: Collection[str]) -> list[Mark]:
    """What a client hears of one request, and its end."""
    truth = [] if req.rid in refused else tokens_alone(workload, req)
    if req.finish_reason is FinishReason.ABORT:
        reason = FinishReason.ABORT
    elif not truth or workload.has_failed(req):
        reason = FinishReason.ERROR
    else:
        is_long = len(truth) == req.params.max_new_tokens
        reason = FinishReason.LENGTH if is_long else FinishReason.STOP
    rids, tokens = " ".join([quote(req.rid)] * len(truth)), " ".join(map(str, truth))
    heard = Mark("tokens", 0, {"step": 0, "rids": rids, "tokens": tokens})
    end = Mark("finish", 0, {"rid": req.rid, "reason": reason.value, "outputs": len(truth)})
    return [heard, end]
