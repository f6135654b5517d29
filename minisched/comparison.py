"""The main job: one workload through several loops, with the verdict and the reason in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from textwrap import fill, wrap

from .checks.answers import count_drafts
from .checks.causes import ARRIVAL, HOST, lost_ns, num_waits
from .checks.history import many
from .checks.identity import (
    Choice,
    Difference,
    closest_choice,
    first_difference,
    with_margin,
)
from .checks.oracle import largest_difference
from .checks.overlap import (
    OverlapReport,
    beats_ideal,
    ideal_speedup,
    measure,
    speedup_over,
    versus_ideal,
)
from .core import Output, Request
from .devices.cost import MILLISECOND, CostModel
from .export.notebook import display, show
from .loops.design import find_loop, wanted_features
from .loops.run import Run, RunStopped, fresh, run_to_end, warm_up
from .models.base import Model
from .models.promise import TIMES, is_allowed
from .scheduler import SchedulerConfig

COLUMNS = (
    "loop", ">steps", ">tokens", ">makespan (ms)", ">device busy", ">host hidden", ">wasted rows",
    ">speed-up", ">of ideal",
)  # fmt: skip
MOST_REASONS = 3  # of more loops, only the fastest gets a sentence
WIDTH = 100  # characters of a line of text


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of one workload, the serial one first, with their comparison.

    Printed, it is the table and the sentences of ``minisched compare``; ``show()`` draws it.
    """

    runs: tuple[Run, ...]
    reports: tuple[OverlapReport, ...]
    differences: tuple[Difference, ...]  # one at most for each run
    closest: Choice | None = None  # of the serial run, if the model's class is margin

    @property
    def identical(self) -> bool:
        """Return whether every run gave the serial run's tokens."""
        return not self.differences

    @property
    def apart(self) -> float | None:
        """Return how far the model's logits move with the batch; None: not measured."""
        return self.runs[0].trace.apart

    @property
    def violations(self) -> tuple[Difference, ...]:
        """Return the differences that the measured movement of the logits does not explain."""
        return tuple(it for it in self.differences if not is_allowed(it.margin, self.apart))

    @property
    def unequally_served(self) -> list[str]:
        """Return the loops that refused or failed other requests than the serial one."""
        serial, *others = self.runs
        return [run.loop for run in others if run.errors.keys() != serial.errors.keys()]

    @property
    def ideal(self) -> float:
        """Return the speed-up if only the longest of host, device and copies took time."""
        return ideal_speedup(self.reports[0])

    @property
    def speedup(self) -> dict[str, float | None]:
        """Return each loop's speed-up over the serial run; None where no time passed."""
        return {report.loop: speedup_over(self.reports[0], report) for report in self.reports}

    @property
    def lost_ns(self) -> dict[str, dict[str, int]]:
        """Return each loop's lost time by reason: nanoseconds in which its devices idled."""
        return {run.loop: lost_ns(run.trace) for run in self.runs}

    @property
    def num_waits(self) -> dict[str, dict[str, int]]:
        """Return each loop's number of waiting ops, by reason."""
        return {run.loop: dict(num_waits(run.trace)) for run in self.runs}

    @property
    def logprob_difference(self) -> float | None:
        """Return the largest difference of a log-probability from the serial run's.

        None if no request wants log-probabilities.
        """
        others = (req for run in self.runs[1:] for req in run.requests)
        return largest_difference(self.runs[0].requests, others)

    @property
    def errors(self) -> dict[str, str]:
        """Return the requests that were refused or failed in any loop, with their reasons."""
        return {rid: error for run in self.runs for rid, error in run.errors.items()}

    def show(self, height: int = 640) -> None:
        """Show the player of all runs in a notebook, ``height`` pixels high; elsewhere the text.

        Raises:
            ValueError: the height is less than 1 pixel.
        """
        display(self.runs, height, str(self))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the table, and below it the player with its picture, for a notebook."""
        said = str(self)
        cell = replace(show(self.runs), text=said, lead=said)
        return cell._repr_mimebundle_()

    def __repr__(self) -> str:
        table = text_table(COLUMNS, [cells(self, report) for report in self.reports], WIDTH)
        said = sentences(self) + [f"Request {rid}: {why}" for rid, why in self.errors.items()]
        return "\n".join([*table, "", *(fill(line, WIDTH) for line in said)])


LEAST = 24  # the fewest columns for the sentences of a table
NO_BREAK = "\xa0"  # a space at which no line is broken


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return rows below their heads, as lines; a head that begins with ``>`` has figures.

    A table that is too wide gets broken heads, closer columns, and a broken last column. If it is
    still too wide, each row's cells stand below its name.
    """
    names = [head.lstrip(">") for head in heads]
    for is_broken, gap in ((False, 2), (True, 2), (True, 1)):
        parts = [name.split() if is_broken else [name] for name in names]
        least = [max(map(len, part), default=0) for part in parts]
        widths = [max([size, *(len(row[at]) for row in rows)]) for at, size in enumerate(least)]
        room = sys.maxsize if width is None else width - sum(widths[:-1]) - gap * (len(names) - 1)
        if widths[-1] <= room or room >= max(LEAST, least[-1]):
            widths[-1] = min(widths[-1], room)
            break
    else:
        return [line for row in rows for line in record(names, row, width or 0)]
    lines = []
    for cells in (names, *rows):
        texts = [broken(cell, size) for cell, size in zip(cells, widths, strict=True)]
        height = max(map(len, texts))
        above = cells is names  # heads stand on their columns
        spare = [[""] * (height - len(text)) for text in texts]
        filled = [no + text if above else text + no for no, text in zip(spare, texts, strict=True)]
        for line in zip(*filled, strict=True):
            placed = (it.rjust(size) if head[:1] == ">" else it.ljust(size)
                      for head, it, size in zip(heads, line, widths, strict=True))  # fmt: skip
            lines.append((" " * gap).join(placed).rstrip())
    return lines


