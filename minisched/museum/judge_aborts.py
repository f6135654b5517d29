"""A law about aborts: who has been given up hears no token any more."""

from __future__ import annotations

from dataclasses import replace

from ..checks.judge import Case, Finding, Verdict, judge
from ..core import Output
from ..engine.engine import Engine


def judge_aborts(case: Case) -> Verdict:
    """Every law, and that no token comes after the scheduler has taken in an abort.

    The laws on tokens and ends cannot see that: the tokens are right, and the request ends once.
    """
    had: dict[str, int] = {}  # tokens that a request had when its abort was taken in

    def listen(engine: Engine) -> None:
        scheduler = engine.scheduler
        abort = scheduler.abort

        def heard(rid: str, error: str = "") -> list[Output]:
            if req := scheduler.live.get(rid):
                had.setdefault(rid, len(req.output_ids))
            return abort(rid, error)

        scheduler.abort = heard  # type: ignore[method-assign]

    verdict = judge(case, listen)
    late = []
    for req in verdict.workload.requests:
        if tokens := req.output_ids[had.get(req.rid, len(req.output_ids)) :]:
            end = req.finish_reason.value if req.finish_reason else "nothing"
            sentence = f"{req.rid} got {tokens} after it was aborted, and ended with {end}"
            late.append(Finding("abort", sentence))
    return replace(verdict, findings=(*verdict.findings, *late))
