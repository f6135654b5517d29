"""Tokens that were delivered although they were none, and tokens that were not delivered."""

from __future__ import annotations

from typing import NamedTuple

from ...trace import Trace
from ..leaks.leaks import moments
from ..leaks.lease import HeldLease
from ..leaks.ledger import Ledger
from .identity import tokens_heard


class Misdelivery(NamedTuple):
    """What happened to a step's token of a request, and why it should not have."""

    step: int
    rid: str
    sentence: str


def misdeliveries(trace: Trace, side: str = "") -> list[Misdelivery]:
    """Deliveries that are not what was settled when the step was committed, in order.

    A chunk that is not a prompt's last samples no token. A token counts for whoever still has the
    lease that the step was committed under; where a mark ``stale output`` says so, without.
    """
    ledger, found = Ledger(), list[Misdelivery]()
    stale: set[tuple[str, int]] = set()
    heard = {(rid, item.step) for rid, items in tokens_heard(trace).items() for item in items}
    for mark, now in moments(trace, side):
        of = mark.attrs
        ledger.hear(mark, now)
        if mark.name == "stale output":
            stale.add((str(of["rid"]), int(of["step"])))
        elif mark.name == "tokens" and int(of["step"]) in ledger.commits:
            step = int(of["step"])
            for lease in filter(None, ledger.commits[step]):
                is_open = lease.closed is None or lease.closed.step == step
                says = _judged(
                    step, lease.rid, (lease.rid, step) in heard, lease.row in ledger.chunks[step],
                    is_open or (lease.rid, step) in stale, lease,
                )  # fmt: skip
                found += [Misdelivery(step, lease.rid, says)] if says else []
    return found


def _judged(
    step: int, rid: str, is_heard: bool, is_chunk: bool, counts: bool, lease: HeldLease
) -> str:
    """What is wrong about a delivery, or nothing."""
    if is_heard and is_chunk:
        return (
            f"what step {step} sampled for {rid} was delivered, although that step computed a "
            "chunk that is not the last of its prompt: such a sample is no token"
        )
    if is_heard and not counts and lease.why != "retraction":
        return (
            f"the token of step {step} was delivered to {rid}, although {lease.end}: nothing may "
            "come behind that"
        )
    if is_heard and not counts:
        return (
            f"the token of step {step} was delivered to {rid}, although {rid} had lost the lease "
            f"that the step was committed under ({lease.why}): it is computed once more"
        )
    if not is_heard and not is_chunk and counts and lease.why not in ("error", "abort"):
        return (
            f"step {step} sampled a token for {rid}, which was not delivered, although {rid} "
            "still had its lease and all of its prompt was computed"
        )
    return ""
