"""``minisched scenario`` for the guide's cases A, B and C: how many rounds a prompt takes."""

from __future__ import annotations

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..devices.cost import Profile
from ..replay.guide_cases import GUIDE_CASES, GuideCase, guide_case
from ..replay.rounds import Rounds
from .layout import Fitted

A_SECOND = 1e9  # nanoseconds


def run_guide_case(name: str, loop: str, machine: Profile, as_json_only: bool) -> None:
    """Replay one, and print its rounds beside the guide's.

    Raises:
        ValueError: the loop can't be replayed.
    """
    case = GUIDE_CASES[name]
    rounds = guide_case(case, loop, machine)
    if as_json_only:
        print(json.dumps(guide_json(name, case, loop, machine, rounds)))
        return
    console = Console(highlight=False)
    beside = f"beside {case.beside} requests that decode" if case.beside else "alone"
    mixed = "mixed " if case.beside else ""
    console.print(
        f"The guide's scenario {case.letter}. {case.about}, {case.answer:,} to answer, {beside}; "
        f"{mixed}chunks of {case.chunk:,}. {machine.description}, loop {loop}, virtual time."
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure")
    table.add_column("here", justify="right")
    table.add_column("the guide", justify="right")
    for key, (title, value) in guide_figures(rounds).items():
        claimed = f"{case.claimed[key]:,}" if key in case.claimed else ""
        table.add_row(title, value, claimed)
    console.print(Fitted(table))
    console.print(case.why)


def guide_figures(rounds: Rounds) -> dict[str, tuple[str, str]]:
    """Title and value of each row, by its name in ``GuideCase.claimed``."""
    return {
        "rounds": ("rounds of the prompt", f"{len(rounds.chunks):,}"),
        "first": ("tokens of the first", f"{rounds.chunks[0]:,}"),
        "last": ("tokens of the last", f"{rounds.chunks[-1]:,}"),
        "steps": ("steps until it has ended", f"{rounds.num_steps:,}"),
        "round": ("a round, mean (s)", f"{rounds.mean_ns / A_SECOND:.3f}"),
        "prompt": ("the whole prompt (s)", f"{(rounds.end - rounds.start) / A_SECOND:.2f}"),
    }


def guide_json(
    name: str, case: GuideCase, loop: str, machine: Profile, rounds: Rounds
) -> dict[str, Any]:
    """What ``--json`` prints; virtual times in integer nanoseconds."""
    return {
        "scenario": name,
        "loop": loop,
        "profile": machine.name,
        "prompt_tokens": case.prompt,
        "max_new_tokens": case.answer,
        "chunked_prefill_size": case.chunk,
        "decoding_beside": case.beside,
        "rounds": len(rounds.chunks),
        "first_chunk": rounds.chunks[0],
        "last_chunk": rounds.chunks[-1],
        "steps": rounds.num_steps,
        "mean_round": rounds.mean_ns,
        "prompt": rounds.end - rounds.start,
        "claimed": dict(case.claimed),
        "why": case.why,
    }
