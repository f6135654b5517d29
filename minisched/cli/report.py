"""What ``compare`` says: a table, the verdict, and why it is faster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..checks.drafts import count_drafts
from ..checks.overlap.overlap import OverlapReport
from ..checks.overlap.waits import ARRIVAL, HOST
from ..compare import Comparison
from ..devices.cost import MILLISECOND
from ..export.pd_or_mixed import Row, find_runs, rows
from .layout import Fitted

COLUMNS = (
    "loop", "steps", "tokens", "makespan\n(ms)", "device\nbusy", "host\nhidden", "wasted\nrows",
    "speed-up", "of\nideal",
)  # fmt: skip
MOST_REASONS = 3  # of more loops than these, only the fastest gets a sentence


def print_report(console: Console, comparison: Comparison) -> None:
    """The table, the verdict and the reason."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    for column in COLUMNS:
        is_name = column == "loop"  # which may be long: it is folded before a figure is cut
        table.add_column(
            column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold"
        )
    for report in comparison.reports:
        table.add_row(*cells(comparison, report))
    console.print(Fitted(table))
    for loop, waits in comparison.num_waits.items():
        if waits:
            console.print(lost_time(loop, comparison.lost_ns[loop], waits), highlight=False)
    for run in comparison.runs:
        if drafts := count_drafts(run.trace):
            console.print(f"{run.loop}: {drafts}.", highlight=False)
    serial, rest = comparison.reports[0], comparison.reports[1:]
    console.print(f"[bold]{verdict(comparison)}[/bold]", highlight=False)
    if rest and (difference := comparison.logprob_difference) is not None:
        console.print(verdict_on_logprobs(difference), highlight=False)
    if len(rest) > MOST_REASONS:  # the table says it for the others
        rest = (min(rest, key=lambda report: report.makespan_ns),)
    for report in rest if serial.tokens and not comparison.unequally_served else ():
        console.print(reason(comparison, serial, report), highlight=False)
    if pair := find_runs(comparison.runs):
        print_pd_or_mixed(console, rows(*pair))


def print_pd_or_mixed(console: Console, compared: Sequence[Row]) -> None:
    """The guides' comparison of PD separation and mixed chunks."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in ("", "PD separation", "mixed chunks"):
        table.add_column(column)
    for row in compared:
        table.add_row(*row)
    console.print(Fitted(table))


def cells(comparison: Comparison, report: OverlapReport) -> list[str]:
    """One row of the table."""
    speedup = comparison.speedup[report.loop]
    return [
        report.loop,
        str(report.steps),
        str(report.tokens),
        f"{report.makespan_ns / MILLISECOND:.1f}",
        f"{report.device_busy_percent:.0f} %",
        f"{report.host_hidden_percent:.0f} %",
        str(report.wasted_rows),
        f"{speedup:.2f} x",
        f"{100 * speedup / comparison.ideal:.0f} %" if report.loop != "serial" else "",
    ]


def lost_time(loop: str, lost: Mapping[str, int], waits: Mapping[str, int]) -> str:
    """What the waits of a loop cost: for how long its devices have idled, and why."""
    costly = [why for why in waits if lost[why]]
    parts = [f"{milliseconds(lost[why])} in {num_waits(waits[why], why)}" for why in costly]
    others = {HOST: "because of the host's ordinary work", ARRIVAL: "with nobody to serve"}
    parts += [f"{milliseconds(lost[name])} {why}" for name, why in others.items() if lost[name]]
    time = f"{milliseconds(sum(lost.values()))} of device time: {', '.join(parts)}"
    sentence = f"{loop} lost {time if parts else 'no device time'}."
    if hidden := " and ".join(num_waits(waits[why], why) for why in waits if not lost[why]):
        sentence += f" {hidden} cost nothing: the device had other work meanwhile."
    return sentence


def num_waits(count: int, reason: str) -> str:
    """Such as ``40 waits for grammar``."""
    return f"{count} wait{'s' * (count > 1)} for {reason}"


def verdict(comparison: Comparison) -> str:
    """One sentence: identical, or where not."""
    if not comparison.reports[0].tokens:
        return "No request gave a token, so there is nothing to compare."
    if not comparison.identical:
        return "Not identical. " + ". ".join(map(str, comparison.differences)) + "."
    others = [run.loop for run in comparison.runs[1:]]
    if not others:
        return "Only serial ran, so there is nothing to compare."
    names = ", ".join(others) if len(others) <= MOST_REASONS else f"all {len(others)} loops"
    if unequal := comparison.unequally_served:
        return (
            f"Identical where both answered, but {', '.join(unequal)} did not answer the requests "
            "that serial did: their times can't be compared."
        )
    return f"Identical: {names} gave every request the same tokens as serial."


def verdict_on_logprobs(difference: float) -> str:
    """One sentence on log-probabilities: equal, or by how much they differ."""
    if not difference:
        return "Their log-probabilities are equal to the last bit."
    return f"Their log-probabilities differ by {difference:.2g} at most, up to where tokens do."


def reason(comparison: Comparison, serial: OverlapReport, report: OverlapReport) -> str:
    """One sentence on where the time went; on a wall clock a second one on what not to believe."""
    start = (
        f"{report.loop} takes {milliseconds(report.makespan_ns)} instead of "
        f"{milliseconds(serial.makespan_ns)} ({comparison.speedup[report.loop]:.2f} x; "
        f"hiding everything would give {comparison.ideal:.2f} x): "
    )
    busy = (
        f"the device works {report.device_busy_percent:.0f} % of the time instead of "
        f"{serial.device_busy_percent:.0f} %"
    )
    if comparison.runs[0].trace.clock == "wall":
        return (
            f"{start}{busy}, and was busy for {milliseconds(report.device_busy_ns)} instead of "
            f"{milliseconds(serial.device_busy_ns)}. These are single runs, and the host's times "
            "include its waiting for the interpreter lock; minisched bench repeats and interleaves."
        )
    return (
        f"{start}{milliseconds(report.host_hidden_ns)} of the host's "
        f"{milliseconds(report.host_busy_ns)} of work now run while the device is busy, so {busy}."
    )


def print_errors(errors: Mapping[str, str]) -> None:
    """Say on stderr which requests ended badly, and why."""
    for rid, error in errors.items():
        print(f"request {rid}: {error}", file=sys.stderr)


def milliseconds(nanoseconds: int) -> str:
    """A time to read, such as ``632.8 ms``."""
    if 0 < nanoseconds < MILLISECOND // 20:
        return "less than 0.1 ms"
    return f"{nanoseconds / MILLISECOND:.1f} ms"
