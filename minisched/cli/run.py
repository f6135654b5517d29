"""``minisched run``: one loop, its tokens streamed as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from rich.console import Console

from ..checks.overlap import measure
from ..core import Output
from ..devices.registry import open_device
from ..loops.registry import find_loop
from ..loops.run import Run, run_loop
from ..models.base import Model
from ..models.tokenizer import StreamDecoder
from .options import Options, tokenizer_of
from .report import milliseconds

BAD_INPUT, INTERRUPTED = 2, 130  # exit codes


def run_run(options: Options, loop: str, as_json_only: bool) -> int:
    """Run one loop and stream its text; returns the exit code.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    find_loop(loop)
    device = open_device(options.device)
    model = options.open_model()
    requests = options.make_requests(model)
    say = Console(stderr=as_json_only, highlight=False, soft_wrap=True)
    run = run_loop(
        loop,
        device,
        model,
        requests,
        options.make_config(model, requests),
        options.cost(),
        on_output=printer(say, model),
    )
    report = measure(run.trace, sum(map(len, run.outputs.values())))
    if as_json_only:
        print(json.dumps({"loop": loop, "outputs": run.outputs, "errors": run.errors}))
    say.print(
        f"{report.tokens} tokens in {report.steps} steps, {milliseconds(report.makespan_ns)}; "
        f"the device was busy {report.device_busy_percent:.0f} % of the time."
    )
    return exit_code(run)


def printer(say: Console, model: Model) -> Callable[[Output], None]:
    """Prints each piece of text as it comes, marked with its request when the speaker changes."""
    decoders: dict[str, StreamDecoder] = {}
    speaker = ""

    def on_output(output: Output) -> None:
        nonlocal speaker
        decoder = decoders.setdefault(output.rid, StreamDecoder(tokenizer_of(model)))
        text = decoder.push(output.token) if output.token is not None else ""
        text += decoder.finish() if output.finish_reason else ""
        if text:
            if speaker != output.rid:
                say.print(f"\n[dim]{output.rid}:[/dim] ", end="")
                speaker = output.rid
            say.out(text, end="", highlight=False)
        if output.finish_reason:
            say.print(f" [dim]({output.rid} ends: {output.finish_reason.value})[/dim]", end="")

    return on_output


def exit_code(run: Run) -> int:
    """Says on stderr which requests ended badly, and what that means for the exit code."""
    for rid, error in run.errors.items():
        print(f"request {rid}: {error}", file=sys.stderr)
    if run.interrupted:
        print("interrupted; every request was ended and its memory given back", file=sys.stderr)
        return INTERRUPTED
    return BAD_INPUT if run.errors else 0
