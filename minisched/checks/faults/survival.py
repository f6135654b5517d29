"""What must hold although something has gone wrong: who may have ended, and who may not notice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core import FinishReason, Output, Request
from ...trace import Trace
from ..laws import Broken
from ..leaks.books import threads
from ..leaks.leaks import find_leaks
from ..tokens.oracle import Refusal, tokens_alone
from ..workload import Workload
from .fault import Fault

FATES_OF_THE_DEAD = ("it never ran", "thread, and nobody has waited for it")
ENDED_EARLY = (FinishReason.ERROR, FinishReason.ABORT)


@dataclass(frozen=True)
class Aftermath:
    """A run that is over, and the fault that was in it."""

    fault: Fault
    workload: Workload
    outputs: Sequence[Output]  # what clients heard
    trace: Trace

    def may_end(self, req: Request) -> bool:
        """Whether a request may have ended early: by the fault, or because the workload says so."""
        return self.is_given_up(req) or self.is_touched(req)

    def is_given_up(self, req: Request) -> bool:
        """Whether the workload itself gives a request up, at one time or another."""
        return req.rid in self.workload.aborts.values()

    def is_touched(self, req: Request) -> bool:
        """Whether the fault has to do with a request; where it can't say with whom, they do."""
        is_unknown = self.fault.is_hit and not self.fault.touched
        return self.fault.may_end(req.rid) or (is_unknown and req.rid in self.failed_with)

    @property
    def failed_with(self) -> set[str]:
        """All who were in a step that requests name as the reason of their end.

        Raises:
            Broken: they name several steps, of which only one can have failed.
        """
        reasons = [req.error.split() for req in self.workload.requests]
        steps = {words[1] for words in reasons if words[:1] == ["step"]}
        if len(steps) > 1:
            raise Broken(f"reason: steps {', '.join(sorted(steps))} have failed, and one was to")
        return {rid for item in self.trace.slices if str(item.step) in steps for rid in item.rids}


def check_threads(before: Iterable[str]) -> None:
    """Whatever was opened for the run is closed.

    Raises:
        Broken: a thread is left.
    """
    if left := [name for name in threads() if name not in before]:
        raise Broken(f"leak: the thread {left[0]} is still alive")


def check_no_leak(trace: Trace, is_dead: bool) -> None:
    """Whoever took memory gave it back; and what was launched has ended, as somebody knows.

    A dead thread has not run what was launched for it. Or it has, in time, and nobody asked:
    whoever was about to has heard of its death first.

    Raises:
        Broken: somebody did not.
    """
    for leak in find_leaks(trace):
        if not (is_dead and str(leak).endswith(FATES_OF_THE_DEAD)):
            raise Broken(f"leak: {leak}")


def check_tokens(after: Aftermath, refusal: Refusal) -> None:
    """Whoever may have ended got the first of its tokens and a reason; all others got all.

    Raises:
        Broken: somebody did not.
    """
    for req in after.workload.requests:
        truth = tokens_alone(after.workload, req, refusal)
        given_up = req.finish_reason in ENDED_EARLY and after.may_end(req)
        if req.output_ids != (truth[: len(req.output_ids)] if given_up else truth):
            reason = f" ({req.error})" if req.error else ""
            raise Broken(f"identity: {req.rid} gave {req.output_ids}, alone {truth}{reason}")
        if req.finish_reason is FinishReason.ERROR:
            check_reason(after.fault, req)
        if truth and not given_up and req.finish_reason in ENDED_EARLY:
            raise Broken(f"identity: {req.rid} ended although the fault was none of its own")


def check_reason(fault: Fault, req: Request) -> None:
    """Who ended with an error knows why; and a step has failed because of the fault, and only so.

    Raises:
        Broken: there is no reason, or another one.
    """
    if not req.error:
        raise Broken(f"reason: {req.rid} ended with an error, and nobody knows why")
    if req.error.startswith("step ") and fault.says not in req.error:
        raise Broken(f"reason: {req.rid} ended with {req.error!r}, and not with {fault.says!r}")


def check_heard(after: Aftermath) -> None:
    """Every request ended, once, and its client heard its tokens, if it heard anything.

    Raises:
        Broken: it did not.
    """
    for req in after.workload.requests:
        mine = [output for output in after.outputs if output.rid == req.rid]
        heard = [output.token for output in mine if output.token is not None]
        ends = sum(output.finish_reason is not None for output in mine)
        is_silent = after.fault.is_silent and after.fault.may_end(req.rid)
        if req.finish_reason is None or ends != (0 if is_silent and not ends else 1):
            raise Broken(f"ends: {req.rid} ended {ends} times")
        if heard != (req.output_ids[: len(heard)] if is_silent else req.output_ids):
            raise Broken(f"ends: {req.rid} heard {heard}, produced {req.output_ids}")
