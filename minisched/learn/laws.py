"""What must be true of every trial, and the first thing that is not."""

from __future__ import annotations

from dataclasses import dataclass

from .trial import Trial
from .wording import ordinal


@dataclass(frozen=True)
class BrokenLaw:
    """A law that does not hold: its name, a sentence, and the step at which it shows (0: none)."""

    law: str
    sentence: str
    step: int = 0
    rid: str = ""


def broken(trial: Trial) -> BrokenLaw | None:
    """The first law that a trial breaks: every token is right, and every request ends.

    A wrong token goes before whatever else went wrong later: it is the nearest to the cause.
    """
    if wrong := wrong_token(trial):
        return wrong
    if trial.problem:
        return BrokenLaw("ends", trial.problem, last_step(trial))
    for rid, error in trial.ended.items():
        if error:
            return BrokenLaw(
                "error", f"Request {rid} ended with an error: {error}", last_step(trial)
            )
    return too_few(trial)


def wrong_token(trial: Trial) -> BrokenLaw | None:
    """The first token that its request would not have got alone."""
    truths = {one.rid: one.truth for one in trial.workload.asked}
    heard = dict.fromkeys(truths, 0)
    for rid, token, step in trial.heard:
        at, truth = heard[rid], truths[rid]
        heard[rid] += 1
        which = f"request {rid}'s {ordinal(at + 1)} token"
        if at >= len(truth):
            return BrokenLaw(
                "identity", f"{which} is one too many: it should have ended.", step, rid
            )
        if token != truth[at]:
            sentence = f"{which} is {token}, should be {truth[at]}: step {step} sampled it."
            return BrokenLaw("identity", sentence, step, rid)
    return None


def too_few(trial: Trial) -> BrokenLaw | None:
    """A request that ended before it had all of its tokens."""
    for one in trial.workload.asked:
        got, wanted = len(trial.tokens(one.rid)), len(one.truth)
        if got < wanted:
            sentence = f"request {one.rid} got {got} tokens, should get {wanted}."
            return BrokenLaw("identity", sentence, last_step(trial), one.rid)
    return None


def last_step(trial: Trial) -> int:
    """The newest step that ran, or 0."""
    return max((item.step for item in trial.trace.slices if item.name == "forward"), default=0)
