"""The command ``fidelity`` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .exit import exit_with


def fidelity(
    original: Annotated[str, typer.Argument(help="sglang, mini-sglang, vllm or nano-vllm.")],
    cases: Annotated[int, typer.Option(help="How many, dealt over the parts.")] = 300,
    seed: Annotated[int, typer.Option(help="Of all cases.")] = 0,
    source: Annotated[
        Path | None, typer.Option(help="A checkout of mini-sglang or nano-vllm.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Play random cases beside an original's own scheduler, and say where ours differs.

    The original is installed into an environment of its own, once. Both get the
    same arrivals, settings and tokens; kind of batch, prompts in order with
    their ranges, who decodes and who is retracted are compared turn by turn.

    Where they part, the case is played again with the rules that differ on
    purpose answered as the original does. If that is not why, the exit code is
    1, and the first such case is made small and drawn. Without the original it
    is 2.
    """
    from .fidelity import run_fidelity

    exit_with(lambda: run_fidelity(original, cases, seed, source, json))
