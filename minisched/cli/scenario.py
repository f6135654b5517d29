"""``minisched scenario``: a published case, replayed, beside what was claimed for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..devices.cost import DEFAULT_PROFILE, Profile, find_profile
from ..loops.design import find_loop
from ..replay import SCENARIOS
from ..replay import long_document as case
from ..replay.claims import CLAIMS, Verdict, verdicts
from ..replay.guide_cases import GUIDE_CASES
from ..replay.long_document import Outcome, long_document
from .layout import Fitted
from .scenario_guide import run_guide_case

SECOND = 1e9  # nanoseconds


def run_scenario(
    name: str, loop: str = "overlap", profile: str = DEFAULT_PROFILE, as_json_only: bool = False
) -> int:
    """Run a scenario and say which claims hold; the exit code is 0 whether they do or not.

    Raises:
        ValueError: there is no such scenario, loop or profile; nothing has run then.
    """
    if name not in SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}; the scenarios are {', '.join(SCENARIOS)}.")
    find_loop(loop)
    machine = find_profile(profile)
    if name in GUIDE_CASES:
        run_guide_case(name, loop, machine, as_json_only)
        return 0
    outcomes = long_document(loop, machine)
    found = verdicts(outcomes)
    if as_json_only:
        print(json.dumps(document_json(name, loop, machine, outcomes, found)))
    else:
        print_scenario(Console(highlight=False), loop, machine, outcomes, found)
    return 0


def document_json(
    name: str, loop: str, machine: Profile, outcomes: Sequence[Outcome], found: Sequence[Verdict]
) -> dict[str, Any]:
    """What ``--json`` prints; virtual times in integer nanoseconds."""
    return {
        "scenario": name,
        "loop": loop,
        "profile": machine.name,
        "document_tokens": case.DOCUMENT,
        "others": case.NUM_OTHERS,
        "settings": [asdict(item) | case.SETTINGS[item.name] for item in outcomes],
        "claims": [
            {
                "about": item.claim.about,
                "claimed": item.claim.words,
                "claimed_gain": item.claim.least,
                "setting": item.after.name,
                "gain": item.gain,
                "holds": item.holds,
                "why": item.claim.why,
            }
            for item in found
        ],
    }


def print_scenario(
    console: Console,
    loop: str,
    machine: Profile,
    outcomes: Sequence[Outcome],
    found: Sequence[Verdict],
) -> None:
    """The case, the figures, and a paragraph for each claim."""
    console.print(
        f"A document of {case.DOCUMENT:,} tokens beside {case.NUM_OTHERS} requests of "
        f"{case.SHORT:,}, one every {case.EVERY / 1e6:.0f} ms; it comes after "
        f"{case.DOCUMENT_AT / SECOND:.0f} s. {machine.description}, loop {loop}, virtual time."
    )
    console.print(Fitted(document_figures(outcomes)))
    for claim in CLAIMS:
        said = [verdict_in_words(item) for item in found if item.claim is claim]
        console.print(f"[bold]{claim.about}: {claim.words}.[/bold] {' '.join(said)} {claim.why}\n")
    console.print(f"[bold]Time of the document: 15 s, 0.3 s a round.[/bold] {TIMES}\n")
    console.print(pause_in_words(outcomes))


TIMES = (
    "The two agree: 50 rounds of 0.3 s are 15 s. Which GPU that was the guide does not say; what "
    "an H100 takes is less, and what an A100 takes (--profile llama8b-a100) is more. A later chunk "
    "takes longer than an early one, since it attends to all of those before."
)


def document_figures(outcomes: Sequence[Outcome]) -> Table:
    """A column for each setting, and what the guide says of two of them."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure")
    for item in outcomes:
        table.add_column(item.name, justify="right")
    table.add_column("claimed", justify="right")
    ttft, throughput, peak = (claim.words for claim in CLAIMS)
    for title, values, claimed in (
        ("others' TTFT, mean (s)", [f"{o.mean_ttft / SECOND:.2f}" for o in outcomes], ttft),
        ("others' TTFT, worst (s)", [f"{o.worst_ttft / SECOND:.2f}" for o in outcomes], ""),
        ("document's TTFT (s)", [f"{o.document_ttft / SECOND:.2f}" for o in outcomes], "15 s"),
        ("a round of it, mean (s)", [f"{o.mean_round / SECOND:.2f}" for o in outcomes], "0.3 s"),
        ("others' pause, worst (s)", [f"{o.longest_pause / SECOND:.2f}" for o in outcomes], ""),
        ("tokens a second", [f"{o.tokens_per_second:.0f}" for o in outcomes], throughput),
        ("tokens a step, peak", [f"{o.peak_tokens:,}" for o in outcomes], peak),
        ("steps", [f"{o.steps:,}" for o in outcomes], ""),
    ):
        table.add_row(title, *values, claimed)
    return table


def verdict_in_words(item: Verdict) -> str:
    """Whether it holds, and the figures that say so."""
    before, after = item.claim.show(item.before), item.claim.show(item.after)
    holds = "Holds" if item.holds else "Does not hold"
    return f"{holds} for {item.after.name}: {before} -> {after}."


def pause_in_words(outcomes: Sequence[Outcome]) -> str:
    """Where mixing does help, and what the guide's 30 x is then."""
    pauses = ", ".join(f"{item.longest_pause / SECOND:.2f} s {item.name}" for item in outcomes)
    gain = outcomes[0].longest_pause / max(1, outcomes[-1].longest_pause)
    return (
        f"The longest time that one of the others waits between two tokens: {pauses}. Prompts go "
        "before decodes, so chunks alone do not let anybody decode between them; mixed chunks do. "
        "The guide's others decode when the document comes: what mixing gives them is no earlier "
        f"first token but a shorter pause, by {gain:.0f} x here, where the guide says 30."
    )
