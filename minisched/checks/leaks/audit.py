"""Looks through the books: between two steps, and when the trace is over."""

from __future__ import annotations

from ...trace.program import to_text
from .leak import Leak, plural
from .lease import HeldLease
from .ledger import Ledger
from .moment import Moment


def settle(ledger: Ledger, now: Moment) -> None:
    """Between two steps: whoever has ended holds nothing that nobody names."""
    ledger.pages.find_lost(now)
    for lease in list(ledger.ending):
        if ledger.is_named(lease):
            continue
        if lease.released is None:
            lease.overdue = lease.overdue or now
            continue
        del ledger.ending[lease]
        if lease.overdue is not None:
            fate = f"and nobody named it any more, but it was released only {lease.released}"
            report(ledger, lease, fate, [("row", f"row {lease.row}")])
        report(ledger, lease, f"and its row was freed {lease.released}, but this was not")


def close(ledger: Ledger, now: Moment, sees_steps: bool) -> list[Leak]:
    """The trace is over; everything that was wrong, in order of time.

    ``sees_steps`` says whether the trace tells which steps came back.
    """
    settle(ledger, now)
    for lease in dict.fromkeys([*ledger.ending, *ledger.by_row.values()]):
        fate = "and the trace is over"
        if lease.released is not None:
            fate = f"and its row was freed {lease.released}, but this was not"
        elif lease.closed is not None:
            fate = "and its lease was never released"
        lease.overdue = lease.overdue or now
        report(ledger, lease, fate)
    for step, committed in ledger.in_flight.items() if sees_steps else ():
        _report_step(ledger, step, committed, now)
    return sorted(ledger.leaks, key=lambda leak: leak.time)


def report(
    ledger: Ledger, lease: HeldLease, fate: str, rest: list[tuple[str, str]] | None = None
) -> None:
    """Whatever a lease still holds, or what it held for too long: a leak each."""
    seen = lease.overdue or lease.released or lease.opened
    for resource, what in lease.rest if rest is None else rest:
        verb = "were allocated to" if what.startswith("pages") else "was allocated to"
        verb = "was taken for" if resource == "lock" else verb
        history = lease.lock_history if resource == "lock" else lease.history
        is_late = resource == "lock" and lease.released
        duty = ": it should have been unlocked then" if is_late else ""
        story = f"{what} {verb} {history}, {fate}{duty}"
        ledger.leaks.append(Leak(resource, what, "held", lease.rid, story, seen.time, lease.slices))


def _report_step(ledger: Ledger, step: int, committed: Moment, now: Moment) -> None:
    """A step that never came back, with the future slots that wait for its tokens."""
    slots = ledger.slots.of(step)
    story = f"step {step} was committed {Moment(committed.time)} and never came back"
    story += f", and so {plural('future slot', to_text(slots))} has no token" if slots else ""
    ledger.leaks.append(
        Leak("step", f"step {step}", "pending", "", story, now.time, committed.slices)
    )