def broken(cell: str, size: int, indent: str = "") -> list[str]:
    """Return a cell as lines, without a break in a word or in the name of an option."""
    return wrap(cell, size, initial_indent=indent, subsequent_indent=indent,
                break_long_words=False, break_on_hyphens=False) or [""]  # fmt: skip


def record(names: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """Return a row alone: its name, after a sign if there is one, then the other cells below."""
    first = int(len(row[0]) <= 1 < len(row))  # a sign, or its place
    lines = [" ".join(filter(None, row[: first + 1]))]
    for name, cell in list(zip(names, row, strict=True))[first + 1 :]:
        if cell:
            whole = cell.replace(" ", NO_BREAK) if len(cell) <= LEAST else cell  # as "3.1 ms" is
            lines += broken(f"{name}: {whole}", width, "  ")
    return [line.replace(NO_BREAK, " ") for line in lines]


def compare_loops(
    loops: Sequence[str],
    device: str,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    cost: CostModel,
    on_output: Callable[[str, Output], None] = lambda loop, output: None,
) -> Comparison:
    """Run ``requests`` through ``serial`` and then the other loops, each on a fresh device.

    ``on_output`` receives every output with its loop.

    Raises:
        ValueError: a loop or the device is unknown, the device is unavailable here, or a loop's
            original does not combine with it what the workload wants.
        KeyboardInterrupt: Ctrl-C; the current run has ended cleanly.
        RunStopped: a run stopped with an error.
    """
    ordered = list(dict.fromkeys(["serial", *loops]))
    wanted = wanted_features(config, requests)
    for loop in ordered:
        (spec := find_loop(loop)).check_device(loop, device)
        if problem := spec.refusal(loop, wanted):
            raise ValueError(problem)
    warm_up(device, model, config)
    runs: list[Run] = []
    for loop in ordered:
        again = [fresh(request) for request in requests]
        hear = partial(on_output, loop)
        try:
            runs.append(run_to_end(loop, device, model, again, config, cost, hear))
        except RunStopped as stopped:
            stopped.traces[:0] = [run.trace for run in runs]
            raise
    tokens = [sum(map(len, run.outputs.values())) for run in runs]
    reports = tuple(measure(run.trace, count) for run, count in zip(runs, tokens, strict=True))
    unserved = (runs[0].errors.keys() | run.errors.keys() for run in runs[1:])  # by either run
    found = (
        first_difference(run.loop, *(
            {rid: tokens for rid, tokens in one.outputs.items() if rid not in refused}
            for one in (runs[0], run)  # a request refused by one of them can't be compared
        ))
        for run, refused in zip(runs[1:], unserved, strict=True)
    )  # fmt: skip
    differences = tuple(
        with_margin(item, device, model, config, requests, runs[0]) for item in found if item
    )
    closest = None
    if runs[0].trace.apart:
        closest = closest_choice(device, model, config, requests, runs[0])
    return Comparison(tuple(runs), reports, differences, closest)


# -- The comparison in words -----------------------------------------------------------------------


def cells(comparison: Comparison, report: OverlapReport) -> list[str]:
    """Return one row of the table; a speed-up above the ceiling is only marked as such."""
    speedup, serial = comparison.speedup[report.loop], comparison.reports[0]
    share = "" if speedup is None else f"{100 * speedup / comparison.ideal:.0f} %"
    return [
        report.loop,
        str(report.steps),
        str(report.tokens),
        f"{report.makespan_ns / MILLISECOND:.1f}",
        f"{report.device_busy_percent:.0f} %",
        f"{report.host_hidden_percent:.0f} %",
        str(report.wasted_rows),
        "-" if speedup is None else f"{speedup:.2f} x",
        "" if report is serial else "> 100 %" if beats_ideal(serial, report) else share,
    ]


def sentences(comparison: Comparison) -> list[str]:
    """Return the lost times, the verdict, and the reason."""
    first = comparison.runs[0].trace
    said = [f"{first.what_ran}."] if first.dtype else []
    if first.promise_words:
        said.append(first.promise_words)
    if (closest := comparison.closest) is not None:
        said.append(
            f"The closest choice of serial is output {closest.position} of {closest.rid}: its two "
            f"largest logits are {closest.margin:.2g} apart. Another token is a violation above "
            f"{TIMES * (comparison.apart or 0):.2g}."
        )
    said += [
        lost_time(loop, comparison.lost_ns[loop], waits)
        for loop, waits in comparison.num_waits.items()
        if waits
    ]
    for run in comparison.runs:
        if drafts := count_drafts(run.trace):
            said.append(f"{run.loop}: {drafts}.")
    said.append(verdict(comparison))
    serial, rest = comparison.reports[0], comparison.reports[1:]
    if rest and (by := comparison.logprob_difference) is not None:
        differ = f"differ by {by:.2g} at most, up to where tokens do"
        said.append(f"Their log-probabilities {differ if by else 'are equal to the last bit'}.")
    if len(rest) > MOST_REASONS:  # the table contains the others
        rest = (min(rest, key=lambda report: report.makespan_ns),)
    if serial.tokens and not comparison.unequally_served:
        said += [reason(serial, report, first.clock) for report in rest]
    return said


def lost_time(loop: str, lost: Mapping[str, int], waits: Mapping[str, int]) -> str:
    """Write the cost of a loop's waits: how long its devices idled, and why."""
    named = {why: f"{many(count, 'wait')} for {why}" for why, count in waits.items()}
    reasons = {why: f"in {words}" for why, words in named.items()}
    reasons |= {HOST: "because of the host's ordinary work", ARRIVAL: "with no request to serve"}
    parts = [f"{rounded_ms(lost[why])} {words}" for why, words in reasons.items() if lost[why]]
    time = f"{rounded_ms(sum(lost.values()))} of device time: {', '.join(parts)}"
    sentence = f"{loop} lost {time if parts else 'no device time'}."
    if hidden := " and ".join(words for why, words in named.items() if not lost[why]):
        sentence += f" {hidden} cost nothing: the device had other work meanwhile."
    return sentence


def verdict(comparison: Comparison) -> str:
    """Write in one sentence that the runs are identical, or where they differ."""
    if not comparison.reports[0].tokens:
        return "No request gave a token, so there is nothing to compare."
    if not comparison.identical and not comparison.violations:
        found = ". ".join(map(str, comparison.differences))
        return f"Identical up to the measured movement of the logits. {found}."
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


def reason(serial: OverlapReport, report: OverlapReport, clock: str) -> str:
    """Write where the time went; on a wall clock also which figures are unreliable."""
    takes, took = (rounded_ms(it.makespan_ns) for it in (report, serial))
    busy = (
        f"the device works {report.device_busy_percent:.0f} % of the time instead of "
        f"{serial.device_busy_percent:.0f} %"
    )
    hidden, host = rounded_ms(report.host_hidden_ns), rounded_ms(report.host_busy_ns)
    why = f"{hidden} of the host's {host} of work now run while the device is busy, so {busy}."
    if clock == "wall":
        here, there = (rounded_ms(it.device_busy_ns) for it in (report, serial))
        why = (
            f"{busy}, and was busy for {here} instead of {there}. These are single runs, and the "
            "host's times include its waiting for the interpreter lock; minisched bench repeats "
            "and interleaves."
        )
    return (
        f"{report.loop} takes {takes} instead of {took} ({versus_ideal(serial, report, clock)}): "
        f"{why}"
    )


def rounded_ms(nanoseconds: int) -> str:
    """Return a time for a reader, such as ``632.8 ms``."""
    if 0 < nanoseconds < MILLISECOND // 20:
        return "less than 0.1 ms"
    return f"{nanoseconds / MILLISECOND:.1f} ms"
