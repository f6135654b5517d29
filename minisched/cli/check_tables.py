"""What many cases came to, as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ..checks.answers import counted
from ..checks.many import LAWS, laws_on
from ..checks.tally import Tally, base_of
from .layout import Fitted, say

SAYS = {
    "identity": "each request gets the tokens that it would get alone",
    "ends": "each request ends once, and its client heard it",
    "client": "it hears why it ended, its usage, and each token at once",
    "logprobs": "it hears the log-probabilities that it would hear alone",
    "abort": "who is given up ends in that turn, and hears no more tokens",
    "progress": "who may run is in the next step, or there is a reason",
    "order": "nobody goes before their turn, or loses memory before others",
    "budget": "no step has more tokens or rows than its budget",
    "leak": "nothing is held, lost or freed twice",
    "race": "what lanes do to memory is ordered, and what is freed is left alone",
    "touches": "an op touches what it says that it does, and nothing else (on sim)",
    "ownership": "no page or row is handed out while somebody has it",
    "time": "nothing ends before it starts",
    "livelock": "turns bring every request to its end",
    "deadlock": "nobody waits for what never comes",
    "crash": "no error stops a loop",
}


MANY_VALUES = 24  # of an axis: more are counted and not listed
FEW_VALUES = 8  # that never came up: more are counted


def print_tally(
    console: Console, tally: Tally, seconds: float, jobs: int, with_axes: bool = False
) -> None:
    """How much was tried and of what kind, what held by law, and by loop."""
    cases = len(tally.cases)
    broken = len({(item.seed, item.loop) for item in tally.failures})
    last = tally.seed + tally.workloads - 1
    seeds = f"seed {tally.seed}" if last == tally.seed else f"seeds {tally.seed} to {last}"
    say(
        console,
        f"{counted(tally.workloads, 'workload')} ({seeds}) on "
        f"{counted(len(tally.by_loop), 'loop')}: {counted(cases, 'case')} on "
        f"{tally.device} with hash, in {seconds:.1f} s on {counted(jobs, 'core')}",
    )
    say(console, requests_sentence(tally))
    say(console, axes_sentence(tally))
    if with_axes:
        print_axes(console, tally)
    console.print(Fitted(by_law(tally)))
    console.print(Fitted(by_loop(tally)))
    say(console, verdict_on_cases(tally, broken), 2)


def verdict_on_cases(tally: Tally, broken: int) -> str:
    """One sentence on all of it; ``broken`` cases broke a law."""
    cases = len(tally.cases)
    if broken:
        return f"[red]✗[/] {broken} of {cases} cases broke a law."
    if not cases:
        return "? Nothing to judge: no loop takes these workloads, so no case was run."
    unseen = [law for law in laws_on(tally.device) if tally.unjudged(law) == cases]
    if unseen:
        return (
            f"? No law broke in {counted(cases, 'case')}, but nothing happened that "
            f"{' or '.join(unseen)} could be judged by."
        )
    return f"[green]✓[/] every law held in all {cases} cases."


def refusals_sentence(tally: Tally) -> str:
    """How many loops could not be asked, because they refuse what a workload wants."""
    counts = [count for count in tally.refusing if count]
    if not counts:
        return "no loop refused a workload"
    some = counted(max(counts), "loop")
    some = some if min(counts) == max(counts) else f"{min(counts)} to {some}"
    return f"{counted(len(counts), 'workload')} speculated as {some} refused: not tried on these"


def requests_sentence(tally: Tally) -> str:
    """How the requests ended, over all cases."""
    total, aborted, refused, failed = (
        sum(getattr(case, name) for case in tally.cases)
        for name in ("requests", "aborted", "refused", "failed")
    )
    return (
        f"{counted(total, 'request')}: {total - aborted - refused - failed} ran to their end, "
        f"{aborted} given up, {failed} in a step that was to fail, {refused} rightly refused"
    )


def axes_sentence(tally: Tally) -> str:
    """How many values there are on all axes, and of how many there was no workload or case."""
    tables = tally.all_axes.values()
    values = sum(len(axes.drawn(name)) for axes in tables for name in axes.values)
    never = {name: lacking for axes in tables for name, lacking in axes.never.items()}
    if not never:
        return f"drawn: each of the {values} values that the axes have; --axes counts them"
    lacking = sum(map(len, never.values()))
    return (
        f"drawn: {values - lacking} of the {values} values that the axes have; {lacking} never, on "
        f"{counted(len(never), 'axis', 'axes')}; --axes names them"
    )


def print_axes(console: Console, tally: Tally) -> None:
    """How often each value of each axis came up; then, in words, which never did."""
    for title, axes in tally.all_axes.items():
        table = Table("", title, "values, and how often each came up")
        for name in axes.values:
            counts = {value: count for value, count in axes.drawn(name).items() if count}
            said = ", ".join(f"{value} [dim]×{count}[/]" for value, count in counts.items())
            if (size := len(axes.drawn(name))) > MANY_VALUES and counts:
                least, most = min(counts.values()), max(counts.values())
                often = f"{least} to {most}" if least < most else str(most)
                said = f"{len(counts)} of {size} values, [dim]×{often}[/] each"
            table.add_row("?" if name in axes.never else sign(True), name, said)
        console.print(Fitted(table))
        for name, lacking in axes.never.items():
            more = len(lacking) - FEW_VALUES
            others = f"; and {more} more, which --json names" if more > 0 else ""
            say(console, f"never drawn: {name} {'; '.join(lacking[:FEW_VALUES])}{others}", 2)


def by_law(tally: Tally) -> Table:
    """Each law, and in how many cases it held that had something to break it with."""
    table = Table("", "law", "what it says", "held")
    table.columns[-1].justify = "right"
    for law in laws_on(tally.device):
        held, cases = tally.holding(law), len(tally.cases)
        judged = sign(held == cases) if tally.unjudged(law) < cases else "?"
        table.add_row(judged, law, SAYS[law], str(held - tally.unjudged(law)))
    return table


def by_loop(tally: Tally) -> Table:
    """Each loop, with its variants (relays and options), and which laws they broke."""
    table = Table("", "loop", "variants", "cases", "broken")
    table.columns[2].justify = table.columns[3].justify = "right"
    for loop, cases in tally.by_loop.items():
        designs = {case.loop for case in tally.cases if base_of(case.loop) == loop}
        broken = {law: cases - tally.holding(law, loop) for law in LAWS}
        words = ", ".join(f"{law} {count}" for law, count in broken.items() if count)
        table.add_row(sign(not words), loop, str(len(designs)), str(cases), words)
    return table


def sign(holds: bool) -> str:
    """Whether something holds, at a glance and without colour."""
    return "[green]✓[/]" if holds else "[red]✗[/]"
