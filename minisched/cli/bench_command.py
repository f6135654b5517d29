"""The command ``bench`` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .bench import PARTS
from .exit import exit_with


def bench(
    part: Annotated[str, typer.Argument(help=", ".join(PARTS) + ".")],
    device: Annotated[str | None, typer.Option(help="thread, cuda or mlx.")] = None,
    model: Annotated[str | None, typer.Option(help="As compare takes it.")] = None,
    dtype: Annotated[str | None, typer.Option(help="As compare takes it.")] = None,
    requests: Annotated[int | None, typer.Option(help="How many requests.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens that each produces.")] = None,
    repeat: Annotated[int, typer.Option(help="Interleaved repetitions.")] = 5,
    nano_vllm: Annotated[
        Path | None, typer.Option(help="A checkout of nano-vllm, for scheduler and host.")
    ] = None,
    vidur: Annotated[Path | None, typer.Option(help="A checkout of vidur, for simulator.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure one part, and keep its table under traces/bench."""
    from .bench import BenchCall, run_bench

    call = BenchCall(
        part, device, model, requests, max_new_tokens, repeat, nano_vllm=nano_vllm, vidur=vidur,
        dtype=dtype,
    )  # fmt: skip
    exit_with(lambda: run_bench(call, json))
